"""The journal of a compiled replay: the same entries that the general simulator writes, made from its columns.

The loops over the steps are written out, since they take most of the time of a simulation with a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isnan
from typing import NamedTuple, Protocol

import numpy as np

from refold.core import Entry, Event, JobSubmitted, RunFinished, StartRun, Woke
from refold.model import Allocation, Job, Reason, Shortage, Wait
from refold.packing import Ints
from refold.replays.columns import ReplayResult
from refold.replays.easy import EasyNotes
from refold.replays.fifo import FifoNotes

StepRanges = Iterator[tuple[int, int]]
"""For each step, the first of its tasks in a sorted list, and the first one of the next step."""


def fifo_entries(jobs: Sequence[Job], replayed: ReplayResult, notes: FifoNotes, nodes: int) -> Iterator[Entry]:
    """Yield the entry of every step. All jobs, sorted by submission, have run; the cluster has so many nodes.

    There is a step whenever jobs end or are submitted. Events are in the order of the general simulator: ends in the
    order of the starts, then submissions.
    """
    steps = max(int(notes.arrival_step.max(initial=0)), int(replayed.end_step.max(initial=0)))
    times = np.empty(steps + 1)
    times[notes.arrival_step], times[replayed.end_step] = replayed.tasks.submitted, replayed.ended
    starting, ending, noting, ranges = _by_step(replayed, notes, steps)
    ids, allocation = [job.id for job in jobs], _allocations(replayed)
    waiting = 0
    for now, (end, next_end), (arrival, next_arrival), (start, next_start), (note, next_note) in zip(
        times[1:].tolist(), *ranges, strict=True
    ):
        events: tuple[Event, ...]
        if end == next_end and arrival + 1 == next_arrival:  # most steps have one event
            events = (JobSubmitted(jobs[arrival]),)
        elif end + 1 == next_end and arrival == next_arrival:
            events = (RunFinished(ids[ending[end]], 1),)
        else:
            finished = [RunFinished(ids[task], 1) for task in ending[end:next_end]]
            events = (*finished, *map(JobSubmitted, jobs[arrival:next_arrival]))
        starts = starting[start:next_start]
        orders = tuple([StartRun(ids[task], 1, allocation(task)) for task in starts]) if starts else ()
        waiting += next_arrival - arrival - len(starts)
        waits: tuple[Wait, ...] = ()
        if waiting and (arrival < next_arrival or note < next_note):
            noted = noting[note:next_note]
            lacking = [_lacks_resources(jobs[task], notes, task, nodes) for task in noted]
            behind = [task for task in range(arrival, next_arrival) if task not in noted and task not in starts]
            waits = (*lacking, *_behind_others(ids, behind, waiting))
        yield Entry(now, events, orders, waits)


def easy_entries(jobs: Sequence[Job], replayed: ReplayResult, notes: EasyNotes, nodes: int) -> Iterator[Entry]:
    """Yield the entry of every step of an EASY replay; like `fifo_entries`.

    There is also a step at each reserved start that was set as a wake-up. A wake-up is an event like the ends of runs:
    those that were started up to the step in which it was set come before it.
    """
    steps = int(np.count_nonzero(~np.isnan(notes.times)))
    starting, ending, noting, ranges = _by_step(replayed, notes, steps)
    ids, allocation = [job.id for job in jobs], _allocations(replayed)
    start_step: list[int] = replayed.start_step.tolist()
    may_fit: list[bool] = notes.may_fit.tolist()
    waiting = 0
    for now, wake_at, wake_set, (end, next_end), (arrival, next_arrival), (start, next_start), (note, next_note) in zip(
        notes.times[1 : steps + 1].tolist(),
        notes.wake_at[1 : steps + 1].tolist(),
        notes.wake_set[1 : steps + 1].tolist(),
        *ranges,
        strict=True,
    ):
        finished: list[Event] = [RunFinished(ids[task], 1) for task in ending[end:next_end]]
        if wake_set:
            before = sum(start_step[task] <= wake_set for task in ending[end:next_end])
            finished.insert(before, Woke())
        events = (*finished, *map(JobSubmitted, jobs[arrival:next_arrival]))
        starts = starting[start:next_start]
        orders = tuple([StartRun(ids[task], 1, allocation(task)) for task in starts]) if starts else ()
        waiting += next_arrival - arrival - len(starts)
        waits: tuple[Wait, ...] = ()
        if waiting and (arrival < next_arrival or note < next_note):
            noted = noting[note:next_note]
            lacking = [_lacks_resources(jobs[task], notes, task, nodes) for task in noted]
            fitting = [task for task in range(arrival, next_arrival) if may_fit[task]]
            behind = [
                task
                for task in range(arrival, next_arrival)
                if not may_fit[task] and task not in noted and task not in starts
            ]
            reserved = [Wait(ids[task], Reason.RESERVED) for task in fitting]
            waits = (*lacking, *reserved, *_behind_others(ids, behind, waiting))
        yield Entry(now, events, orders, waits, (), None if isnan(wake_at) else wake_at)


class BlockedNotes(Protocol):
    """The steps in which tasks arrive and are first found not to fit, of `FifoNotes` and `EasyNotes`."""

    @property
    def arrival_step(self) -> Ints: ...

    @property
    def blocked_step(self) -> Ints: ...

    @property
    def blocked_number(self) -> Ints: ...

    @property
    def shortages(self) -> Ints: ...


class _TasksByStep(NamedTuple):
    """Tasks in the order in which they start, end and are noted, and the ranges of each step: ends, arrivals, …"""

    starting: list[int]
    ending: list[int]
    noting: list[int]
    ranges: tuple[StepRanges, StepRanges, StepRanges, StepRanges]


def _by_step(replayed: ReplayResult, notes: BlockedNotes, steps: int) -> _TasksByStep:
    by_start = np.argsort(replayed.start_number)
    by_end = by_start[np.argsort(replayed.end_step[by_start], kind="stable")]
    blocked = np.flatnonzero(notes.blocked_number >= 0)
    blocked = blocked[np.argsort(notes.blocked_number[blocked])]
    ranges = (
        _ranges(replayed.end_step[by_end], steps),
        _ranges(notes.arrival_step, steps),
        _ranges(replayed.start_step[by_start], steps),
        _ranges(notes.blocked_step[blocked], steps),
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


def _lacks_resources(job: Job, notes: BlockedNotes, task: int, nodes: int) -> Wait:
    fits, down, wrong_type, too_small, few_gpus, few_cpus, little_memory, instances = notes.shortages[task].tolist()
    shortage = Shortage(
        instances=job.demand.instances,
        instances_fit=instances,
        nodes=nodes,
        nodes_fit=fits,
        down=down,
        wrong_type=wrong_type,
        too_small=too_small,
        too_few_gpus=few_gpus,
        too_few_cpus=few_cpus,
        too_little_memory=little_memory,
    )
    return Wait(job.id, Reason.RESOURCES, shortage=shortage)


def _behind_others(ids: Sequence[str], behind: Sequence[int], waiting: int) -> list[Wait]:
    """Return the waits of new jobs that were not considered, because others are ahead of them."""
    ahead = waiting - len(behind)
    return [Wait(ids[task], Reason.PRIORITY, ahead=ahead + place) for place, task in enumerate(behind)]
