"""Slurm as a policy: its main scheduler, which starts jobs in order of priority, and its backfill.

The main scheduler runs when something has changed; a job that does not fit keeps its nodes from all that follow, unless
it names them. The backfill scheduler runs at intervals, if something has changed: in order of priority, it starts the
jobs that can start now, assuming that every job takes all of its time limit, and keeps whole nodes free for the others
from the time at which they can start (slurm.schedmd.com/sched_config.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, inf
from typing import Any, ClassVar

from msgspec.structs import replace

from refold.core import NodeUsed, View
from refold.errors import BadValue
from refold.model import (
    DAY,
    MINUTE,
    NO_CHANGE,
    WHOLE,
    Allocation,
    Decision,
    Demand,
    Job,
    NodeSet,
    Placement,
    Seconds,
    Share,
    Start,
)
from refold.placement import Placer
from refold.policies import Range, SettingRange
from refold.policies.backfill import Bookings
from refold.policies.common import Reasons
from refold.policies.slurm.facts import SiteFacts
from refold.policies.slurm.limits import SharedLimits
from refold.policies.slurm.priorities import Priorities

NO_LIMIT: Seconds = 365 * DAY
"""What Slurm assumes of a job without a time limit."""


class Slurm:
    """Slurm's own order: strict priorities, and backfill with reservations of whole nodes, by time limits."""

    name = "slurm"
    ranges: ClassVar[Mapping[str, SettingRange]] = {"bf_interval": Range(10.0, 300.0)}

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        backfill: bool = True,
        bf_interval: float = 30.0,
        bf_window: float = DAY,
        bf_resolution: float = MINUTE,
        bf_max_job_test: int = 500,
        default_queue_depth: int = 100,
        site: SiteFacts | Mapping[str, Any] | None = None,
    ) -> None:
        """Create the policy.

        The settings are Slurm's, with times in seconds. `backfill`: whether there is a backfill scheduler. `site`:
        priorities, limits, and what is known of jobs; by default, priority is that of the jobs, then age.
        """
        if min(bf_interval, bf_window, bf_resolution) <= 0 or min(bf_max_job_test, default_queue_depth) < 1:
            raise BadValue("bf_interval, bf_window, bf_resolution, bf_max_job_test and default_queue_depth must be > 0")
        self._has_backfill, self._interval, self._window = backfill, bf_interval, bf_window
        self._resolution, self._max_tests, self._depth = bf_resolution, bf_max_job_test, default_queue_depth
        self._placer = Placer(placement, seed)
        facts = SiteFacts.from_settings(site or {})
        self._priorities, self._limits = Priorities(facts), SharedLimits(facts)
        self._named = {name for name, job in facts.jobs.items() if job.names_nodes}
        self._reasons = Reasons()
        self._next_backfill = inf
        """When the backfill scheduler runs next: at the end of an interval in which something has changed."""

    def decide(self, view: View) -> Decision:
        """Start jobs in order of priority, and at the end of an interval those that fit before others."""
        self._placer.observe(view)
        self._priorities.observe(view)
        self._limits.observe(view)
        if not view.waiting:
            self._next_backfill = inf
            self._reasons.clear()
            return NO_CHANGE
        queue = self._queue(view)
        started = self._start_in_order(view, queue)
        if self._is_backfill_due(view):
            ids = {start.job for start in started}
            started += self._backfill(view, [job for job in queue if job.id not in ids])
        self._limits.undo([view.waiting[start.job] for start in started])
        wake_at = min(self._next_backfill, self._limits.next_begin(view))
        waits = self._reasons.collect(view, started)
        return Decision(tuple(started), waits=waits, wake_at=None if wake_at == inf else wake_at)

    def _is_backfill_due(self, view: View) -> bool:
        """Whether an interval has ended in which something has changed; note when the next one does."""
        changes = view.changes
        is_due = view.now >= self._next_backfill
        if is_due:
            self._next_backfill = inf
        if changes.submitted or changes.requeued or changes.removed or changes.started or changes.freed:
            ends = (floor(view.now / self._interval) + 1) * self._interval
            self._next_backfill = min(self._next_backfill, ends) if self._has_backfill else inf
        return is_due

    def _queue(self, view: View) -> list[Job]:
        """Return the jobs that may start, those of the highest priority first."""
        eligible = [job for job in view.waiting.values() if self._limits.is_eligible(view, job)]
        return sorted(eligible, key=self._priorities.rank)

    def _start_in_order(self, view: View, queue: Sequence[Job]) -> list[Start]:
        """Start jobs from the front; nodes on which a job would fit that does not fit now are kept for it."""
        started: list[Start] = []
        nodes = view.cluster.nodes
        blocked: set[int] = set()
        for job in queue[: self._depth]:
            if len(blocked) == len(nodes):
                break
            if not self._limits.allow(job):
                continue
            placement = view.trial().place(self._placer, _without(job.demand, blocked, len(nodes)))
            if placement is not None:
                started.append(self._start(job, placement))
                continue
            self._reasons.note_resources(view, job)
            allowed = job.demand.allowed_nodes
            wanted = {index for index, node in enumerate(nodes) if job.demand.accepts(index, node)}
            blocked |= set(allowed) if job.id in self._named and allowed is not None else wanted
        return started

    def _start(self, job: Job, placement: Placement) -> Start:
        self._limits.start(job)
        return Start(job.id, Allocation(placement))

    def _backfill(self, view: View, queue: Sequence[Job]) -> list[Start]:
        """Start jobs that delay none of higher priority, if all jobs take all of their time limits."""
        started: list[Start] = []
        tested = _until_last_that_fits(view, queue[: self._max_tests])
        if not tested:
            return started
        bookings, now = self._bookings(view), view.now
        for job in tested:
            if not self._limits.allow(job):
                continue
            limit = job.time_limit or NO_LIMIT
            found = bookings.find(job.demand, limit, now, now + self._window)
            if found is None:
                continue
            if found.start <= now and view.trial().take(found.placement):
                started.append(self._start(job, found.placement))
                bookings.table.book(found.placement, now, now + limit)
                continue
            begin = floor(found.start / self._resolution) * self._resolution
            end = ceil(found.end / self._resolution) * self._resolution
            bookings.table.book(_whole_nodes(view, {share.node for share in found.placement}), max(begin, now), end)
        return started

    def _bookings(self, view: View) -> Bookings:
        """Return what is in use until the time limits of the runs."""
        bookings, now = Bookings(view.cluster, self._placer), view.now
        for node in range(len(view.cluster.nodes)):
            bookings.set_node_up(node, view.is_up(node))
            used = view.used_by_others(node)
            if used != NodeUsed(node):
                bookings.table.book((Share(node, used.gpus, WHOLE, used.cpu_milli, used.memory_mib),), now, inf)
        for node, gpu in view.down_gpus:
            bookings.set_gpu_up(node, gpu, False)
        for run in view.runs.values():
            limit = view.active[run.job].time_limit or NO_LIMIT
            bookings.table.book(run.allocation.placement, now, max(run.since + limit, now + self._resolution))
        return bookings


def _until_last_that_fits(view: View, queue: Sequence[Job]) -> Sequence[Job]:
    """Return the queue up to the last job for which there is room now: jobs behind it can delay none."""
    free = view.trial().free
    fits = {demand: free.fits_one_instance(demand) for demand in {job.demand for job in queue}}
    count = next((len(queue) - index for index, job in enumerate(reversed(queue)) if fits[job.demand]), 0)
    return queue[:count]


def _without(demand: Demand, blocked: set[int], nodes: int) -> Demand:
    """Return a demand that is not placed on some nodes."""
    if not blocked:
        return demand
    allowed: Iterable[int] = range(nodes) if demand.allowed_nodes is None else demand.allowed_nodes
    return replace(demand, allowed_nodes=NodeSet.of(node for node in allowed if node not in blocked))


def _whole_nodes(view: View, nodes: set[int]) -> Placement:
    found = ((index, view.cluster.nodes[index]) for index in sorted(nodes))
    return tuple(Share(index, tuple(range(node.gpus)), WHOLE, node.cpu_milli, node.memory_mib) for index, node in found)
