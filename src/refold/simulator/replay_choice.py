"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from refold.core import Journal
from refold.model import Cluster, Job
from refold.packing import GENETIC, RULES, FreeResources
from refold.simulator.costs import NO_COSTS, Costs, RecordedSpeeds, SpeedModel
from refold.simulator.easy_replay import PLACEMENTS, replay_easy
from refold.simulator.faults import Fault, NeverEnds
from refold.simulator.replay import ReplayNotes, ReplayResult, replay_compiled, task_columns
from refold.simulator.replay_journal import replay_entries

MIN_JOBS = 2_000
"""With fewer jobs the general simulator takes a second at most, which is less than compiling a replay."""

FIFO_ORDERS = ("fifo", "fifo-skip")

Replay = Callable[[], ReplayResult]
JournaledReplay = Callable[[Journal], ReplayResult]


class Conditions(NamedTuple):
    """What a simulation charges, apart from jobs, cluster and policy; see `simulate`."""

    charge: SpeedModel | None = None
    costs: Costs = NO_COSTS
    faults: Sequence[Fault] = ()
    never_end: Sequence[NeverEnds] = ()


def find_replay(
    policy: str,
    settings: Mapping[str, Any],
    jobs: Sequence[Job],
    cluster: Cluster,
    conditions: Conditions,
    min_jobs: int = MIN_JOBS,
) -> Replay | None:
    """Return the compiled replay of a policy that gives the same result as `simulate`; None: there is none.

    A replay supports jobs that run once, as requested and to completion, all of the same priority.
    """
    if len(jobs) < min_jobs or not (_are_plain(conditions) and _are_replayable(jobs) and _is_unlimited(cluster)):
        return None
    own, placement, seed = _split(settings)
    if policy in FIFO_ORDERS:
        if own or placement not in RULES or placement in GENETIC:
            return None
        return partial(_replay_fifo, jobs, cluster, placement, policy, seed)
    if policy == "easy" and _is_plain_easy(own) and placement in PLACEMENTS and _has_equal_speeds(cluster):
        return partial(_replay_easy, jobs, cluster, placement, own.get("backfill_order", "shortest"))
    return None


def find_journaled_replay(
    policy: str,
    settings: Mapping[str, Any],
    jobs: Sequence[Job],
    cluster: Cluster,
    conditions: Conditions,
    min_jobs: int = MIN_JOBS,
) -> JournaledReplay | None:
    """Return the compiled replay of a policy that also writes the journal of `simulate`; None: there is none."""
    if policy not in FIFO_ORDERS or find_replay(policy, settings, jobs, cluster, conditions, min_jobs) is None:
        return None
    free = FreeResources(cluster)
    if not all(free.fits_when_empty(demand) for demand in {job.demand for job in jobs}):
        return None
    _, placement, seed = _split(settings)
    return partial(_replay_fifo_with_journal, jobs, cluster, placement, policy, seed)


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str, int]:
    """Return the settings other than placement rule and random seed, and these two."""
    own = dict(settings)
    placement, seed = str(own.pop("placement", "best-fit")), own.pop("seed", 0)
    return own, placement, seed


def _replay_fifo_with_journal(
    jobs: Sequence[Job], cluster: Cluster, placement: str, order: Any, seed: int, journal: Journal
) -> ReplayResult:
    notes = ReplayNotes.allocate(len(jobs))
    replayed = replay_compiled(task_columns(jobs), cluster, placement, order, seed, notes)
    for entry in replay_entries(jobs, replayed, notes, len(cluster.nodes)):
        journal.write(entry)
    return replayed


def _replay_fifo(jobs: Sequence[Job], cluster: Cluster, placement: str, order: Any, seed: int) -> ReplayResult:
    return replay_compiled(task_columns(jobs), cluster, placement, order, seed)


def _replay_easy(jobs: Sequence[Job], cluster: Cluster, placement: str, backfill_order: Any) -> ReplayResult:
    return replay_easy(task_columns(jobs), cluster, placement, backfill_order)


def _is_plain_easy(settings: Mapping[str, Any]) -> bool:
    """Whether the only settings are known run times without start estimates, and such that do not matter then."""
    without_effect = {"duration_quantile", "confidence", "preempt", "backfill_order", "knowledge"}
    required = {"durations": "known", "start_estimates": False}
    return all(settings.get(name) == value for name, value in required.items()) and (
        settings.keys() - without_effect <= required.keys()
    )


def _are_plain(conditions: Conditions) -> bool:
    """Whether runs cost nothing but the recorded time, and none is lost."""
    recorded = conditions.charge is None or isinstance(conditions.charge, RecordedSpeeds)
    return recorded and conditions.costs == NO_COSTS and not conditions.faults and not conditions.never_end


def _are_replayable(jobs: Sequence[Job]) -> bool:
    priority = jobs[0].priority if jobs else 0
    return all(job.work is not None and job.priority == priority and not job.reshapable for job in jobs)


def _is_unlimited(cluster: Cluster) -> bool:
    """Whether every job is admitted at once."""
    return not any(tenant.limit_gpus for tenant in cluster.tenants)


def _has_equal_speeds(cluster: Cluster) -> bool:
    return set(RecordedSpeeds(cluster).speed_of_node.tolist()) == {1.0}
