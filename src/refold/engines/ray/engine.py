"""A Ray cluster as what the daemon schedules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from refold.core import PastJob
from refold.engines.ray.backend import DisconnectedBackend, RayBackend
from refold.engines.ray.cluster import (
    FreeResources,
    KnownNodes,
    RayConnection,
    RayNode,
    RayNodeReports,
    RayNodes,
    map_nodes,
    read_nodes,
)
from refold.engines.ray.tasks import connected, load_ray
from refold.errors import BadInput, BadValue, RefoldError
from refold.model import Cluster, Seconds, Tenant
from refold.server import (
    Admission,
    BackendOptions,
    ClusterEngine,
    EngineParts,
    Inbox,
    LiveState,
    ServedBackend,
    ServeRequest,
    StatusOf,
    load_daemon_id,
    on_termination,
    serve_cluster,
)

DAEMON_KEY = "ray-daemon"
"""Key in the store's `meta` table: the id of the daemon."""

NODE_POLL: Seconds = 2.0
MAX_SILENCE: Seconds = 8.0
"""How long the head node may not answer before the daemon disconnects. Ray would end the daemon later."""

NO_HEAD = "the head node does not answer"

log = logging.getLogger("refold")


class RayEngine(ClusterEngine):
    """The nodes of a Ray cluster. `daemon`: tells the runs of this daemon from those of others.

    `levels`: labels of nodes that name their domains, outermost first.

    When the head node is lost, the daemon continues without a connection, with the same nodes, all of which are down;
    when one is back, with the nodes that it has then.
    """

    def __init__(
        self, connection: RayConnection, daemon: str, tenants: tuple[Tenant, ...] = (), levels: tuple[str, ...] = ()
    ) -> None:
        self._connection = connection
        self._daemon = daemon
        self._tenants = tenants
        self._levels = levels
        self._known = KnownNodes()
        self._nodes: RayNodes | None = None
        self._is_connected = True
        self._is_lost = False

    async def connect(self) -> str:
        """Read the nodes; return the version of Ray."""
        self._known = KnownNodes(await asyncio.to_thread(self._read_nodes))
        self.rebuild()
        return f"Ray {self._connection.ray.__version__}, {len(self._known.nodes)} nodes with GPUs"

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
        """Take the nodes as they were last read. Nothing uses the connection: give it up if the head node is lost."""
        if self._is_lost and self._is_connected:
            self._connection.disconnect()
            self._is_connected = False
        try:
            self._nodes = map_nodes(list(self._known.nodes.values()), self._tenants, self._levels)
        except BadValue as error:
            raise BadInput(str(error)) from None

    def history(self) -> list[PastJob]:
        """Return nothing: Ray does not tell what jobs have used."""
        return []

    def make_backend(self, options: BackendOptions) -> ServedBackend:
        """Return a back end for the cluster as it is."""
        if not self._is_connected:
            return DisconnectedBackend()
        return RayBackend(
            options.report,
            self._connection.ray,
            self.nodes,
            options.logs,
            self._daemon,
            grace=options.grace,
            exported=options.exported,
            secrets=options.secrets,
            max_output_bytes=options.max_output_bytes,
        )

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return what follows the nodes. `end`: ends the daemon, if they have changed."""
        del admission, status_of
        reports = RayNodeReports(state, self.nodes.nodes)
        follow = self._follow_nodes if self._is_connected else self._wait_for_head
        return EngineParts([], [follow(reports, inbox, end)])

    async def _follow_nodes(self, reports: RayNodeReports, inbox: Inbox, end: Callable[[], None]) -> None:
        """Report changes of nodes; end the daemon when the cluster is no longer the one that it schedules, or lost."""
        answered_at = monotonic()
        while monotonic() < answered_at + MAX_SILENCE:
            before = reports.current_runs()
            read = await self._read()
            if read is not None:
                answered_at = monotonic()
                found, free = read
                if self._known.update(found, monotonic()):
                    log.info("the nodes of Ray have changed: continuing with the new cluster")
                    end()
                    return
                for event in reports.events(found.keys(), free, (before | reports.current_runs()).values()):
                    inbox.report(event)
            await asyncio.sleep(NODE_POLL)
        log.warning("Ray does not answer at %s: its head node is lost; waiting for it", self._connection.address)
        self._is_lost = True
        end()

    async def _wait_for_head(self, reports: RayNodeReports, inbox: Inbox, end: Callable[[], None]) -> None:
        """Connect again as soon as there is a head node, and end the daemon when it has nodes with GPUs."""
        for event in reports.lost(NO_HEAD):
            inbox.report(event)
        while not (found := await self._reconnect()):
            await asyncio.sleep(NODE_POLL)
        log.info("Ray answers again: continuing with its nodes. Runs that it does not have any more are lost")
        self._known, self._is_lost = KnownNodes(found), False
        end()

    async def _reconnect(self) -> dict[str, RayNode]:
        """Connect if that is possible; return the nodes with GPUs. Without a head node, give the connection up."""
        if not self._is_connected:
            if not await asyncio.to_thread(self._connection.is_reachable):
                return {}
            try:
                await asyncio.to_thread(self._connection.connect)
            except RefoldError as error:
                log.warning("%s", error)
                return {}
            self._is_connected = True
        read = await self._read()
        if read is None:
            await asyncio.to_thread(self._connection.disconnect)
            self._is_connected = False
        return read[0] if read is not None else {}

    async def _read(self) -> tuple[dict[str, RayNode], FreeResources] | None:
        """Return the nodes by name, and what is free on them; None if the head node does not answer."""
        if not await asyncio.to_thread(self._connection.is_reachable):
            return None
        try:
            async with asyncio.timeout(MAX_SILENCE):
                nodes = await asyncio.to_thread(self._read_nodes)
                return nodes, await asyncio.to_thread(self._connection.free_resources)
        except TimeoutError:
            return None

    def _read_nodes(self) -> dict[str, RayNode]:
        return {node.name: node for node in read_nodes(self._connection.ray.nodes())}


# Serve a Ray cluster: each instance of a run is an actor.

ADDRESS = "auto"
"""The Ray cluster to serve: that of the variable RAY_ADDRESS, or of this machine. None is started."""


def serve_ray(request: ServeRequest) -> None:
    """Serve until a signal ends the daemon. Jobs continue."""
    ray = load_ray("refold serve --on ray")

    async def serve() -> None:
        ended = asyncio.Event()
        on_termination(ended.set)
        daemon_id = await asyncio.to_thread(load_daemon_id, request.folder, DAEMON_KEY)
        config = request.config
        engine = RayEngine(RayConnection(ray), daemon_id, config.tenants, config.ray.levels)
        await serve_cluster(request, engine, engine.connect(), ended)

    with connected(ray, ADDRESS):
        asyncio.run(serve())
    request.say("stopped; running jobs continue, and `refold serve --on ray` takes control of them again")
