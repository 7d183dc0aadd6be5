"""How long the jobs of a history waited, and the headlines of a comparison: the best policies against that record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from refold.journal import JobColumns
from refold.model import Job, Seconds
from refold.simulator.results.measures import Measures, compute_spread
from refold.simulator.results.tables import MAIN_MEASURES, MeasureColumn, Recorded, format_value

USUAL_BASELINES = ("easy", "fifo-skip")
"""Policies that headlines refer to if there is no record: what clusters do unless they have chosen something else."""

HEADLINES = {
    "completion_mean": "Mean completion time",
    "waiting_mean": "Mean waiting time",
    "waiting_p99": "p99 waiting time",
    "allocation": "GPU allocation",
}
"""Titles of headlines by measure."""

MIN_RATIO, MAX_RATIO = 1.05, 100.0
"""Ratios between these are stated: '1.0 × shorter' says nothing."""


MAX_DEVIATION, CLOSE_ENOUGH = 0.25, 60.0
"""A simulation reproduces a mean waiting time if it differs by less than this part, or these seconds."""


class Headline(NamedTuple):
    """The best value of a measure, the policy that achieved it, and how it compares with the record or a baseline."""

    key: str
    title: str
    value: str
    policy: str
    remark: str


class Reproduction(NamedTuple):
    """How well a simulation of the scheduler that was recorded reproduces the record, over jobs that started in both.

    `recorded`, `simulated`: mean waiting times. `error`: mean difference of the starts of jobs.
    """

    jobs: int
    recorded: Seconds
    simulated: Seconds
    error: Seconds

    @property
    def is_close(self) -> bool:
        """Whether the mean waiting time is reproduced."""
        return abs(self.simulated - self.recorded) <= max(MAX_DEVIATION * self.recorded, CLOSE_ENOUGH)


def measure_reproduction(recorded: JobColumns, simulated: JobColumns) -> Reproduction | None:
    """Compare a record with its simulation; None if no job started in both."""
    starts = {job.id: at for job, at in zip(simulated.jobs, simulated.first_start.tolist(), strict=True)}
    rows = [
        (start - submitted, starts[job.id] - submitted)
        for job, submitted, start in zip(
            recorded.jobs, recorded.submitted.tolist(), recorded.first_start.tolist(), strict=True
        )
        if isfinite(start) and isfinite(starts.get(job.id, nan))
    ]
    if not rows:
        return None
    was, would_be = np.array(rows).T
    return Reproduction(len(rows), float(was.mean()), float(would_be.mean()), float(np.abs(was - would_be).mean()))


def measure_waits(jobs: Sequence[Job], waits: Mapping[str, Seconds]) -> Recorded | None:
    """Return what the history says about jobs: how long they waited, and when they ended; None if nothing.

    Completion times are mostly run times. Those of some jobs cannot be compared with those of all, and are left out.
    """
    known = [(job.submitted, waits[job.id], job.work) for job in jobs if job.id in waits and job.work is not None]
    if not known:
        return None
    submitted, waited, work = np.array(known).T
    waiting, completion = compute_spread(waited), compute_spread(waited + work)
    values = {"waiting_mean": waiting.mean, "waiting_median": waiting.median, "waiting_p99": waiting.p99}
    if len(known) == len(jobs):
        values |= {
            "completion_mean": completion.mean,
            "completion_median": completion.median,
            "completion_p99": completion.p99,
            "makespan": float((submitted + waited + work).max() - submitted.min()),
        }
    return Recorded("recorded", len(known), values)


def peak_gpus(jobs: Sequence[Job], waits: Mapping[str, Seconds]) -> int:
    """Return how many GPUs were in use at once, according to a history; runs that touch do not overlap."""
    started = [(job.submitted + waits[job.id], job) for job in jobs if job.id in waits and job.work]
    changes = [(at, job.demand.total_gpus) for at, job in started]
    changes += [(at + (job.work or 0.0), -job.demand.total_gpus) for at, job in started]
    return round(max(accumulate(count for _, count in sorted(changes)), default=0))


def find_reference(measured: Sequence[tuple[str, Measures]], recorded_run: str | None) -> Recorded:
    """Return the values that policies are compared with: of the run that was recorded, or else a usual baseline."""
    names = [name for name, _ in measured]
    name = recorded_run or next((name for name in USUAL_BASELINES if name in names), names[0])
    return _values_of(name, dict(measured)[name])


def _values_of(name: str, measures: Measures) -> Recorded:
    return Recorded(name, measures.jobs, {column.key: get(measures) for column, get in MAIN_MEASURES})


def find_headlines(measured: Sequence[tuple[str, Measures]], reference: Recorded) -> list[Headline]:
    """Return the best value of each measure among policies, compared with a record or a baseline."""
    found = []
    for column, get in MAIN_MEASURES:
        values = {name: value for name, measures in measured if (value := get(measures)) is not None}
        if column.key in HEADLINES and values:
            best = (max if column.better == "more" else min)(values, key=values.__getitem__)
            text = format_value(values[best], column.unit)
            policy = "" if len(measured) == 1 and best == reference.name else best
            if len(values) > 1 and {format_value(value, column.unit) for value in values.values()} == {text}:
                policy = "all policies"
            other = reference.values.get(column.key)
            if format_value(other, column.unit) == text:
                remark = _equal(reference.name, policy, values)
            else:
                remark = _compare(column, values[best], other, reference.name)
            found.append(Headline(column.key, HEADLINES[column.key], text, policy, remark))
    return found


def _equal(reference: str, policy: str, policies: Collection[str]) -> str:
    if reference not in policies:
        return f"as {reference}"
    return f"best of {len(policies)}" if policy in policies and len(policies) > 1 else ""


def _compare(column: MeasureColumn, best: float, other: float | None, reference: str) -> str:
    """Describe by how much the best value differs from that of the reference."""
    if other is None:
        return ""
    if column.unit == "%":
        return f"{(best - other) * 100:+.1f} percentage points over {reference}"
    shorter, longer = sorted((best, other))
    if shorter <= 0 or not MIN_RATIO <= longer / shorter < MAX_RATIO:
        return f"{format_value(other, column.unit)} with {reference}"
    if best > other:
        return f"{best / other:.1f} × longer than {reference}"
    return f"{other / best:.1f} × shorter than {reference}"
