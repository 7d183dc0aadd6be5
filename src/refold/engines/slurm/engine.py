"""A Slurm cluster as what the daemon schedules: each run is a job of Slurm, or a step in a pool of allocations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from math import inf
from time import time

from msgspec.structs import replace

from refold.client.api import Submission
from refold.core import Event, NodeDrained, NodeLost, NodeReturned, NodesAllowed, PastJob
from refold.engines.local import ProcessHost
from refold.engines.slurm.backend import SlurmBackend
from refold.engines.slurm.history import read_history
from refold.engines.slurm.job_owners import DaemonOwner, JobOwners, SubmitterOwners
from refold.engines.slurm.nodes import GpuGroup, SlurmCluster, SlurmNode, expand_hosts, map_nodes, read_nodes
from refold.engines.slurm.pool import HeldPool, PoolSettings
from refold.engines.slurm.programs import Programs, SlurmError
from refold.engines.slurm.refusals import PREFIX, Refusals
from refold.engines.slurm.requests import DEFAULT_SETTINGS, SlurmSettings, needed_time
from refold.engines.slurm.site import LONGEST_GRACE, Site, allowed_nodes, drain_reason, longest_time, read_site
from refold.errors import BadInput, BadValue
from refold.model import DAY, WHOLE, Allocation, Cluster, Job, NodeSet, Seconds, Tenant, format_duration
from refold.server import (
    MAX_PAST_JOBS,
    Admission,
    BackendOptions,
    ClusterEngine,
    EngineParts,
    Inbox,
    LiveState,
    StatusOf,
    UseByOthers,
)

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


class SlurmNodeReports:
    """Reports the state and the use of nodes. `pool`: what is held; without one, all nodes can be used.

    `settings`: how runs are submitted. `refusals`: where they were refused. `grace`: the grace period of runs.
    """

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        nodes: SlurmCluster,
        pool: HeldPool | None = None,
        settings: SlurmSettings = DEFAULT_SETTINGS,
        refusals: Refusals | None = None,
    ) -> None:
        self._state = state
        self._inbox = inbox
        self._nodes = nodes
        self._pool = pool
        self._settings = settings
        self._refusals = refusals or Refusals()
        self._site = Site()
        self._use_by_others = UseByOthers(state)

    def current_runs(self) -> dict[tuple[str, int], Allocation]:
        """Return what the runs hold now."""
        return {(run.job, run.number): run.allocation for run in self._state.view.runs.values()}

    def jobs_wait(self) -> bool:
        """Whether jobs wait that could run if there were free nodes."""
        return bool(self._state.view.waiting)

    def report(self, nodes: Mapping[str, SlurmNode], runs: Collection[Allocation], site: Site | None = None) -> None:
        """Report what has changed. `runs`: those that may have been in Slurm when the nodes were read.

        `site`: partitions and reservations, if they were read.
        """
        self._site = site or self._site
        self._report_allowed(time())
        for index, group in enumerate(self._nodes.groups):
            node = nodes.get(group.node.name)
            for event in (self._availability(index, node), self._use(index, group, node, runs)):
                if event is not None:
                    self._inbox.report(event)

    def _availability(self, index: int, node: SlurmNode | None) -> Event | None:
        """Return whether a node can be used, and why not, if that has changed and no operator of Refold decides it."""
        view = self._state.view
        down = node.down_reason if node is not None else "it is not configured any more"
        why = down or (self._drain_reason(node) if node is not None else "")
        is_up, known = view.is_up(index), (view.down_reason(index), view.is_drained(index))
        if not is_up and not known[0].startswith(PREFIX):
            return None
        if not why:
            return None if is_up else NodeReturned(index)
        event = (NodeLost if down else NodeDrained)(index, PREFIX + why)
        return event if is_up or known != (event.why, not down) else None

    def _use(self, index: int, group: GpuGroup, node: SlurmNode | None, runs: Iterable[Allocation]) -> Event | None:
        """Return what others use on a node, if that is not what was reported last.

        CPUs and memory that Slurm has given to runs beyond what their jobs request count as used by others.
        """
        if node is None:
            return None
        gpus, cpus, memory_mib = self._allocated(group, node)
        shares = [] if self._pool is not None else [s for run in runs for s in run.placement if s.node == index]
        gpus -= len({gpu for share in shares for gpu in share.gpus})  # several runs may have parts of one
        cpu = int(cpus * WHOLE * group.share) - sum(share.cpu_milli for share in shares)
        memory = int(memory_mib * group.share) - sum(share.memory_mib for share in shares)
        return self._use_by_others.change(index, gpus, cpu, memory)

    def _drain_reason(self, node: SlurmNode) -> str:
        if self._pool is not None:
            return node.drain_reason or self._pool.drain_reason(node)
        now = time()
        refused = self._refusals.node_reason(node.name, now)
        return refused or drain_reason(node, self._settings, self._site, now, self._needed_time())

    def _report_allowed(self, now: Seconds) -> None:
        """Report which jobs may be placed on other nodes now: a reservation is near, or a partition has changed."""
        view = self._state.view
        found: dict[Seconds | None, NodeSet | None] = {}
        changed: dict[NodeSet | None, list[str]] = {}
        for job in chain(*(jobs.values() for jobs in (view.active, view.waiting, view.held, view.infeasible))):
            if job.time_limit not in found:
                allowed = allowed_nodes(self._nodes, self._settings, self._site, now, job)
                found[job.time_limit] = allowed if self._pool is None else None
            if found[job.time_limit] != job.demand.allowed_nodes:
                changed.setdefault(found[job.time_limit], []).append(job.id)
        for nodes, jobs in changed.items():
            self._inbox.report(NodesAllowed(tuple(jobs), nodes))

    def _needed_time(self) -> Seconds:
        """Return how long the shortest waiting job may take: nodes are closed to all if it cannot start there.

        Without waiting jobs, the next one may take any time.
        """
        waiting = self._state.view.waiting.values()
        return min((needed_time(job, LONGEST_GRACE) for job in waiting), default=inf)

    def _allocated(self, group: GpuGroup, node: SlurmNode) -> tuple[int, int, int]:
        """Return GPUs, CPUs and MiB that cannot be used, or are used by runs: with a pool, what it does not have."""
        if self._pool is None:
            return node.used_gpus.get(group.slurm_type, 0), node.used_cpus, node.used_memory_mib
        place = self._pool.place(node.name)
        if place is None:  # the node is drained
            return 0, 0, 0
        held = place[1]
        gpus = node.gpus.get(group.slurm_type, 0) - held.gpus.get(group.slurm_type, 0)
        return gpus, node.cpus - held.cpus, node.memory_mib - (held.memory_mib or node.memory_mib)


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
        self._nodes: SlurmCluster | None = None
        self._reports: SlurmNodeReports | None = None
        self._past: list[PastJob] = []

    async def connect(self) -> str:
        """Read the nodes and the history; return the version. Raises if Slurm does not answer."""
        try:
            version = await asyncio.to_thread(self._programs.run, "sinfo", "--version")
            self._known = await asyncio.to_thread(self._read_nodes)
            self._site = await asyncio.to_thread(read_site, self._programs.run)
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
            except (SlurmError, BadValue) as error:
                log.warning("the nodes of Slurm cannot be read: %s", error)
            else:
                reports.report(nodes, (before | reports.current_runs()).values(), site)
                if self._has_changed(nodes, site):
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

    def _has_changed(self, nodes: dict[str, SlurmNode], site: Site) -> bool:
        """Whether the cluster would be another one now. A node that is missing is down, not removed."""
        self._site = site
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
        found = map_nodes(node for node in nodes if not partition or partition in node.partitions)
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
