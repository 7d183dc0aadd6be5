"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from refold.core import Entry, Journal
from refold.model import Cluster, Job
from refold.packing import GENETIC, RULES, FreeResources
from refold.policies.queueing import THRESHOLD_GPU_SECONDS
from refold.replays.columns import ReplayedRuns, ReplayResult, task_columns
from refold.replays.easy import PLACEMENTS, BackfillOrder, EasyNotes, replay_easy
from refold.replays.fifo import FifoNotes, FifoOrder, replay_fifo
from refold.replays.journal import easy_entries, fifo_entries
from refold.replays.predicted_easy import replay_predicted_easy
from refold.replays.predicted_easy_state import PREEMPT
from refold.replays.queues import (
    ORDERS,
    PLACEMENTS as QUEUE_PLACEMENTS,
    QueueOrder,
    replay_queue,
)
from refold.simulator import NO_COSTS, Costs, Fault, NeverEnds, RecordedSpeeds, SpeedModel, check_jobs

MIN_JOBS = 2_000
"""With fewer jobs the general simulator takes a second at most, which is less than compiling a replay."""

QUEUE_MIN_JOBS = 10_000
"""The same for `sjf`, `srtf` and `las`: their replay takes twice as long to compile."""

PREDICTED_MIN_JOBS = 200_000
"""The same for `easy` with predicted run times: its replay takes four minutes to compile, the general simulator about a
millisecond per job."""

MAX_PRIORITY = 2**62
"""Priorities of larger absolute value are not numbers of the compiled code."""

SJF_SETTINGS = {"durations": "known", "defragment": False}
"""The settings of `sjf` that its replay supports: the defaults."""

KNOWN_EASY_SETTINGS = {"durations": "known", "start_estimates": False}
"""The settings of `easy` that its replay with known run times requires."""

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
    check_jobs(experiment.jobs)
    for replayed in _REPLAYS.get(experiment.policy, ()):
        is_worthwhile = len(experiment.jobs) >= (replayed.min_jobs if min_jobs is None else min_jobs)
        if is_worthwhile and _runs_as_recorded(experiment) and (replay := replayed.make(experiment)) is not None:
            return replay
    return None


def find_journaled_replay(experiment: Experiment, min_jobs: int | None = None) -> JournaledReplay | None:
    """Return the compiled replay of an experiment that also writes the journal of `simulate`; None: there is none."""
    replay = find_replay(experiment, min_jobs)
    if not isinstance(replay, _FifoReplay | _EasyReplay):
        return None
    free = FreeResources(experiment.cluster)
    is_feasible = all(free.fits_when_empty(demand) for demand in {job.demand for job in experiment.jobs})
    return replay if is_feasible else None


# --- fifo, fifo-skip ------------------------------------------------------------------------------------------


class _FifoReplay(NamedTuple):
    jobs: Sequence[Job]
    cluster: Cluster
    order: FifoOrder
    placement: str
    seed: int

    def run(self) -> ReplayResult:
        return self._replay()

    def run_with_journal(self, journal: Journal) -> ReplayResult:
        notes = FifoNotes.allocate(len(self.jobs))
        replayed = self._replay(notes)
        _write(journal, fifo_entries(self.jobs, replayed, notes, len(self.cluster.nodes)))
        return replayed

    def _replay(self, notes: FifoNotes | None = None) -> ReplayResult:
        return replay_fifo(task_columns(self.jobs), self.cluster, self.placement, self.order, self.seed, notes)


def _fifo_replay(experiment: Experiment) -> _FifoReplay | None:
    own, placement, seed = _settings(experiment)
    if own or placement not in RULES or placement in GENETIC or not _has_no_costs_or_priorities(experiment):
        return None
    return _FifoReplay(experiment.jobs, experiment.cluster, cast(FifoOrder, experiment.policy), placement, seed)


# --- easy with known run times --------------------------------------------------------------------------------


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
        _write(journal, easy_entries(self.jobs, replayed, notes, len(self.cluster.nodes)))
        return replayed

    def _replay(self, notes: EasyNotes | None = None) -> ReplayResult:
        return replay_easy(task_columns(self.jobs), self.cluster, self.placement, self.backfill_order, notes)


def _easy_replay(experiment: Experiment) -> _EasyReplay | None:
    own, placement, _ = _settings(experiment)
    jobs, cluster = experiment.jobs, experiment.cluster
    without_effect = {"duration_quantile", "confidence", "preempt", "backfill_order", "knowledge"}
    if {name: own[name] for name in own.keys() - without_effect} != KNOWN_EASY_SETTINGS:
        return None
    has_equal_speeds = set(RecordedSpeeds(cluster).speed_of_node.tolist()) == {1.0}
    is_from_zero_on = not jobs or jobs[0].submitted >= 0  # as the bounds of times in the replay
    is_supported = placement in PLACEMENTS and has_equal_speeds and is_from_zero_on
    if not is_supported or not _has_no_costs_or_priorities(experiment):
        return None
    return _EasyReplay(jobs, cluster, own.get("backfill_order", "shortest"), placement)


