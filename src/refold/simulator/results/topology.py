"""What topology costs: GPU time lost to slower links, and idle GPUs that gangs may not use as they request domains."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from refold.journal import History
from refold.model import HOUR, WHOLE, Demand, Seconds
from refold.placement import FreeResources, Ints
from refold.planning.plans import Crossings, Speeds
from refold.simulator.results.time_series import free_at


class TopologyUse(msgspec.Struct, frozen=True):
    """GPU-hours that runs lost by crossing domains, and the mean share of the GPUs that requests for domains keep idle.

    The latter are free GPUs that waiting gangs could use if they did not require domains or segments.
    """

    crossing_gpu_hours: float
    crossing_share: float | None
    idle_share: float


def topology_use(history: History, times: Iterable[Seconds], crossings: Crossings | None = None) -> TopologyUse | None:
    """Return what topology costs, sampled at these times (ascending); None without levels.

    `crossings`: how much slower runs were; None: as far as jobs declare it.
    """
    cluster, runs, jobs = history.cluster, history.runs, history.jobs.jobs
    if not cluster.levels or not cluster.gpus:
        return None
    known = crossings or Crossings(Speeds(cluster), modelled=False)
    held = (history.run_end - runs.start) * runs.gpus
    placed = zip(runs.job.tolist(), runs.allocations, strict=True)
    slowdowns = np.array([known.slowdown(jobs[job], allocation) for job, allocation in placed])
    lost = float((held * (1 - 1 / slowdowns)).sum()) if len(held) else 0.0
    total = float(held.sum())
    at = np.array(list(times), dtype=np.float64)
    idle = [
        _idle_gpus(free, _waiting_demands(history, time)) for time, free in zip(at, free_at(history, at), strict=True)
    ]
    share = sum(idle) / len(idle) / cluster.gpus if idle else 0.0
    return TopologyUse(lost / HOUR, lost / total if total else None, share)


def _waiting_demands(history: History, time: Seconds) -> list[Demand]:
    """Return the demands of the gangs that wait at a time and require domains."""
    jobs, runs = history.jobs, history.runs
    ended = np.where(np.isnan(jobs.ended), np.inf, jobs.ended)
    is_waiting = (jobs.submitted <= time) & (time < ended)
    running: Ints = runs.job[(runs.start <= time) & (time < history.run_end)]
    is_waiting[running] = False
    demands = (jobs.jobs[job].demand for job in is_waiting.nonzero()[0].tolist())
    return [demand for demand in demands if demand.topology is not None and demand.topology.is_binding]


def _idle_gpus(free: FreeResources, demands: Iterable[Demand]) -> float:
    """Return the free GPUs that some of the demands could use without their requests, but not with them."""
    kept = 0.0
    for demand in demands:
        shortage = free.shortage(demand)
        if shortage.instances_fit < demand.instances <= shortage.fit_anywhere:
            kept += demand.total_gpus
    return min(kept, free.gpu_milli / WHOLE)
