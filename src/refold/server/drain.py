"""Drain and resume nodes and single GPUs."""

from __future__ import annotations

from refold.core import Event, GpuDrained, GpuReturned, NodeDrained, NodeReturned, RunRecalled
from refold.errors import NotFound
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.subscribers import LoopStep, Subscriber


class DrainManager(Subscriber):
    """Drains and resumes nodes and GPUs, and recalls the runs of GPUs that are down."""

    def __init__(self, state: LiveState, inbox: Inbox) -> None:
        self._state = state
        self._inbox = inbox

    async def drain(self, node: str, gpu: int | None, why: str, move: bool) -> int:
        """Drain a node, or one GPU of it, and return the node's index.

        Runs on a drained node are stopped and rescheduled only if `move`; runs on a drained GPU always (`after_step`).
        """
        index = self._node_index(node, gpu)
        if gpu is not None:
            await self._inbox.commit([GpuDrained(index, gpu, why)])
            return index
        recalls = [
            RunRecalled(run.job, run.number, f"{node} is drained: {why}")
            for run in self._state.view.runs.values()
            if move and not run.stopping and index in run.allocation.nodes
        ]
        await self._inbox.commit([NodeDrained(index, why), *recalls])
        return index

    def jobs_on(self, node: int, gpu: int | None) -> list[str]:
        return [
            run.job
            for run in self._state.view.runs.values()
            for share in run.allocation.placement
            if share.node == node and (gpu is None or gpu in share.gpus)
        ]

    async def resume(self, node: str, gpu: int | None) -> int:
        """Accept work again on a node, or on one GPU of it; return the node's index."""
        view, index = self._state.view, self._node_index(node, gpu)
        is_up = view.is_up(index) if gpu is None else view.is_gpu_up(index, gpu)
        event: Event = NodeReturned(index) if gpu is None else GpuReturned(index, gpu)
        await self._inbox.commit([] if is_up else [event])
        return index

    def after_step(self, _: LoopStep) -> None:
        """Recall the runs that hold a part of a GPU that is down, because it was drained or reported as faulty."""
        view = self._state.view
        down = view.down_gpus
        for run in view.runs.values() if down else ():
            gpus = [(share.node, gpu) for share in run.allocation.placement for gpu in share.gpus]
            found = next((gpu for gpu in gpus if gpu in down), None)
            if found is not None and not run.stopping:
                name = f"GPU {found[1]} of {view.cluster.nodes[found[0]].name}"
                state = "drained" if view.is_drained(*found) else "down"
                self._inbox.report(RunRecalled(run.job, run.number, f"{name} is {state}: {down[found]}"))

    def _node_index(self, node: str, gpu: int | None) -> int:
        cluster = self._state.view.cluster
        if node not in cluster.index_of_node:
            raise NotFound.near("node", node, cluster.index_of_node)
        index = cluster.index_of_node[node]
        if gpu is not None and gpu >= cluster.nodes[index].gpus:
            raise NotFound(f"node {node!r} has no GPU {gpu}: it has {cluster.nodes[index].gpus}, counted from 0")
        return index
