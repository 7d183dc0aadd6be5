"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from refold.model import Cluster, Job
from refold.packing import GENETIC, RULES
from refold.simulator.costs import NO_COSTS, Costs, RecordedSpeeds, SpeedModel
from refold.simulator.easy_replay import PLACEMENTS, replay_easy
from refold.simulator.faults import Fault, NeverEnds
from refold.simulator.replay import ReplayResult, replay_compiled, task_columns

MIN_JOBS = 2_000
"""With fewer jobs the general simulator takes a second at most, which is less than compiling a replay."""

Replay = Callable[[], ReplayResult]


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
    own, placement = dict(settings), str(settings.get("placement", "best-fit"))
    own.pop("placement", None)
    seed = own.pop("seed", 0)
    if policy in ("fifo", "fifo-skip"):
        if own or placement not in RULES or placement in GENETIC:
            return None
        return partial(_replay_fifo, jobs, cluster, placement, policy, seed)
    if policy == "easy" and _is_plain_easy(own) and placement in PLACEMENTS and _has_equal_speeds(cluster):
        return partial(_replay_easy, jobs, cluster, placement, own.get("backfill_order", "shortest"))
    return None


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
