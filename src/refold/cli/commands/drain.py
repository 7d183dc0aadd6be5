"""`refold drain`: stop scheduling jobs on a node or GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import GpuIndex, NodeName, make_client, print_node_change
from refold.cli.views import AsJson


def drain(
    node: NodeName,
    gpu: GpuIndex = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to users.")] = "",
    move: Annotated[bool, typer.Option("--move", help="Preempt the jobs that run on the node.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop scheduling jobs on a node or GPU.

    Jobs that run on the node continue unless --move is given; jobs on a drained GPU are always moved.

    Example: refold drain n0 --gpu 3 --reason 'broken fan'
    """
    drained = make_client().drain(node, reason, gpu, move)
    running = f"; still running: {', '.join(drained.jobs)}" if drained.jobs and gpu is None and not move else ""
    print_node_change(drained, gpu, f"drained{running}", as_json)
