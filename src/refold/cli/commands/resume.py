"""`refold resume`: return a drained node or GPU to service."""

from __future__ import annotations

from refold.cli import GpuIndex, NodeName, make_client, print_node_change
from refold.cli.views import AsJson


def resume(node: NodeName, gpu: GpuIndex = None, as_json: AsJson = False) -> None:
    """Return a drained node or GPU to service.

    Example: refold resume n0
    """
    print_node_change(make_client().resume(node, gpu), gpu, "resumed", as_json)
