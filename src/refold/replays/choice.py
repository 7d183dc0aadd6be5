"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from refold.core import Entry, Journal
from refold.model import Cluster, Job
from refold.packing import GENETIC, RULES, FreeResources
from refold.replays.columns import ReplayResult, task_columns
from refold.replays.easy import PLACEMENTS, BackfillOrder, EasyNotes, replay_easy
from refold.replays.fifo import FifoNotes, FifoOrder, replay_fifo
from refold.replays.journal import easy_entries, fifo_entries
from refold.simulator import NO_COSTS, Costs, Fault, NeverEnds, RecordedSpeeds, SpeedModel, check_jobs

MIN_JOBS = 2_000
"""With fewer jobs the general simulator takes a second at most, which is less than compiling a replay."""

KNOWN_EASY_SETTINGS = {"durations": "known", "start_estimates": False}
"""The settings of `easy` that its replay with known run times requires."""


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
    """A compiled replay that gives the same result as `simulate`, and can write the same journal."""

    def run(self) -> ReplayResult:
        """Simulate all jobs to completion."""
        ...

    def run_with_journal(self, journal: Journal) -> ReplayResult:
        """Simulate all jobs to completion, and write the journal."""
        ...


def find_replay(experiment: Experiment, min_jobs: int = MIN_JOBS) -> Replay | None:
    """Return the compiled replay of an experiment that gives the same result as `simulate`; None: there is none.

    A replay supports jobs that run as requested and to completion, without node faults, costs and priorities.
    `min_jobs`: the number from which it pays.
    """
    check_jobs(experiment.jobs)
    make = _REPLAYS.get(experiment.policy)
    if make is None or len(experiment.jobs) < min_jobs or not _runs_as_recorded(experiment):
        return None
    return make(experiment)


def find_journaled_replay(experiment: Experiment, min_jobs: int = MIN_JOBS) -> Replay | None:
    """Return the compiled replay of an experiment if its journal is that of `simulate`, too; None: there is none."""
    replay = find_replay(experiment, min_jobs)
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
    if own or placement not in RULES or placement in GENETIC:
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
    if placement not in PLACEMENTS or not has_equal_speeds or not is_from_zero_on:
        return None
    return _EasyReplay(jobs, cluster, own.get("backfill_order", "shortest"), placement)


# --- what replays support -------------------------------------------------------------------------------------


_REPLAYS: dict[str, Callable[[Experiment], Replay | None]] = {
    "fifo": _fifo_replay,
    "fifo-skip": _fifo_replay,
    "easy": _easy_replay,
}


def _settings(experiment: Experiment) -> tuple[dict[str, Any], str, int]:
    """Return the settings of the policy itself, its placement rule, and the seed."""
    own = dict(experiment.settings)
    return own, str(own.pop("placement", "best-fit")), own.pop("seed", 0)


def _runs_as_recorded(experiment: Experiment) -> bool:
    """Whether jobs are equal, admitted at once, run for the recorded time as requested, and none is lost."""
    charge, cluster = experiment.conditions.charge, experiment.cluster
    if charge is not None and (type(charge) is not RecordedSpeeds or not charge.is_of(cluster)):
        return False
    if experiment.conditions.costs != NO_COSTS or len({job.priority for job in experiment.jobs}) > 1:
        return False
    if experiment.conditions.faults or experiment.conditions.never_end:
        return False
    if any(tenant.limit_gpus for tenant in cluster.tenants):
        return False
    return all(job.work is not None and not job.reshapable for job in experiment.jobs)


def _write(journal: Journal, entries: Iterable[Entry]) -> None:
    for entry in entries:
        journal.write(entry)
