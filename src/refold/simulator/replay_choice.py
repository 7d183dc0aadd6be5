"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from refold.core import Journal
from refold.model import Cluster, Job
from refold.packing import GENETIC, RULES, FreeResources
from refold.policies.queueing import THRESHOLD_GPU_SECONDS
from refold.simulator.agenda import check_jobs
from refold.simulator.costs import NO_COSTS, Costs, RecordedSpeeds, SpeedModel
from refold.simulator.easy_replay import PLACEMENTS, BackfillOrder, EasyNotes, replay_easy
from refold.simulator.faults import Fault, NeverEnds
from refold.simulator.predicted_easy_replay import PREEMPT, replay_predicted_easy
from refold.simulator.queue_replay import (
    ORDERS,
    PLACEMENTS as QUEUE_PLACEMENTS,
    QueueOrder,
    replay_queue,
)
from refold.simulator.replay import FifoOrder, ReplayedRuns, ReplayNotes, ReplayResult, replay_compiled, task_columns
from refold.simulator.replay_journal import easy_entries, replay_entries

MIN_JOBS = 2_000
"""With fewer jobs the general simulator takes a second at most, which is less than compiling a replay."""

QUEUE_MIN_JOBS = 10_000
"""The same for `sjf`, `srtf` and `las`: their replay takes twice as long to compile."""

PREDICTED_MIN_JOBS = 200_000
"""The same for `easy` with predicted run times: its replay takes four minutes to compile, the general simulator about a
millisecond per job."""

FIFO_ORDERS = ("fifo", "fifo-skip")

LAS_THRESHOLD = "threshold_gpu_seconds"

MAX_PRIORITY = 2**62
"""Priorities of larger absolute value are not numbers of the compiled code."""

SJF_SETTINGS = {"durations": "known", "defragment": False}
"""The settings of `sjf` that its replay supports: the defaults."""

PREDICTED_EASY_SETTINGS = {
    "durations": "predicted",
    "order": "arrival",
    "backfill_order": "shortest",
    "lanes": False,
    "max_overtaken": 0,
    "max_wait_seconds": 0.0,
    "depth": 0,
}
"""The settings of `easy` that its replay with predictions supports: the defaults. It supports any quantiles."""


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


class Replay(Protocol):
    """A compiled replay that gives the same result as `simulate`."""

    def run(self) -> ReplayResult | ReplayedRuns:
        """Simulate all jobs to completion."""
        ...


class JournaledReplay(Protocol):
    """A compiled replay that also writes the journal of `simulate`."""

    def run_with_journal(self, journal: Journal) -> ReplayResult:
        """Simulate all jobs to completion, and write the journal."""
        ...


def find_replay(experiment: Experiment, min_jobs: int | None = None) -> Replay | None:
    """Return the compiled replay of an experiment that gives the same result as `simulate`; None: there is none.

    A replay supports jobs that run as requested and to completion, without node faults. Those of `sjf`, `srtf`, `las`,
    and of `easy` with predicted run times, support costs and priorities, the others neither. `min_jobs`: None for the
    number from which it pays.
    """
    policy, settings, jobs, cluster, conditions = experiment
    check_jobs(jobs)
    own = dict(settings)
    placement, seed = str(own.pop("placement", "best-fit")), own.pop("seed", 0)
    predicts = policy == "easy" and _predicts(own)
    default_min_jobs = QUEUE_MIN_JOBS if policy in ORDERS else PREDICTED_MIN_JOBS if predicts else MIN_JOBS
    if len(jobs) < (default_min_jobs if min_jobs is None else min_jobs) or not (
        _have_recorded_times(jobs, cluster, conditions) and _is_unlimited(cluster)
    ):
        return None
    if predicts:
        if placement not in PLACEMENTS or not _may_be_preempted(experiment):
            return None
        if any(job.steps is not None for job in jobs):
            return None
        quantiles = own.get("duration_quantile", 0.5), own.get("confidence", 0.8)
        return _PredictedEasyReplay(
            jobs, cluster, placement, conditions.costs, *quantiles, own.get("preempt", "always")
        )
    if policy in ORDERS:
        if not _is_plain_queue(policy, own) or placement not in QUEUE_PLACEMENTS or not _may_be_preempted(experiment):
            return None
        threshold = float(own.get(LAS_THRESHOLD, THRESHOLD_GPU_SECONDS))
        return _QueueReplay(jobs, cluster, cast(QueueOrder, policy), placement, seed, conditions.costs, threshold)
    if conditions.costs != NO_COSTS or len({job.priority for job in jobs}) > 1:
        return None
    if policy in FIFO_ORDERS:
        if own or placement not in RULES or placement in GENETIC:
            return None
        return _FifoReplay(jobs, cluster, cast(FifoOrder, policy), placement, seed)
    if policy == "easy" and _is_plain_easy(own) and placement in PLACEMENTS and _has_equal_speeds(cluster):
        if jobs and jobs[0].submitted < 0:  # its bounds of times are ≥ 0
            return None
        return _EasyReplay(jobs, cluster, own.get("backfill_order", "shortest"), placement)
    return None


