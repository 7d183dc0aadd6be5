"""`refold resume`: put a drained node or GPU back into service."""

from __future__ import annotations

from refold.cli import NodeName, OneGpu, daemon
from refold.cli.views import AsJson, print_node_change


def resume(node: NodeName, gpu: OneGpu = None, as_json: AsJson = False) -> None:
    """Give a node, or one GPU of it, work again.

    Example: refold resume n0
    """
    print_node_change(daemon().resume(node, gpu), gpu, "takes work again", as_json)
