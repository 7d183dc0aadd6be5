"""A Slurm cluster as what the daemon schedules: each run is a job of Slurm, or a step in a pool of allocations."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable
from time import time

from msgspec.structs import replace

from refold.client.api import Submission
from refold.core import PastJob
from refold.engines.local import ProcessHost, describe_user, split_privileges
from refold.engines.slurm.backend import SlurmBackend
from refold.engines.slurm.history import read_history
from refold.engines.slurm.job_owners import DaemonOwner, JobOwners, SubmitterOwners
from refold.engines.slurm.node_reports import SlurmNodeReports
from refold.engines.slurm.nodes import SlurmCluster, SlurmNode, expand_hosts, map_nodes, read_nodes
from refold.engines.slurm.pool import HeldPool, PoolSettings
from refold.engines.slurm.programs import Programs, SlurmError
from refold.engines.slurm.refusals import Refusals
from refold.engines.slurm.requests import SlurmSettings
from refold.engines.slurm.site import Site, allowed_nodes, longest_time, read_site
from refold.engines.slurm.topology import SlurmTopology, read_topology, with_levels
from refold.errors import BadInput, BadValue
from refold.model import DAY, Allocation, Cluster, Job, Seconds, Tenant, format_duration
from refold.server import (
    MAX_PAST_JOBS,
    Admission,
    BackendOptions,
    ClusterEngine,
    EngineParts,
    Inbox,
    LiveState,
    ServeRequest,
    StatusOf,
    load_daemon_id,
    on_termination,
    run_until_done,
    serve_cluster,
)
from refold.server.config import Config

DAEMON_KEY = "slurm-daemon"
"""Key in the store's `meta` table: the id of the daemon."""

NODE_POLL: Seconds = 5.0
"""How often the nodes are read, which is one call of scontrol."""

POOL_POLL: Seconds = 2.0
"""How often the allocations of a pool and the nodes are read."""

HISTORY: Seconds = 14 * DAY
"""Jobs of the accounting from which run times are predicted."""

NO_POOL = PoolSettings()

log = logging.getLogger("refold")