def find_journaled_replay(experiment: Experiment, min_jobs: int | None = None) -> JournaledReplay | None:
    """Return the compiled replay of an experiment that also writes the journal of `simulate`; None: there is none."""
    replay = find_replay(experiment, min_jobs)
    if not isinstance(replay, _FifoReplay | _EasyReplay):
        return None
    free = FreeResources(experiment.cluster)
    is_feasible = all(free.fits_when_empty(demand) for demand in {job.demand for job in experiment.jobs})
    return replay if is_feasible else None


class _FifoReplay(NamedTuple):
    jobs: Sequence[Job]
    cluster: Cluster
    order: FifoOrder
    placement: str
    seed: int

    def run(self) -> ReplayResult:
        return self._replay()

    def run_with_journal(self, journal: Journal) -> ReplayResult:
        notes = ReplayNotes.allocate(len(self.jobs))
        replayed = self._replay(notes)
        for entry in replay_entries(self.jobs, replayed, notes, len(self.cluster.nodes)):
            journal.write(entry)
        return replayed

    def _replay(self, notes: ReplayNotes | None = None) -> ReplayResult:
        return replay_compiled(task_columns(self.jobs), self.cluster, self.placement, self.order, self.seed, notes)


class _EasyReplay(NamedTuple):
    jobs: Sequence[Job]
    cluster: Cluster
    backfill_order: BackfillOrder
    placement: str

    def run(self) -> ReplayResult:
        return self._replay()

    def run_with_journal(self, journal: Journal) -> ReplayResult:
        notes = EasyNotes.allocate(len(self.jobs))
        replayed = self._replay(notes)
        for entry in easy_entries(self.jobs, replayed, notes, len(self.cluster.nodes)):
            journal.write(entry)
        return replayed

    def _replay(self, notes: EasyNotes | None = None) -> ReplayResult:
        return replay_easy(task_columns(self.jobs), self.cluster, self.placement, self.backfill_order, notes)


class _QueueReplay(NamedTuple):
    jobs: Sequence[Job]
    cluster: Cluster
    order: QueueOrder
    placement: str
    seed: int
    costs: Costs
    threshold_gpu_seconds: float

    def run(self) -> ReplayedRuns:
        return replay_queue(*self)


class _PredictedEasyReplay(NamedTuple):
    jobs: Sequence[Job]
    cluster: Cluster
    placement: str
    costs: Costs
    duration_quantile: float
    confidence: float
    preempt: str

    def run(self) -> ReplayedRuns:
        return replay_predicted_easy(*self)


def _predicts(settings: Mapping[str, Any]) -> bool:
    """Whether these are settings of `easy` with predicted run times without start estimates that are supported."""
    others = dict(settings)
    quantiles = others.pop("duration_quantile", 0.5), others.pop("confidence", 0.8)
    others.pop("knowledge", None)  # of jobs with a number of steps
    return (
        others.pop("start_estimates", True) is False
        and others.pop("preempt", "always") in PREEMPT
        and all(isinstance(quantile, int | float) and 0 < quantile < 1 for quantile in quantiles)
        and others.items() <= PREDICTED_EASY_SETTINGS.items()
    )


def _may_be_preempted(experiment: Experiment) -> bool:
    """Whether replays with preemption support jobs and costs: without change limits and progress reports."""
    has_reports = experiment.conditions.costs.report_every is not None
    return not has_reports and all(map(_is_plain_job, experiment.jobs))


def _is_plain_easy(settings: Mapping[str, Any]) -> bool:
    """Whether the only settings are known run times without start estimates, and such that do not matter then."""
    without_effect = {"duration_quantile", "confidence", "preempt", "backfill_order", "knowledge"}
    required = {"durations": "known", "start_estimates": False}
    return all(settings.get(name) == value for name, value in required.items()) and (
        settings.keys() - without_effect <= required.keys()
    )


def _is_plain_job(job: Job) -> bool:
    """Whether a job may be preempted at any time, and its priority is a number of the compiled code."""
    return job.change_limit is None and abs(job.priority) < MAX_PRIORITY


def _is_plain_queue(policy: str, settings: Mapping[str, Any]) -> bool:
    """Whether jobs are not moved, and are sorted by recorded run times or attained service."""
    if policy == "las":
        threshold = settings.get(LAS_THRESHOLD, THRESHOLD_GPU_SECONDS)
        return settings.keys() <= {LAS_THRESHOLD} and isinstance(threshold, int | float) and threshold > 0
    return settings.items() <= (SJF_SETTINGS.items() if policy == "sjf" else {}.items())


def _have_recorded_times(jobs: Sequence[Job], cluster: Cluster, conditions: Conditions) -> bool:
    """Whether all jobs run for the recorded time, with the requested resources, and none is lost."""
    charge = conditions.charge
    if charge is not None and (type(charge) is not RecordedSpeeds or not charge.is_of(cluster)):
        return False
    if conditions.faults or conditions.never_end:
        return False
    return all(job.work is not None and not job.reshapable for job in jobs)


def _is_unlimited(cluster: Cluster) -> bool:
    """Whether every job is admitted at once."""
    return not any(tenant.limit_gpus for tenant in cluster.tenants)


def _has_equal_speeds(cluster: Cluster) -> bool:
    return set(RecordedSpeeds(cluster).speed_of_node.tolist()) == {1.0}
