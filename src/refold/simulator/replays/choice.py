"""Which policies and experiments have a compiled replay that gives the same result as the general simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from refold.core import Journal
from refold.model import Cluster, Job
from refold.placement import GENETIC, RULES, FreeResources
from refold.simulator import NO_COSTS, Costs, Fault, NeverEnds, RecordedSpeeds, SpeedModel, check_jobs
from refold.simulator.replays.columns import ReplayResult, TaskColumns, task_columns
from refold.simulator.replays.easy import PLACEMENTS, replay_easy
from refold.simulator.replays.fifo import FifoOrder, replay_fifo
from refold.simulator.replays.journal import journal_entries
from refold.simulator.replays.loop import JournalNotes

KNOWN_EASY_SETTINGS = {"durations": "known"}
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


class Loop(Protocol):
    """`replay_fifo` or `replay_easy`, with the settings of a policy."""

    def __call__(self, tasks: TaskColumns, cluster: Cluster, *, notes: JournalNotes | None) -> ReplayResult: ...


class Replay(NamedTuple):
    """A compiled replay that gives the same result as `simulate`, and can write the same journal."""

    jobs: Sequence[Job]
    cluster: Cluster
    loop: Loop

    def run(self, journal: Journal | None = None) -> ReplayResult:
        """Simulate all jobs to completion, and write the journal."""
        notes = None if journal is None else JournalNotes(len(self.jobs))
        replayed = self.loop(task_columns(self.jobs), self.cluster, notes=notes)
        if journal is not None and notes is not None:
            for entry in journal_entries(self.jobs, replayed, notes, len(self.cluster.nodes)):
                journal.write(entry)
        return replayed


def find_replay(experiment: Experiment) -> Replay | None:
    """Return the compiled replay of an experiment that gives the same result as `simulate`; None: there is none.

    A replay supports jobs that run as requested and to completion, without node faults, costs and priorities.
    """
    check_jobs(experiment.jobs)
    find_loop = _LOOPS.get(experiment.policy)
    loop = find_loop(experiment) if find_loop is not None and _runs_as_recorded(experiment) else None
    return None if loop is None else Replay(experiment.jobs, experiment.cluster, loop)


def find_journaled_replay(experiment: Experiment) -> Replay | None:
    """Return the compiled replay of an experiment if its journal is that of `simulate`, too; None: there is none."""
    free = FreeResources(experiment.cluster)
    is_feasible = all(free.fits_when_empty(demand) for demand in {job.demand for job in experiment.jobs})
    return find_replay(experiment) if is_feasible else None


def _fifo_loop(experiment: Experiment) -> Loop | None:
    own, placement, seed = _settings(experiment)
    if own or placement not in RULES or placement in GENETIC:
        return None
    return partial(replay_fifo, placement=placement, order=cast(FifoOrder, experiment.policy), seed=seed)


def _easy_loop(experiment: Experiment) -> Loop | None:
    own, placement, _ = _settings(experiment)
    jobs = experiment.jobs
    without_effect = {"duration_quantile", "confidence", "preempt", "backfill_order", "knowledge"}
    if {name: own[name] for name in own.keys() - without_effect} != KNOWN_EASY_SETTINGS:
        return None
    has_equal_speeds = set(RecordedSpeeds(experiment.cluster).speed_of_node.tolist()) == {1.0}
    is_from_zero_on = not jobs or jobs[0].submitted >= 0  # as the bounds of times in the replay
    if placement not in PLACEMENTS or not has_equal_speeds or not is_from_zero_on:
        return None
    return partial(replay_easy, placement=placement, backfill_order=own.get("backfill_order", "shortest"))


_LOOPS: dict[str, Callable[[Experiment], Loop | None]] = {
    "fifo": _fifo_loop,
    "fifo-skip": _fifo_loop,
    "easy": _easy_loop,
}


def _settings(experiment: Experiment) -> tuple[dict[str, Any], str, int]:
    """Return the settings of the policy itself, its placement rule, and the seed."""
    own = dict(experiment.settings)
    if not own.get("start_estimates"):
        own.pop("start_estimates", None)
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
