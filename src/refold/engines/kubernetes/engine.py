"""A Kubernetes cluster as what the daemon schedules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from pathlib import Path

from msgspec.structs import replace

from refold.client.api import Submission
from refold.core import PastJob
from refold.engines.kubernetes.access import Access, find_access, own_namespace
from refold.engines.kubernetes.api_server import ApiError, ApiServer, as_dict
from refold.engines.kubernetes.backend import KubernetesBackend
from refold.engines.kubernetes.gang_queue import CALLER, GangQueue, LocalQueues
from refold.engines.kubernetes.gangs import DaemonIdentity
from refold.engines.kubernetes.job_objects import OwnJobs
from refold.engines.kubernetes.leadership import Leadership
from refold.engines.kubernetes.mirror import Changed, Mirror
from refold.engines.kubernetes.nodes import NodeMap, NodeReports, is_unchanged, kueue_levels, map_nodes
from refold.engines.kubernetes.objects import ApiNode
from refold.engines.kubernetes.observation import past_gangs
from refold.engines.kubernetes.own_jobs import own_constraints
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.pod_notes import PodNotes
from refold.engines.kubernetes.pod_output import PodOutput
from refold.engines.kubernetes.resources import GPU_RESOURCE
from refold.errors import BadInput, BadValue
from refold.model import Cluster, Job, Seconds, Tenant
from refold.server import (
    Admission,
    BackendOptions,
    ClusterEngine,
    EngineParts,
    Inbox,
    LiveState,
    Metric,
    ServeRequest,
    StatusOf,
    load_daemon_id,
    on_termination,
    run_until_done,
    serve_cluster,
)

REBUILD_DELAY: Seconds = 2.0
"""How long to wait for further changes of the nodes before the daemon continues with another cluster."""

log = logging.getLogger("refold")


BINDING_KEY = "kubernetes-binding-key"
"""Key in the store's `meta` table: what the daemon signs bindings with."""


