"""Drain and resume nodes and single GPUs, and store why nodes are drained."""

from __future__ import annotations

import asyncio

from refold.core import Event, NodeLost, NodeReturned
from refold.errors import NotFound
from refold.server import drained_gpus
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.store import Store
from refold.server.writer import Writer

DRAIN_REASONS_KEY = "drained"
"""Key in the store's `meta` table: drain reason by node name."""


class DrainManager:
    """Drains and resumes nodes and GPUs. `drain_reasons`: reason by drained node."""

    def __init__(self, state: LiveState, inbox: Inbox, writer: Writer, store: Store) -> None:
        self._state = state
        self._inbox = inbox
        self._writer = writer
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self.drain_reasons: dict[str, str] = store.reader.read_meta(DRAIN_REASONS_KEY, dict[str, str]) or {}

    async def drain(self, node: str, gpu: int | None, why: str, move: bool) -> int:
        """Drain a node, or one GPU of it, and return the node's index.

        Runs on a drained GPU are always stopped and rescheduled; runs on a drained node only if `move`.
        """
        view, index = self._state.view, self._node_index(node, gpu)
        if gpu is not None:
            drained = (node, gpu) in drained_gpus.drained_gpus(view)
            await self._inbox.commit([] if drained else drained_gpus.drain(view, (node, gpu), why))
            return index
        await self._set_reason(node, why)
        events: list[Event] = [NodeLost(index), *(drained_gpus.recall_runs(view, index, why) if move else ())]
        await self._inbox.commit(events)
        return index

    async def resume(self, node: str, gpu: int | None) -> int:
        """Accept work again on a node, or on one GPU of it; return the node's index."""
        index = self._node_index(node, gpu)
        if gpu is None:
            await self._set_reason(node, "")
        await self._inbox.commit(
            [NodeReturned(index)] if gpu is None else drained_gpus.resume(self._state.view, (node, gpu))
        )
        return index

    def record_reason(self, node: int, why: str) -> None:
        """Store why a node was drained, without waiting for the write."""
        task = asyncio.create_task(self._set_reason(self._state.view.cluster.nodes[node].name, why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _set_reason(self, node: str, why: str) -> None:
        self.drain_reasons = {name: text for name, text in (self.drain_reasons | {node: why}).items() if text}
        reasons = dict(self.drain_reasons)
        await self._writer.write(lambda: self._store.write_meta(DRAIN_REASONS_KEY, reasons))

    def _node_index(self, node: str, gpu: int | None) -> int:
        cluster = self._state.view.cluster
        if node not in cluster.index_of_node:
            raise NotFound.near("node", node, cluster.index_of_node)
        index = cluster.index_of_node[node]
        if gpu is not None and gpu >= cluster.nodes[index].gpus:
            raise NotFound(f"node {node!r} has no GPU {gpu}: it has {cluster.nodes[index].gpus}, counted from 0")
        return index
