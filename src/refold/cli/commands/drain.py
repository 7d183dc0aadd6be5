"""`refold drain`: take a node, or one GPU of it, out of service."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import NodeName, OneGpu, daemon
from refold.cli.views import AsJson, print_node_change


def drain(
    node: NodeName,
    gpu: OneGpu = None,
    why: Annotated[str, typer.Option("--why", help="For whoever wonders.")] = "",
    move: Annotated[bool, typer.Option("--move", help="What runs on the node has to move, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a node, or one GPU of it, no more work. What runs on a node runs on; what runs on that GPU has to move.

    Example: refold drain n0 --gpu 3 --why 'fan is broken'
    """
    drained = daemon().drain(node, why, gpu, move)
    there = f"; {', '.join(drained.jobs)} still there" if drained.jobs and gpu is None and not move else ""
    print_node_change(drained, gpu, f"takes no more work{there}", as_json)
