"""`refold drain` and `resume`: nodes and GPUs on which no jobs start."""

from __future__ import annotations

from typing import Annotated

from refold.cli import GpuIndex, NodeName, connect, option, print_node_change, switch
from refold.cli.views import AsJson


def drain(
    node: NodeName,
    gpu: GpuIndex = None,
    reason: Annotated[str, option("TEXT", "Reason, shown to users.")] = "",
    move: Annotated[bool, switch("--move", "Preempt the jobs that run on the node.")] = False,
    now: Annotated[
        bool, switch("--now", "Kill the jobs that run there, without a grace period, and queue them again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop scheduling jobs on a node or GPU.

    Jobs that run on the node continue unless --move or --now is given; jobs on a drained GPU are always moved.

    Example: refold drain n0 --gpu 3 --reason 'broken fan'
    """
    drained = connect().drain(node, reason, gpu, move, now)
    running = (
        f"; still running: {', '.join(drained.jobs)}" if drained.jobs and gpu is None and not (move or now) else ""
    )
    print_node_change(drained, gpu, f"drained{running}", as_json)


def resume(node: NodeName, gpu: GpuIndex = None, as_json: AsJson = False) -> None:
    """Return a drained node or GPU to service.

    Example: refold resume n0
    """
    print_node_change(connect().resume(node, gpu), gpu, "resumed", as_json)
