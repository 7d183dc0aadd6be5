"""The journal of a compiled replay: the same entries that the general simulator writes, made from its columns.

The loop over the steps is written out, since it takes most of the time of a simulation with a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isnan
from typing import NamedTuple

import numpy as np

from refold.core import Entry, Event, JobSubmitted, RunFinished, StartRun, Woke
from refold.model import Allocation, Job, Reason, Wait
from refold.placement import Ints, shortage_from_counts
from refold.simulator.replays.columns import ReplayResult
from refold.simulator.replays.loop import JournalNotes

StepRanges = Iterator[tuple[int, int]]
"""For each step, the first of its tasks in a sorted list, and the first one of the next step."""


def journal_entries(jobs: Sequence[Job], replayed: ReplayResult, notes: JournalNotes, nodes: int) -> Iterator[Entry]:
    """Yield the entry of every step. All jobs, sorted by submission, have run; the cluster has so many nodes.

    There is a step whenever jobs end or are submitted, and at each reserved start that was set as a wake-up. Events are
    in the order of the general simulator: ends in the order of the starts, then submissions. A wake-up is an event like
    the ends of runs: those that were started up to the step in which it was set come before it.
    """
    times = np.asarray(notes.times)
    steps = int(np.count_nonzero(~np.isnan(times)))
    starting, ending, noting, ranges = _by_step(replayed, notes, steps)
    ids, allocation = [job.id for job in jobs], _allocations(replayed)
    start_step: list[int] = replayed.start_step.tolist()
    may_fit, shortages = np.asarray(notes.may_fit).tolist(), np.asarray(notes.shortages)
    waiting = 0
    for now, wake_at, wake_set, (end, next_end), (arrival, next_arrival), (start, next_start), (note, next_note) in zip(
        times[1 : steps + 1].tolist(),
        [None if isnan(at) else at for at in np.asarray(notes.wake_at)[1 : steps + 1].tolist()],
        np.asarray(notes.wake_set)[1 : steps + 1].tolist(),
        *ranges,
        strict=True,
    ):
        events: tuple[Event, ...]
        if wake_set or next_end - end + next_arrival - arrival > 1:
            finished: list[Event] = [RunFinished(ids[task], 1) for task in ending[end:next_end]]
            if wake_set:
                before = sum(start_step[task] <= wake_set for task in ending[end:next_end])
                finished.insert(before, Woke())
            events = (*finished, *map(JobSubmitted, jobs[arrival:next_arrival]))
        else:  # most steps have one event
            events = (JobSubmitted(jobs[arrival]) if arrival < next_arrival else RunFinished(ids[ending[end]], 1),)
        starts = starting[start:next_start]
        orders = tuple([StartRun(ids[task], 1, allocation(task)) for task in starts]) if starts else ()
        waiting += next_arrival - arrival - len(starts)
        waits: tuple[Wait, ...] = ()
        if waiting and (arrival < next_arrival or note < next_note):
            noted, arrived = noting[note:next_note], range(arrival, next_arrival)
            lacking = [_lacks_resources(jobs[task], shortages[task], nodes) for task in noted]
            reserved = [Wait(ids[task], Reason.RESERVED) for task in arrived if may_fit[task]]
            behind = [task for task in arrived if not may_fit[task] and task not in noted and task not in starts]
            waits = (*lacking, *reserved, *_behind_others(ids, behind, waiting))
        yield Entry(now, events, orders, waits, wake_at=wake_at)


class _TasksByStep(NamedTuple):
    """Tasks in the order in which they start, end and are noted, and the ranges of each step: ends, arrivals, …"""

    starting: list[int]
    ending: list[int]
    noting: list[int]
    ranges: tuple[StepRanges, StepRanges, StepRanges, StepRanges]


def _by_step(replayed: ReplayResult, notes: JournalNotes, steps: int) -> _TasksByStep:
    by_start = replayed.start_order()
    by_end = by_start[np.argsort(replayed.end_step[by_start], kind="stable")]
    blocked_number = np.asarray(notes.blocked_number)
    blocked = np.flatnonzero(blocked_number >= 0)
    blocked = blocked[np.argsort(blocked_number[blocked])]
    ranges = (
        _ranges(replayed.end_step[by_end], steps),
        _ranges(np.asarray(notes.arrival_step), steps),
        _ranges(replayed.start_step[by_start], steps),
        _ranges(np.asarray(notes.blocked_step)[blocked], steps),
    )
    return _TasksByStep(by_start.tolist(), by_end.tolist(), blocked.tolist(), ranges)


def _ranges(steps_of_tasks: Ints, steps: int) -> StepRanges:
    return pairwise(np.searchsorted(steps_of_tasks, np.arange(1, steps + 2)).tolist())


def _allocations(replayed: ReplayResult) -> Callable[[int], Allocation]:
    """Return a function that returns the allocation of a task; tasks with the same demand and GPUs share one."""
    demand_of: list[int] = replayed.tasks.demand_of.tolist()
    first_row: list[int] = replayed.first_row.tolist()
    rows: list[list[int]] = replayed.placements.tolist()
    known: dict[tuple[int, ...], Allocation] = {}

    def allocation(task: int) -> Allocation:
        first, end = first_row[task], first_row[task + 1]
        if end - first > 1:
            return Allocation(replayed.placement(task))
        key = (demand_of[task], *rows[first])
        if (found := known.get(key)) is None:
            found = known[key] = Allocation(replayed.placement(task))
        return found

    return allocation


def _lacks_resources(job: Job, counts: Ints, nodes: int) -> Wait:
    return Wait(job.id, Reason.RESOURCES, shortage=shortage_from_counts(job.demand, nodes, counts))


def _behind_others(ids: Sequence[str], behind: Sequence[int], waiting: int) -> list[Wait]:
    """Return the waits of new jobs that were not considered, because others are ahead of them."""
    ahead = waiting - len(behind)
    return [Wait(ids[task], Reason.PRIORITY, ahead=ahead + place) for place, task in enumerate(behind)]
