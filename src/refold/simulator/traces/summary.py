"""Summary statistics of a trace: sizes, durations, arrivals and tenants."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from refold.model import Demand, Job
from refold.simulator.traces.trace import Trace

QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}

_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SIZE_NAMES = ("1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "over 64")


class Portion(msgspec.Struct, frozen=True):
    """The jobs of one size or of one tenant, and their GPU time."""

    name: str
    jobs: int
    gpu_hours: float
    share_of_jobs: float
    share_of_gpu_hours: float


class Summary(msgspec.Struct, frozen=True):
    """Summary statistics of a trace. Times are in seconds; quantiles are in the order of QUANTILES, or empty.

    `span` is the time from the first submission to the last; `durations` and `gaps` are the quantiles of run times and
    of the times between consecutive submissions. `offered_gpus` is the offered load: GPU-hours of work per hour of
    submissions, that is, the number of GPUs the jobs would keep busy. It is None if all jobs were submitted at the same
    time.
    """

    name: str
    jobs: int
    best_effort: int
    span: float
    gpu_hours: float
    offered_gpus: float | None
    sizes: tuple[Portion, ...]
    durations: tuple[float, ...]
    gaps: tuple[float, ...]
    tenants: tuple[Portion, ...]
    skipped_rows: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(trace: Trace) -> Summary:
    jobs = trace.jobs
    sizes = _portions(jobs, lambda job: size_name(job.demand))
    order = ("no GPU", "fraction", *_SIZE_NAMES)
    tenants = _portions(jobs, lambda job: job.tenant)
    return Summary(
        name=trace.name,
        jobs=len(jobs),
        best_effort=sum(job.job_class == "best-effort" for job in jobs),
        span=trace.span,
        gpu_hours=trace.gpu_seconds / 3600,
        offered_gpus=trace.gpu_seconds / trace.span if trace.span else None,
        sizes=tuple(sorted(sizes, key=lambda portion: order.index(portion.name))),
        durations=_quantiles(job.work for job in jobs if job.work is not None),
        gaps=_quantiles(later.submitted - job.submitted for job, later in pairwise(jobs)),
        tenants=tuple(sorted(tenants, key=lambda portion: (-portion.gpu_hours, -portion.jobs, portion.name))),
        skipped_rows=tuple(map(str, trace.skipped_rows)),
        notes=trace.notes,
    )


def size_name(demand: Demand) -> str:
    """Return the size class of a demand, by its total number of GPUs."""
    gpus = demand.total_gpus
    if gpus == 0:
        return "no GPU"
    return "fraction" if gpus < 1 else _SIZE_NAMES[bisect_left(_SIZES, gpus)]


def _portions(jobs: Sequence[Job], name_of: Callable[[Job], str]) -> list[Portion]:
    counts: dict[str, int] = {}
    hours: dict[str, float] = {}
    for job in jobs:
        name = name_of(job)
        counts[name] = counts.get(name, 0) + 1
        hours[name] = hours.get(name, 0.0) + job.demand.total_gpus * (job.work or 0.0) / 3600
    all_hours = sum(hours.values()) or 1.0
    return [
        Portion(name, count, hours[name], count / len(jobs), hours[name] / all_hours) for name, count in counts.items()
    ]


def _quantiles(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return tuple(ordered[round(level * last)] for level in QUANTILES.values()) if ordered else ()
