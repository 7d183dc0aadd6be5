"""`refold nodes`: list nodes and their free GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import make_client
from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.api import NodeStatus


def nodes(as_json: AsJson = False) -> None:
    """List nodes with their state, free GPUs and jobs.

    Example: refold nodes
    """
    found = make_client().nodes()
    if as_json:
        print_json(found)
        return
    columns = {
        "node": Column("node", whole=True),
        "state": Column("state", style=lambda state: "" if state == "up" else "yellow"),
        "gpus": Column("free GPUs", number=True),
        "type": Column("GPU type", whole=True),
        "jobs": Column("jobs"),
    }
    print_tables(Table("", columns, [_row(node) for node in found]))


def _row(node: NodeStatus) -> dict[str, str]:
    down = f"drained: {node.reason.removeprefix('drained ')}" if node.reason else "drained"
    return {
        "node": node.name,
        "state": (node.reason or "up") if node.up else down,
        "gpus": f"{node.free_gpus:g} of {node.gpus}",
        "type": node.gpu_type,
        "jobs": ", ".join(node.jobs),
    }
