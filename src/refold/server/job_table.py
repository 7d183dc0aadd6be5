"""The job table: one record per active job, and the notices that each step produces."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from fnmatch import translate
from typing import Literal

import msgspec

from refold.core import Entry
from refold.journal import (
    Cancelled,
    Change,
    Ending,
    Flagged,
    Held,
    JobEnded,
    JobHistories,
    JobRecord,
    NodeChange,
    Placed,
    PlanReplaced,
    Released,
    RunBegan,
    RunEnded,
    RunRecord,
    StopOrdered,
    Submitted,
)
from refold.model import (
    MINUTE,
    Allocation,
    Cluster,
    Job,
    Reason,
    Seconds,
    format_count,
    format_duration,
    parse_task_numbers,
)
from refold.placement import FreeResources
from refold.server.auto_requests import describe_choices

NoticeKind = Literal[
    "submitted",
    "infeasible",
    "held",
    "released",
    "placed",
    "reshaped",
    "started",
    "stopping",
    "stopped",
    "failed",
    "finished",
    "cancelled",
    "ended",
    "timed out",
    "hang suspected",
    "time limit",
    "idle",
    "note",
    "node down",
    "node drained",
    "node up",
    "gpu down",
    "gpu drained",
    "gpu resumed",
    "gpu warning",
]
"""The kinds of notices. A job is `cancelled` by a user, `timed out` by its time limit, and `ended` by another rule
or a failed dependency.