class KubernetesEngine(ClusterEngine):
    """A connection to a cluster, and the cluster as it was when the daemon began to schedule it.

    Create it inside a running event loop.
    """

    def __init__(
        self,
        access: Access,
        daemon: DaemonIdentity,
        own: OwnJobs,
        tenants: tuple[Tenant, ...] = (),
        guard: Callable[[], None] | None = None,
        levels: tuple[str, ...] = (),
        start_timeout: Seconds = inf,
    ) -> None:
        """`guard`: raises ApiError while nothing may be changed in the cluster.

        `levels`: labels of nodes that name their domains, outermost first; none: those of Kueue's Topology.
        `start_timeout`: how long bound pods may take to start.
        """
        self._api = ApiServer(access, guard=guard)
        self._own = own
        self._tenants = tenants
        self._levels = levels
        self._start_timeout = start_timeout
        self._backend: KubernetesBackend | None = None
        self._mirror = Mirror(self._api, daemon)
        self._known: dict[str, ApiNode] = {}
        """The nodes of the cluster, as they were when it was last compared with Kubernetes."""
        self._nodes: NodeMap | None = None

    async def connect(self) -> str:
        """Follow the cluster; return its version. Raises if the API server does not answer."""
        try:
            version = as_dict(await asyncio.to_thread(self._api.call, "GET", "/version"))
            self._levels = self._levels or await asyncio.to_thread(kueue_levels, self._api)
        except ApiError as error:
            raise BadInput(str(error)) from None
        await self._mirror.start()
        self.rebuild()
        return str(version.get("gitVersion", ""))

    async def close(self) -> None:
        await self._mirror.stop()
        self._api.close()

    @property
    def nodes(self) -> NodeMap:
        assert self._nodes is not None, "connect first"
        return self._nodes

    def rebuild(self) -> None:
        self._known = dict(self._mirror.nodes)
        try:
            self._nodes = self._map()
        except BadValue as error:
            raise BadInput(str(error)) from None

    def _map(self) -> NodeMap:
        return map_nodes(self._known.values(), tenants=self._tenants, levels=self._levels)

    @property
    def cluster(self) -> Cluster:
        return self.nodes.cluster

    def make_backend(self, options: BackendOptions) -> KubernetesBackend:
        """Return a back end for the cluster as it is."""
        self._backend = KubernetesBackend(
            options.report, self._api, self._mirror, self.nodes, self._own, options.grace, self._start_timeout
        )
        return self._backend

    def run_note(self, job: str) -> str:
        """Return what the kubelet says about a run that has not started, or which budget delays its end."""
        return "" if self._backend is None else self._backend.run_note(job)

    def history(self) -> list[PastJob]:
        """Return the gangs of this cluster that have succeeded without this daemon."""
        others = [pod for pod in self._mirror.pods.values() if self._mirror.run_of(pod) is None]
        return past_gangs(self.nodes, others)

    def complete(self, submission: Submission, job: Job) -> Job:
        """Limit a submitted command to the nodes that its pods may be on. Raises BadInput if there are none."""
        allowed = self.nodes.allowed_nodes(own_constraints(job))
        if allowed is not None and not len(allowed) and not submission.allow_impossible:
            what = f"has {GPU_RESOURCE} and " if job.demand.gpus else ""
            raise BadInput(
                f"no node of the cluster {what}admits pods that tolerate no taints, as those of commands; to submit it"
                " for nodes that will be added, set allow_impossible (--allow-impossible)"
            )
        return replace(job, demand=replace(job.demand, allowed_nodes=allowed))

    def make_output(self, state: LiveState, logs: Path, max_bytes: int) -> PodOutput:
        """Return what copies the output of pods to the files of runs, at most this much of each instance."""
        return PodOutput(self._api, self._mirror, state, logs, max_bytes)

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return the parts that connect the queue with the cluster. `end`: ends the daemon, if the nodes change."""
        notes = PodNotes(state, self._api, self._mirror, lambda job: status_of(CALLER, job))
        owners, queues = Owners(self._api), LocalQueues(self._api)
        queue = GangQueue(state, inbox, admission, self._mirror, owners, queues, self.nodes, notes)
        reports = NodeReports(state, inbox, self._mirror, self.nodes)
        return EngineParts([queue], [queue.run(), notes.run(), self._follow_nodes(reports, queue, end)], self._metrics)

    def _metrics(self) -> list[Metric]:
        return [] if self._backend is None else self._backend.metrics()

    async def _follow_nodes(self, reports: NodeReports, queue: GangQueue, end: Callable[[], None]) -> None:
        """Report changes of nodes; end the daemon when the cluster is no longer the one that it schedules."""
        changes = self._mirror.follow()
        changed = Changed(self._mirror.nodes.keys() | {group.node.name for group in self.nodes.groups}, ())
        try:
            while not self._has_changed(changed, queue):
                reports.report(changed.nodes)
                changed = await changes.get()
            log.info("the nodes have changed: continuing with the new cluster")
            await asyncio.sleep(REBUILD_DELAY)
            end()
        finally:
            self._mirror.unfollow(changes)

    def _has_changed(self, changed: Changed, queue: GangQueue) -> bool:
        """Whether the cluster is another one now. If not, jobs are told where they may be placed.

        A node that is missing is down, not removed.
        """
        present = {name: self._mirror.nodes[name] for name in changed.nodes if name in self._mirror.nodes}
        news = {
            name: node
            for name, node in present.items()
            if name not in self._known or not is_unchanged(self._known[name], node)
        }
        if not news:
            return False
        self._known |= news
        if self._map().cluster != self.nodes.cluster:
            return True
        for node in news.values():
            self.nodes.update(node)
        queue.nodes_changed()
        return False


# Serve a Kubernetes cluster, while no other daemon does.

BINDING_KEY_BYTES = 32


def serve_kubernetes(request: ServeRequest, kubeconfig: Path | None, standby: bool) -> None:
    """Serve until a signal ends the daemon. Pods continue. `standby`: wait until no other daemon serves the cluster."""
    run_until_done(_serve(request, kubeconfig, standby))


async def _serve(request: ServeRequest, kubeconfig: Path | None, standby: bool) -> None:
    access, given, ended = find_access(kubeconfig), request.config.kubernetes, asyncio.Event()
    on_termination(ended.set)
    leadership = Leadership(access, own_namespace() or given.namespace, request.folder, ended)
    try:
        daemon_id = await leadership.acquire(standby, request.say)
        if not daemon_id:
            return
        own = OwnJobs(given.namespace, given.image, given.volume_claim)
        key = await asyncio.to_thread(load_daemon_id, request.folder, BINDING_KEY, BINDING_KEY_BYTES)
        daemon, tenants = DaemonIdentity(daemon_id, key), request.config.tenants
        engine = KubernetesEngine(access, daemon, own, tenants, leadership.check, given.levels, given.start_timeout)
        try:
            await serve_cluster(request, engine, _connect(engine, access.address), ended)
        finally:
            await engine.close()
    finally:
        await leadership.release()
    leadership.raise_if_lost()
    request.say("stopped; pods continue, and `refold serve --on kubernetes` takes control of them again")


async def _connect(engine: KubernetesEngine, address: str) -> str:
    return f"Kubernetes {await engine.connect()} at {address}"
