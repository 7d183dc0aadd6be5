"""Confirm a change to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views.output import print_json, print_line

if TYPE_CHECKING:
    from refold.api import NodeStatus


def print_node_change(node: NodeStatus, gpu: int | None, change: str, as_json: bool) -> None:
    """Print the new state of a node, or of one of its GPUs."""
    if as_json:
        print_json(node)
        return
    print_line(f"{f'node {node.name}' if gpu is None else f'GPU {gpu} of node {node.name}'} {change}")
