"""A Ray cluster as what the daemon schedules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from refold.backends.ray import RayBackend, RayNode, RayNodes, map_nodes, read_nodes
from refold.core import Event, NodeLost, NodeReturned, PastJob
from refold.errors import BadInput, BadValue
from refold.model import Cluster, Seconds, Tenant
from refold.server import Admission, BackendOptions, EngineParts, Inbox, LiveState, StatusOf

DAEMON_KEY = "ray-daemon"
"""Key in the store's `meta` table: the id of the daemon."""

NODE_POLL: Seconds = 2.0
LOST = "ray: it is gone"
"""Why a node is down. It returns when Ray has it again; a node that an operator has drained does not."""

log = logging.getLogger("refold")


class RayEngine:
    """The nodes of a cluster that Ray is connected to. `daemon`: tells the runs of this daemon from those of others."""

    def __init__(self, ray: Any, daemon: str, tenants: tuple[Tenant, ...] = ()) -> None:
        self._ray = ray
        self._daemon = daemon
        self._tenants = tenants
        self._known: dict[str, RayNode] = {}
        self._nodes: RayNodes | None = None

    async def connect(self) -> str:
        """Read the nodes; return the version of Ray."""
        self._known = {node.name: node for node in await asyncio.to_thread(self._read)}
        self.rebuild()
        return f"Ray {self._ray.__version__}, {len(self._known)} nodes with GPUs"

    @property
    def nodes(self) -> RayNodes:
        """The cluster, and the nodes that it was made from."""
        assert self._nodes is not None, "connect first"
        return self._nodes

    @property
    def cluster(self) -> Cluster:
        """The cluster that is scheduled."""
        return self.nodes.cluster

    def rebuild(self) -> None:
        """Take the nodes as they were last read."""
        try:
            self._nodes = map_nodes(list(self._known.values()), self._tenants)
        except BadValue as error:
            raise BadInput(str(error)) from None

    def history(self) -> list[PastJob]:
        """Return nothing: Ray does not tell what jobs have used."""
        return []

    def make_backend(self, options: BackendOptions) -> RayBackend:
        """Return a back end for the cluster as it is."""
        return RayBackend(
            options.report,
            self._ray,
            self.nodes,
            options.logs,
            self._daemon,
            grace=options.grace,
            exported=options.exported,
            secrets=options.secrets,
            max_output_bytes=options.max_output_bytes,
        )

    def make_output(self, state: LiveState, logs: Path, max_bytes: int) -> None:
        """Return None: the back end copies output to the files of the daemon all the time."""

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return what follows the nodes. `end`: ends the daemon, if they have changed."""
        del admission, status_of
        return EngineParts([], [self._follow_nodes(state, inbox, end)])

    async def _follow_nodes(self, state: LiveState, inbox: Inbox, end: Callable[[], None]) -> None:
        """Report changes of nodes; end the daemon when the cluster is no longer the one that it schedules."""
        while True:
            found = {node.name: node for node in await asyncio.to_thread(self._read)}
            if self._has_changed(found):
                log.info("the nodes of Ray have changed: continuing with the new cluster")
                end()
                return
            for event in node_events(state, self.nodes.nodes, found.keys()):
                inbox.report(event)
            await asyncio.sleep(NODE_POLL)

    def _has_changed(self, found: dict[str, RayNode]) -> bool:
        """Whether there are new nodes, or nodes that were started again. Those that are missing are down."""
        if all(self._known.get(name) == node for name, node in found.items()):
            return False
        replaced = {node.name for node in found.values()}
        self._known = {name: node for name, node in self._known.items() if name not in replaced} | found
        return True

    def _read(self) -> Sequence[RayNode]:
        return read_nodes(self._ray.nodes())


def node_events(state: LiveState, nodes: Sequence[RayNode], present: Any) -> list[Event]:
    """Return what has happened to the nodes, given those that Ray has now."""
    events: list[Event] = []
    for index, node in enumerate(nodes):
        if node.name not in present and state.view.is_up(index):
            events.append(NodeLost(index, LOST))
        elif node.name in present and not state.view.is_up(index) and state.view.down_reason(index) == LOST:
            events.append(NodeReturned(index))
    return events
