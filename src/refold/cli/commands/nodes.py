"""`refold nodes`: list nodes and their free GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import connect, format_rack
from refold.cli.views import AsJson, Column, Table, print_json, print_tables, resource_text

if TYPE_CHECKING:
    from refold.client.api import NodeStatus


def nodes(as_json: AsJson = False) -> None:
    """List nodes with their state, free GPUs and jobs.

    Example: refold nodes
    """
    found = connect().nodes()
    if as_json:
        print_json(found)
        return
    limits: list[Column[NodeStatus]] = [Column("CPUs, memory", lambda node: node.limits, whole=True)]
    columns: list[Column[NodeStatus]] = [
        Column("node", lambda node: node.name, whole=True),
        Column("state", _format_state, style=lambda node: "" if _format_state(node) == "up" else "yellow"),
        Column(resource_text("free GPUs"), lambda node: f"{node.free_gpus:g} of {node.gpus}", number=True),
        Column(resource_text("GPU type"), lambda node: node.gpu_type, whole=True),
        *([Column("domain", _domain, whole=True)] if any(node.domains.keys() - {"rack"} for node in found) else []),
        *([Column("rack", format_rack, whole=True)] if any(node.rack for node in found) else []),
        *(limits if any(node.limits for node in found) else []),
        Column("jobs", lambda node: ", ".join(node.jobs)),
    ]
    print_tables(Table("", columns, found))


def _domain(node: NodeStatus) -> str:
    return "/".join(node.domains.values())


def _format_state(node: NodeStatus) -> str:
    if node.up:
        return node.reason or "up"
    state = "drained" if node.drained else "down"
    return f"{state}: {node.reason}" if node.reason else state
