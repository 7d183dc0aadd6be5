"""Jobs that wait for fewer domains, such as one rack, because they would be slower across those that have room now.

What a start now costs is compared with a wait until enough nodes are empty in as few domains as possible: the time
until the job ends, and the GPU time that others lose meanwhile, to a slower run or to nodes that are kept free. A job
waits at most for as long as the slower run would take longer, from the first time on that it could have started.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from refold.model import Allocation, Cluster, DomainWait, Seconds, spread_of
from refold.placement import Floats, Ints
from refold.planning.plans import Spread
from refold.policies.common import Draft
from refold.policies.refold.jobs import RoundJobs

MIN_SLOWDOWN = 1.05
"""A job that loses less across the domains that have room now starts there."""

MAX_WAITS = 16
"""How many jobs may wait for domains at once."""


class DomainWaits:
    """The jobs that wait for domains, from round to round."""

    def __init__(self, cluster: Cluster) -> None:
        self._domains = _Domains(cluster)
        self._until: dict[str, Seconds] = {}
        """Until when each job may wait."""
        self.waits: dict[str, DomainWait] = {}
        """The jobs that wait since the last round."""
        self._ends: Floats | None = None
        """When the runs on each node are expected to have ended, in seconds from now."""

    def begin_round(self, jobs: RoundJobs) -> None:
        """Forget the last round, and jobs that have started or are gone."""
        waiting = jobs.view.waiting
        self._until = {job_id: until for job_id, until in self._until.items() if job_id in waiting}
        self.waits, self._ends = {}, None

    def wake_at(self) -> Seconds:
        """Return when the first of the jobs starts anywhere."""
        return min((self._until[job_id] for job_id in self.waits), default=inf)

    def hold_back(self, jobs: RoundJobs, draft: Draft, job_id: str, rate: float) -> bool:
        """Return whether a job, just placed on free GPUs, is to wait instead; the nodes it waits for are then closed.

        `rate`: delay of waiting jobs per GPU-second, in seconds.
        """
        held = draft.allocation_of(job_id)
        if held is None or len(held.placement) == 1 or len(self.waits) >= MAX_WAITS or jobs.is_overdue(job_id):
            return False
        slowdown, now = jobs.slowdown(job_id, held), jobs.view.now
        if slowdown < MIN_SLOWDOWN:
            return False
        remaining = jobs.remaining_time(job_id, held) / slowdown
        if now >= self._until.setdefault(job_id, now + (slowdown - 1) * remaining):
            return False
        packed = jobs.packed(held)
        chosen = self._domains.soonest(held, packed, self._empty_times(jobs, draft, job_id))
        if chosen is None or chosen.wait <= 0:
            return False
        weight = 1 + rate * sum(packed[-1])
        if chosen.wait + rate * chosen.idle_gpu_seconds >= remaining * (slowdown - 1) * weight:
            return False
        draft.withdraw(job_id)
        draft.close_nodes(chosen.nodes)
        level = self._domains.crossed_level(spread_of(jobs.view.cluster, held.placement), packed)
        self.waits[job_id] = DomainWait(chosen.wait, *level, slowdown)
        return True

    def _empty_times(self, jobs: RoundJobs, draft: Draft, job_id: str) -> Floats:
        """Return in how many seconds each node is expected to be empty, apart from a job; never: infinity."""
        if self._ends is None:
            self._ends = np.zeros(len(jobs.view.cluster.nodes))
            for run in jobs.view.runs.values():
                _extend(self._ends, run.allocation, jobs.remaining_time(run.job, run.allocation))
        times = self._ends.copy()
        times[list(draft.free.down_nodes)] = inf
        for other in draft.starting() - {job_id}:
            held = draft.allocation_of(other)
            if held is not None:
                _extend(times, held, jobs.remaining_time(other, held))
        return times


def _extend(ends: Floats, held: Allocation, seconds: Seconds) -> None:
    for share in held.placement:
        ends[share.node] = max(ends[share.node], seconds)


class _Chosen(NamedTuple):
    """Nodes to wait for, when they will be empty, and for how many GPU-seconds they are idle until then."""

    nodes: list[int]
    wait: Seconds
    idle_gpu_seconds: float


class _Domains:
    """The innermost domains of a cluster, and those around them, by number."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _of_node(self) -> Ints:
        """The domain of each node at each level."""
        rows = []
        for level in range(len(self._cluster.levels)):
            numbers: dict[tuple[str, ...], int] = {}
            paths = (self._cluster.domain(node, level) for node in range(len(self._cluster.nodes)))
            rows.append([numbers.setdefault(path, len(numbers)) for path in paths])
        return np.array(rows, dtype=np.int64)

    @cached_property
    def _gpus(self) -> Ints:
        return np.array([node.gpus for node in self._cluster.nodes], dtype=np.int64)

    @cached_property
    def _types(self) -> Ints:
        """The GPU type of each node, by number."""
        numbers = {name: number for number, name in enumerate(self._cluster.type_names)}
        return np.array([numbers.get(node.gpu_type, -1) for node in self._cluster.nodes], dtype=np.int64)

    def soonest(self, held: Allocation, packed: Spread, empty: Floats) -> _Chosen | None:
        """Return the nodes of a spread that are empty soonest; None: there are not enough.

        The first domains that have room, all in one domain of the outer level; in each, the first nodes that suffice.
        """
        each, needed = len(held.placement[0].gpus), packed[-1][0]
        same_type = self._types == self._types[held.placement[0].node]
        nodes = (same_type & np.isfinite(empty) & (self._gpus >= each)).nonzero()[0]
        order = np.argsort(empty[nodes], kind="stable")
        nodes = nodes[order[np.argsort(self._of_node[-1, nodes[order]], kind="stable")]]  # by domain, then by time
        domain, room = self._of_node[-1, nodes], self._gpus[nodes] // each * each
        total = np.cumsum(room)
        first = np.flatnonzero(np.diff(domain, prepend=-1))
        before = total - room  # room of the nodes that are empty earlier, from here on in the same domain
        before -= np.repeat(before[first], np.diff(first, append=len(nodes)))
        is_part = before < needed
        complete = np.flatnonzero(is_part & (before + room >= needed))
        complete = complete[np.lexsort((nodes[complete], empty[nodes[complete]]))]
        found: dict[int, list[int]] = {}
        for row, around in zip(complete.tolist(), self._outer(packed)[nodes[complete]].tolist(), strict=True):
            chosen = found.setdefault(around, [])
            chosen.append(int(domain[row]))
            if len(chosen) == len(packed[-1]):
                return self._chosen(nodes[is_part & np.isin(domain, chosen)].tolist(), empty)
        return None

    def _outer(self, packed: Spread) -> Ints:
        """Return the domain of each node at the innermost level where one is enough; 0: there is none."""
        enough = [level for level, domains in enumerate(packed) if len(domains) == 1]
        return self._of_node[enough[-1]] if enough else np.zeros_like(self._gpus)

    def _chosen(self, nodes: list[int], empty: Floats) -> _Chosen:
        wait = float(empty[nodes].max())
        return _Chosen(nodes, wait, float(((wait - empty[nodes]) * self._gpus[nodes]).sum()))

    def crossed_level(self, now: Spread, packed: Spread) -> tuple[str, int, int]:
        """Return the outermost level at which a spread has more domains, with their number when packed and now."""
        for level, (few, many) in enumerate(zip(packed, now, strict=True)):
            if len(many) > len(few):
                return self._cluster.level_names[level], len(few), len(many)
        return self._cluster.level_names[-1], len(packed[-1]), len(now[-1])