class SlurmEngine(ClusterEngine):
    """Slurm, and the nodes of its partitions. `daemon`: tells the runs of this daemon from those of others.

    `host`: starts processes as users, whose jobs are then their own; None: all jobs are of this user.
    """

    def __init__(
        self,
        programs: Programs,
        daemon: str,
        settings: SlurmSettings,
        tenants: tuple[Tenant, ...] = (),
        pool: PoolSettings = NO_POOL,
        host: ProcessHost | None = None,
    ) -> None:
        if host is not None and pool.is_used:
            raise BadInput(
                "serve.user is set, so that jobs run as their users: that is not possible in a pool, where all runs are"
                " of the user who holds it"
            )
        self._programs = programs
        self._owners: JobOwners = DaemonOwner(programs) if host is None else SubmitterOwners(programs, host)
        self._daemon = daemon
        self._settings = settings
        self._pool = HeldPool(programs, daemon, settings, pool)
        self._tenants = tenants
        self._refusals = Refusals()
        self._site = Site()
        self._known: dict[str, SlurmNode] = {}
        self._topology = SlurmTopology()
        self._nodes: SlurmCluster | None = None
        self._reports: SlurmNodeReports | None = None
        self._past: list[PastJob] = []

    async def connect(self) -> str:
        """Read the nodes and the history; return the version. Raises if Slurm does not answer."""
        try:
            version = await asyncio.to_thread(self._programs.run, "sinfo", "--version")
            self._known = await asyncio.to_thread(self._read_nodes)
            self._site = await asyncio.to_thread(read_site, self._programs.run)
            self._topology = await asyncio.to_thread(read_topology, self._programs.run)
            await asyncio.to_thread(self._owners.check)
            await asyncio.to_thread(self._hold_pool)
            expand_hosts(self._settings.option("exclude"))  # or else the nodes could not be followed
        except (SlurmError, BadValue) as error:
            raise BadInput(str(error)) from None
        if missing := self._pool.missing_jobs():
            raise BadInput(f"job {missing[0]} of Slurm, given as a pool, does not exist or is of another user")
        self.rebuild()
        self._past = await asyncio.to_thread(self._read_history)
        return version.strip()

    @property
    def nodes(self) -> SlurmCluster:
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
            self._nodes = self._map(self._known.values())
        except BadValue as error:
            raise BadInput(str(error)) from None
        for note in self._nodes.notes:
            log.warning("%s", note)

    def history(self) -> list[PastJob]:
        """Return the jobs of Slurm's accounting."""
        return self._past

    def make_backend(self, options: BackendOptions) -> SlurmBackend:
        """Return a back end for the cluster as it is."""
        return SlurmBackend(
            options.report,
            self._programs,
            self.nodes,
            options.logs,
            self._daemon,
            self._settings,
            pool=self._pool,
            owners=self._owners,
            refusals=self._refusals,
            grace=options.grace,
            exported=options.exported,
            secrets=options.secrets,
            max_output_bytes=options.max_output_bytes,
        )

    def run_note(self, job: str) -> str:
        """Return why the run of a job has not begun in Slurm."""
        return self._refusals.text(job)

    def retry_delay(self, job: str) -> Seconds:
        """Return how long a job waits that has reached a limit of Slurm."""
        return self._refusals.retry_delay(job)

    def complete(self, _: Submission, job: Job) -> Job:
        """Limit a job to nodes on which it may take as long as it says; raise BadInput if no partition allows that."""
        if self._pool.is_used:
            return job
        longest = max(longest_time(group.node, self._settings, self._site) for group in self.nodes.groups)
        if job.time_limit is not None and job.time_limit > longest:
            raise BadInput(
                f"the time limit is {format_duration(job.time_limit)}, and the partitions of Slurm allow"
                f" {format_duration(longest)}"
            )
        found = allowed_nodes(self.nodes, self._settings, self._site, time(), job)
        return replace(job, demand=replace(job.demand, allowed_nodes=found))

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return what follows the nodes. `end`: ends the daemon, if they have changed."""
        del admission, status_of
        pool = self._pool if self._pool.is_used else None
        self._reports = reports = SlurmNodeReports(state, inbox, self.nodes, pool, self._settings, self._refusals)
        return EngineParts([], [self._follow_nodes(reports, end)])

    async def _follow_nodes(self, reports: SlurmNodeReports, end: Callable[[], None]) -> None:
        """Report changes of nodes; end the daemon when the cluster is no longer the one that it schedules."""
        while True:
            before = reports.current_runs()
            try:
                if self._pool.is_used or self._pool.jobs:
                    busy, jobs_wait = self._busy_nodes(before.values()), reports.jobs_wait()
                    await asyncio.to_thread(self._hold_pool, busy, jobs_wait)
                nodes = await asyncio.to_thread(self._read_nodes)
                site = await asyncio.to_thread(read_site, self._programs.run)
                topology = await asyncio.to_thread(read_topology, self._programs.run)
            except (SlurmError, BadValue) as error:
                log.warning("the nodes of Slurm cannot be read: %s", error)
            else:
                reports.report(nodes, (before | reports.current_runs()).values(), site)
                if self._has_changed(nodes, site, topology):
                    log.info("the nodes of Slurm have changed: continuing with the new cluster")
                    end()
                    return
            await asyncio.sleep(POOL_POLL if self._pool.is_used else NODE_POLL)

    async def release_pool(self) -> None:
        """Release what the pool holds without runs, when the daemon has ended."""
        if self._reports is None or not self._pool.jobs:
            return
        try:
            await asyncio.to_thread(
                self._pool.release_all_idle, self._busy_nodes(self._reports.current_runs().values())
            )
        except SlurmError as error:
            log.warning("the pool cannot be released: %s", error)

    def _hold_pool(self, busy: Collection[str] | None = None, jobs_wait: bool = True) -> None:
        """Read the pool and request what is missing; release what is not needed, if the nodes with runs are known."""
        now = time()
        self._pool.read(now)
        self._pool.adapt(now, busy or (), jobs_wait)
        self._pool.request_missing(now)
        if busy is not None:
            self._pool.release_idle(now, busy)

    def _busy_nodes(self, runs: Iterable[Allocation]) -> set[str]:
        return {self.nodes.groups[share.node].node.name for run in runs for share in run.placement}

    def _has_changed(self, nodes: dict[str, SlurmNode], site: Site, topology: SlurmTopology) -> bool:
        """Whether the cluster would be another one now. A node that is missing is down, not removed."""
        self._site, self._topology = site, topology.after(self._topology)
        known = {**self._known, **nodes}
        try:
            found = self._map(known.values())
        except BadValue as error:
            log.warning("%s; the cluster stays as it was", error)
            return False
        self._known = known
        return found[:1] + found[2:] != self.nodes[:1] + self.nodes[2:]  # all but the states of nodes

    def _map(self, nodes: Iterable[SlurmNode]) -> SlurmCluster:
        partition = self._settings.partition
        mapped = map_nodes(node for node in nodes if not partition or partition in node.partitions)
        found = with_levels(mapped, self._topology)
        cluster, site = replace(found.cluster, tenants=self._tenants), self._site
        return found._replace(cluster=cluster, time_limits=site.time_limits, short_by_default=site.short_by_default)

    def _read_nodes(self) -> dict[str, SlurmNode]:
        return {node.name: node for node in read_nodes(self._programs.run)}

    def _read_history(self) -> list[PastJob]:
        try:
            found = read_history(self._programs.run, self.nodes, time() - HISTORY)
        except (SlurmError, BadInput) as error:
            log.info("no past jobs of Slurm: %s", error)
            return []
        return [PastJob(job, job.work or 0.0) for job in found.trace.jobs][-MAX_PAST_JOBS:]


# Serve a Slurm cluster: each run is a job of Slurm, or a step in the pool.


def serve_slurm(request: ServeRequest) -> None:
    """Serve until a signal ends the daemon. Jobs continue."""
    check_user(os.geteuid(), request.config)
    run_until_done(_serve(request, _split(request) if request.config.serve.user else None))
    request.say("stopped; running jobs continue, and `refold serve --on slurm` takes control of them again")


def check_user(uid: int, config: Config) -> None:
    """Raise BadInput if the jobs of all users would run as root."""
    if uid == 0 and not config.serve.user and not config.slurm.as_root:
        raise BadInput(
            "root has started the daemon, so that the jobs of all who submit to it would run as root. To run them as "
            "their users, give the daemon an account of its own by these lines of refold.yaml: `serve: {user: refold}` "
            "and `users: {allow: all}`. Or start it as another user, as whom all jobs then run, also in a pool; with "
            "`slurm: {as_root: true}` they run as root"
        )


def _split(request: ServeRequest) -> ProcessHost:
    """Continue as `serve.user` beside a helper, without cgroups: runs are not on this machine."""
    config = request.config
    return split_privileges(replace(config, serve=replace(config.serve, cgroup="off")), request.folder.absolute())


async def _serve(request: ServeRequest, host: ProcessHost | None) -> None:
    ended, given = asyncio.Event(), request.config.slurm
    on_termination(ended.set)
    daemon_id = await asyncio.to_thread(load_daemon_id, request.folder, DAEMON_KEY)
    settings = SlurmSettings(given.partition, given.account, given.qos, given.options)
    pool = PoolSettings(given.pool, given.pool_time, given.pool_jobs, given.release_idle_after)
    engine = SlurmEngine(Programs(), daemon_id, settings, request.config.tenants, pool, host)
    await serve_cluster(request, engine, _connect(request, engine), ended)
    await engine.release_pool()


async def _connect(request: ServeRequest, engine: SlurmEngine) -> str:
    return f"{await engine.connect()}. {describe_user(request.config)}"
