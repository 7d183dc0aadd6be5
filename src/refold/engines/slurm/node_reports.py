"""What the daemon is told about the nodes of Slurm: their state, what others use, and which jobs may have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from math import inf
from time import time

from refold.core import Event, NodeDrained, NodeLost, NodeReturned, NodesAllowed
from refold.engines.slurm.nodes import GpuGroup, SlurmCluster, SlurmNode
from refold.engines.slurm.pool import HeldPool
from refold.engines.slurm.refusals import PREFIX, Refusals
from refold.engines.slurm.requests import DEFAULT_SETTINGS, SlurmSettings, needed_time
from refold.engines.slurm.site import LONGEST_GRACE, Site, allowed_nodes, drain_reason
from refold.model import WHOLE, Allocation, NodeSet, Seconds
from refold.server import (
    Inbox,
    LiveState,
    UseByOthers,
)


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
