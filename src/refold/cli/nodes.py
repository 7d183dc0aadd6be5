"""`refold nodes`, `drain`, `resume`: the machines, and which of them take work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.daemon import NodeName, daemon
from refold.cli.output import AsJson, Column, Table, print_json, print_tables, say

if TYPE_CHECKING:
    from refold.live.api.wire import NodeStatus

OneGpu = Annotated[int | None, typer.Option("--gpu", min=0, metavar="N", help="Only this GPU of it, by its number.")]


def nodes(as_json: AsJson = False) -> None:
    """List the nodes: whether they take work, what of them is free, and whose the rest is.

    Example: refold nodes
    """
    found = daemon().nodes()
    if as_json:
        print_json(found)
        return
    columns = {
        "node": Column("node", whole=True),
        "state": Column("", style=lambda state: "" if state == "up" else "yellow"),
        "gpus": Column("GPUs free", number=True),
        "type": Column("", whole=True),
        "jobs": Column("jobs"),
    }
    print_tables(Table("", columns, [_row(node) for node in found]))


def _row(node: NodeStatus) -> dict[str, str]:
    down = f"drained: {node.why.removeprefix('drained ')}" if node.why else "drained"
    return {
        "node": node.name,
        "state": (node.why or "up") if node.up else down,
        "gpus": f"{node.free_gpus:g} of {node.gpus}",
        "type": node.gpu_type,
        "jobs": ", ".join(node.jobs),
    }


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
    _changed(drained, gpu, f"takes no more work{there}", as_json)


def resume(node: NodeName, gpu: OneGpu = None, as_json: AsJson = False) -> None:
    """Give a node, or one GPU of it, work again.

    Example: refold resume n0
    """
    _changed(daemon().resume(node, gpu), gpu, "takes work again", as_json)


def _changed(node: NodeStatus, gpu: int | None, how: str, as_json: bool) -> None:
    if as_json:
        print_json(node)
        return
    say(f"{node.name if gpu is None else f'GPU {gpu} of {node.name}'} {how}")
