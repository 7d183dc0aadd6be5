"""Taking nodes and GPUs out of service, and back; and why they are out."""

from __future__ import annotations

import asyncio

from refold.core import Event, NodeLost, NodeReturned
from refold.errors import NotFound
from refold.server import drained_gpus
from refold.server.loop import Loop
from refold.server.store import Store

DRAINED = "drained"
"""Under which name it is kept why nodes take no work."""


class DrainManager:
    """Which nodes take no work, with the reason that somebody gave."""

    def __init__(self, loop: Loop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._explaining: set[asyncio.Task[None]] = set()
        self.drained_for: dict[str, str] = store.reading.remembered(DRAINED, dict[str, str]) or {}

    async def drain(self, node: str, gpu: int | None, why: str, move: bool) -> int:
        """No more work for a node, or for one GPU of it, of which whoever runs there has to move; the node's index."""
        view, index = self._loop.view, self._index(node, gpu)
        if gpu is not None:
            drained = (node, gpu) in drained_gpus.drained_gpus(view)
            await self._loop.ask([] if drained else drained_gpus.drain(view, (node, gpu), why))
            return index
        await self._explain(node, why)
        events: list[Event] = [NodeLost(index), *(drained_gpus.recalls(view, index, why) if move else ())]
        await self._loop.ask(events)
        return index

    async def resume(self, node: str, gpu: int | None) -> int:
        """Work for it again; the node's index."""
        index = self._index(node, gpu)
        if gpu is None:
            await self._explain(node, "")
        await self._loop.ask(
            [NodeReturned(index)] if gpu is None else drained_gpus.resume(self._loop.view, (node, gpu))
        )
        return index

    def explain_later(self, node: int, why: str) -> None:
        """A node takes no work for a reason that nobody has asked about."""
        task = asyncio.create_task(self._explain(self._loop.view.cluster.nodes[node].name, why))
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)

    async def _explain(self, node: str, why: str) -> None:
        self.drained_for = {name: text for name, text in (self.drained_for | {node: why}).items() if text}
        kept = dict(self.drained_for)
        await self._loop.written(lambda: self._store.remember(DRAINED, kept))

    def _index(self, node: str, gpu: int | None) -> int:
        cluster = self._loop.view.cluster
        if node not in cluster.index_of_node:
            raise NotFound.near("node", node, cluster.index_of_node)
        index = cluster.index_of_node[node]
        if gpu is not None and gpu >= cluster.nodes[index].gpus:
            raise NotFound(f"node {node!r} has no GPU {gpu}: it has {cluster.nodes[index].gpus}, counted from 0")
        return index