# --- easy with predicted run times ----------------------------------------------------------------------------


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


def _predicted_easy_replay(experiment: Experiment) -> _PredictedEasyReplay | None:
    own, placement, _ = _settings(experiment)
    quantiles = own.pop("duration_quantile", 0.5), own.pop("confidence", 0.8)
    preempt = own.pop("preempt", "always")
    own.pop("knowledge", None)  # of jobs with a number of steps
    is_supported = (
        own.pop("start_estimates", True) is False
        and own.items() <= PREDICTED_EASY_SETTINGS.items()
        and preempt in PREEMPT
        and all(isinstance(quantile, int | float) and 0 < quantile < 1 for quantile in quantiles)
        and placement in PLACEMENTS
        and _may_be_preempted(experiment)
        and all(job.steps is None for job in experiment.jobs)
    )
    if not is_supported:
        return None
    costs = experiment.conditions.costs
    return _PredictedEasyReplay(experiment.jobs, experiment.cluster, placement, costs, *quantiles, preempt)


# --- sjf, srtf, las -------------------------------------------------------------------------------------------


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


def _queue_replay(experiment: Experiment) -> _QueueReplay | None:
    own, placement, seed = _settings(experiment)
    policy, jobs, costs = experiment.policy, experiment.jobs, experiment.conditions.costs
    threshold = own.pop("threshold_gpu_seconds", THRESHOLD_GPU_SECONDS) if policy == "las" else THRESHOLD_GPU_SECONDS
    is_supported = (
        own.items() <= (SJF_SETTINGS if policy == "sjf" else {}).items()
        and isinstance(threshold, int | float)
        and threshold > 0
        and placement in QUEUE_PLACEMENTS
        and _may_be_preempted(experiment)
    )
    if not is_supported:
        return None
    return _QueueReplay(jobs, experiment.cluster, cast(QueueOrder, policy), placement, seed, costs, float(threshold))


# --- what replays support -------------------------------------------------------------------------------------


class _ReplayedPolicy(NamedTuple):
    """From which number of jobs on a replay pays, and what makes it for the experiments that it supports."""

    min_jobs: int
    make: Callable[[Experiment], Replay | None]


_REPLAYS = {
    **dict.fromkeys(("fifo", "fifo-skip"), (_ReplayedPolicy(MIN_JOBS, _fifo_replay),)),
    "easy": (_ReplayedPolicy(MIN_JOBS, _easy_replay), _ReplayedPolicy(PREDICTED_MIN_JOBS, _predicted_easy_replay)),
    **dict.fromkeys(ORDERS, (_ReplayedPolicy(QUEUE_MIN_JOBS, _queue_replay),)),
}


def _settings(experiment: Experiment) -> tuple[dict[str, Any], str, int]:
    """Return the settings of the policy itself, its placement rule, and the seed."""
    own = dict(experiment.settings)
    return own, str(own.pop("placement", "best-fit")), own.pop("seed", 0)


def _runs_as_recorded(experiment: Experiment) -> bool:
    """Whether jobs are admitted at once, run for the recorded time as requested, and none is lost."""
    charge, cluster = experiment.conditions.charge, experiment.cluster
    if charge is not None and (type(charge) is not RecordedSpeeds or not charge.is_of(cluster)):
        return False
    if experiment.conditions.faults or experiment.conditions.never_end:
        return False
    if any(tenant.limit_gpus for tenant in cluster.tenants):
        return False
    return all(job.work is not None and not job.reshapable for job in experiment.jobs)


def _has_no_costs_or_priorities(experiment: Experiment) -> bool:
    """Whether there are neither costs nor priorities."""
    return experiment.conditions.costs == NO_COSTS and len({job.priority for job in experiment.jobs}) <= 1


def _may_be_preempted(experiment: Experiment) -> bool:
    """Whether jobs may be preempted at any time and make no reports, and priorities are numbers of compiled code."""
    has_reports = experiment.conditions.costs.report_every is not None
    return not has_reports and all(
        job.change_limit is None and abs(job.priority) < MAX_PRIORITY for job in experiment.jobs
    )


def _write(journal: Journal, entries: Iterable[Entry]) -> None:
    for entry in entries:
        journal.write(entry)