`hang suspected` and `time limit` are reported only by the watch rules. A `note` is information that needs no action.
"""

HOLD_TEXTS: Mapping[Reason, str] = {
    Reason.HELD: "until it is released",
    Reason.BEGIN_TIME: "until its begin time",
    Reason.DEPENDENCY: "until its dependencies are met",
    Reason.ARRAY_LIMIT: "until other tasks of its array have ended",
}
"""How long a job is held."""

LOST_RUN_TEXT = "its nodes or GPUs are no longer in the cluster"

MAX_BACKOFF_SECONDS: Seconds = 5 * MINUTE
"""Longest back-off after a failure."""


def backoff_seconds(failures: int) -> Seconds:
    """Return how long a job is held after a failure; the time doubles with each failure."""
    return min(2.0 ** min(failures, 30), MAX_BACKOFF_SECONDS)


class Notice(msgspec.Struct, frozen=True):
    """A readable message about something that happened in a step: stored, published, and in part sent to users."""

    kind: NoticeKind
    job: Job | None = None
    run: int = 0
    text: str = ""


class JobTable:
    """One record per active job, updated only by journal entries, and what each entry changed."""

    def __init__(self, cluster: Cluster, records: Iterable[JobRecord] = ()) -> None:
        self._cluster = cluster
        self._histories = JobHistories(records, FreeResources(cluster).fits_when_empty)
        self.records: Mapping[str, JobRecord] = self._histories.records

    def replay(self, entry: Entry) -> None:
        """Apply an entry that was applied before, by an earlier daemon."""
        self._histories.apply(entry)

    def apply(self, entry: Entry, infeasible: Container[str]) -> tuple[list[Change], list[Notice]]:
        """Apply an entry; return what it changed, also as notices. Late and duplicate reports are ignored.

        `infeasible`: ids of the jobs that do not fit the empty cluster.
        """
        changes = self._histories.apply(entry)
        stopped = {change.record.job.id for change in changes if isinstance(change, RunEnded) and _was_stopped(change)}
        return changes, [notice for change in changes for notice in self._notices(change, infeasible, stopped)]

    def _notices(self, change: Change, infeasible: Container[str], stopped: set[str]) -> Iterable[Notice]:
        match change:
            case Submitted(record):
                request = [str(record.job.demand), *describe_choices(record.job)]
                yield Notice("submitted", record.job, text="; ".join(request))
                if record.job.id in infeasible:
                    text = "it does not fit the nodes that it may use, even when they are empty"
                    yield Notice("infeasible", record.job, text=text)
            case Held(record, Reason.BACKOFF):
                yield Notice("held", record.job, record.runs, _backoff_text(record.failures))
            case Held(record, reason, run):
                yield Notice("held", record.job, run, HOLD_TEXTS.get(reason, ""))
            case Released(record, run):
                yield Notice("released", record.job, run)
            case Placed(record, RunRecord(number, allocation, adopted=None)):
                kind: NoticeKind = "reshaped" if record.job.id in stopped else "placed"
                yield Notice(kind, record.job, number, self._format(allocation))
            case RunBegan(record, run):
                yield Notice("started", record.job, run.number)
            case PlanReplaced(record, run, ordered):
                text = f"uses {run.allocation.plan}, since it cannot use {ordered}; its output says why"
                yield Notice("note", record.job, run.number, text)
            case StopOrdered(record, run, why):
                yield Notice("stopping", record.job, run.number, why)
            case Flagged(record, why, run, rule):
                yield Notice("time limit" if rule == "time limit" else "hang suspected", record.job, run, why)
            case RunEnded(record, run, requeued=True) if run.failure is not None:
                yield Notice("failed", record.job, run.number, f"{run.failure.why}; it will be retried")
            case RunEnded(record, run, requeued=True):
                yield Notice("stopped", record.job, run.number)
            case JobEnded(record):
                yield Notice(_end_kind(record), record.job, record.runs, record.message)
            case NodeChange():
                yield self._node_notice(change)
            case Placed() | RunEnded() | Cancelled():
                pass  # an adopted run was placed before; the notice of the end of the job follows

    def _node_notice(self, change: NodeChange) -> Notice:
        name = self._cluster.nodes[change.node].name
        down = f": {change.why}" if change.why else ""
        if change.gpu is None:
            kind: NoticeKind = "node up" if change.up else "node drained" if change.drained else "node down"
            return Notice(kind, text=name + down)
        kind = "gpu resumed" if change.up else "gpu drained" if change.drained else "gpu down"
        return Notice(kind, text=f"GPU {change.gpu} of {name}{down}")

    def lose_runs_except(self, restored: Container[str], now: Seconds) -> list[Notice]:
        """End the runs of all jobs but these: their nodes may be missing from a new cluster. The jobs wait again."""
        notices: list[Notice] = []
        for job_id, record in self.records.items():
            if job_id not in restored and (run := record.current) is not None:
                record.lose_run(now)
                notices.append(Notice("stopped", record.job, run.number, LOST_RUN_TEXT))
        return notices

    def _format(self, allocation: Allocation) -> str:
        """Format an allocation: 'on n0 (GPUs 0, 1), n1 (0.5 of GPU 3)', and the plan."""
        plan = f", {allocation.plan}" if allocation.plan is not None else ""
        return f"on {allocation.text(self._cluster)}{plan}"


def _backoff_text(failures: int) -> str:
    """Format 'for 4 s, after 2 failures'."""
    return f"for {format_duration(backoff_seconds(failures))}, after {format_count(failures, 'failure')}"


def _was_stopped(change: RunEnded) -> bool:
    return change.run.ending is Ending.STOPPED


def _end_kind(record: JobRecord) -> NoticeKind:
    match record.state:
        case "finished" | "failed" | "timed out":
            return record.state
        case _:
            return "ended" if record.message else "cancelled"


# Select jobs by pattern, by array, or by the tasks of an array, as `refold cancel` does.

_TASKS = re.compile(r"(?P<array>.+)_\[(?P<tasks>[\d,:-]*)\]", re.ASCII)
_NUMBER = re.compile(r"\d+$", re.ASCII)


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


class JobSelector:
    """Matches jobs by id ('train-*', '12_3'), by array ('12', 'train-12'), or tasks of an array ('12_[0-3,7]')."""

    def __init__(self, text: str) -> None:
        tasks = _TASKS.fullmatch(text)
        self._tasks = parse_task_numbers(tasks["tasks"]) if tasks else None
        self._pattern = re.compile(translate(tasks["array"] if tasks else text))
        self._matches_arrays = tasks is not None or not is_pattern(text)

    def matches(self, job: Job) -> bool:
        place = job.launch.array
        if self._tasks is None and self._pattern.match(job.id):
            return True
        if place is None or not self._matches_arrays or (self._tasks is not None and place.task not in self._tasks):
            return False
        number = _NUMBER.search(place.array)
        names = [place.array] + ([number[0], f"{number[0]}_{place.task}"] if number else [])
        return any(self._pattern.match(name) for name in names)
