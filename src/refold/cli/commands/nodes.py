"""`refold nodes`: list the nodes and their free GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import daemon
from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.api import NodeStatus


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
