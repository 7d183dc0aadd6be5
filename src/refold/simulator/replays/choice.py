"""Which experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast, get_args

from msgspec.structs import replace

from refold.model import Cluster, Job
from refold.placement import GENETIC, RULES
from refold.simulator import NO_COSTS, Costs, Fault, NeverEnds, RecordedSpeeds, SpeedModel, check_jobs
from refold.simulator.replays.columns import ReplayResult, task_columns
from refold.simulator.replays.fifo import FifoOrder, replay_fifo


class Conditions(NamedTuple):
    """What a simulation charges, apart from jobs, cluster and policy; see `simulate`."""

    charge: SpeedModel | None = None
    costs: Costs = NO_COSTS
    faults: Sequence[Fault] = ()
    never_end: Sequence[NeverEnds] = ()


class Experiment(NamedTuple):
    """What is simulated: jobs on a cluster, under a policy by name."""

    policy: str
    settings: Mapping[str, Any]
    jobs: Sequence[Job]
    cluster: Cluster
    conditions: Conditions = Conditions()


class Replay(NamedTuple):
    """A compiled replay that gives the same result as `simulate`."""

    experiment: Experiment
    placement: str
    seed: int

    def run(self) -> ReplayResult:
        """Simulate all jobs to completion."""
        policy, _, jobs, cluster, _ = self.experiment
        return replay_fifo(task_columns(jobs), cluster, self.placement, cast(FifoOrder, policy), self.seed)


def find_replay(experiment: Experiment) -> Replay | None:
    """Return the compiled replay of an experiment that gives the same result as `simulate`; None: there is none.

    It supports jobs that run as requested and to completion, without node faults, costs and priorities.
    """
    check_jobs(experiment.jobs)
    if experiment.policy not in get_args(FifoOrder) or not _runs_as_recorded(experiment):
        return None
    settings = dict(experiment.settings)
    placement, seed = str(settings.pop("placement", "best-fit")), settings.pop("seed", 0)
    is_supported = not settings and placement in RULES and placement not in GENETIC
    return Replay(experiment, placement, seed) if is_supported else None


def _runs_as_recorded(experiment: Experiment) -> bool:
    """Whether jobs are equal, admitted at once, run for the recorded time as requested, and none is lost."""
    charge, cluster = experiment.conditions.charge, experiment.cluster
    if cluster.levels:
        return False
    if charge is not None and (type(charge) is not RecordedSpeeds or not charge.is_of(cluster)):
        return False
    costs = replace(experiment.conditions.costs, stop=0.0, restart=0.0)  # nothing is stopped
    if costs != NO_COSTS or len({job.priority for job in experiment.jobs}) > 1:
        return False
    if experiment.conditions.faults or experiment.conditions.never_end:
        return False
    if any(tenant.limit_gpus for tenant in cluster.tenants):
        return False
    return all(job.work is not None and not job.reshapable for job in experiment.jobs)
