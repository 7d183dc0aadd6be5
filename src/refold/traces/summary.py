"""What a trace holds, in numbers: how many jobs of which size, how long, how often, whose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from refold.model import Demand, Job
from refold.traces.trace import Trace

QUANTILES = {"least": 0.0, "5 %": 0.05, "25 %": 0.25, "half": 0.5, "75 %": 0.75, "95 %": 0.95, "most": 1.0}

_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SIZE_NAMES = ("1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "over 64")


class Portion(msgspec.Struct, frozen=True):
    """Some of the jobs (of one size, of one tenant), and the GPU time they ask for."""

    name: str
    jobs: int
    gpu_hours: float
    share_of_jobs: float
    share_of_gpu_hours: float


class Summary(msgspec.Struct, frozen=True):
    """A trace in numbers. Times are seconds; quantiles are in the order of QUANTILES, empty when nothing is known.

    `offered_gpus` is the offered load: GPU-hours of work per hour of submissions, which is how many GPUs it would
    keep busy. None where all jobs came at one moment.
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
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(trace: Trace) -> Summary:
    """The trace in numbers."""
    jobs = trace.jobs
    sizes = _portions(jobs, lambda job: size_name(job.demand))
    order = ("no GPU", "part of one", *_SIZE_NAMES)
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
        left_out=tuple(map(str, trace.left_out)),
        notes=trace.notes,
    )


def size_name(demand: Demand) -> str:
    """The class of size that people think in: how many GPUs in all."""
    gpus = demand.total_gpus
    if gpus == 0:
        return "no GPU"
    return "part of one" if gpus < 1 else _SIZE_NAMES[bisect_left(_SIZES, gpus)]


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
