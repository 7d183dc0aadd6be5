"""Choose settings: search on the tuning part, then compare the points of the trade-off on the report part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.errors import BadInput
from refold.model import Seconds
from refold.placement import Floats
from refold.simulator.results import JobMeasures
from refold.simulator.tuning.report import Doubt, ReportPart, ReportPolicy, TuningReport, make_report
from refold.simulator.tuning.search import (
    Evaluate,
    Evaluated,
    Search,
    SettingTrial,
    Space,
    find_front,
    lucky_settings,
)
from refold.simulator.tuning.trade_off import Objective

MAX_SLICES = 8
MIN_SLICE_JOBS = 50
WARM_UP = 0.25
"""Jobs that are simulated before those that are measured, as a share of these: the cluster is not empty."""

MIN_JOBS = 2 * MIN_SLICE_JOBS


class HistoryPart(NamedTuple):
    """Jobs of a history by number: those from `first` up to `last` are simulated, those from `measured` on measured."""

    first: int
    measured: int
    last: int

    @property
    def simulated(self) -> int:
        return self.last - self.first


class Split(NamedTuple):
    """The slices of the tuning part, and the report part, whose measured jobs are submitted after all of theirs."""

    slices: tuple[HistoryPart, ...]
    report: HistoryPart


def split_history(submitted: Sequence[Seconds], report_share: float) -> Split:
    """Split the jobs of a history, which are sorted by submission; the last `report_share` of them are reported."""
    if len(submitted) < MIN_JOBS:
        raise BadInput(f"expected a history of at least {MIN_JOBS} jobs, found {len(submitted)}")
    begin = round(len(submitted) * (1 - report_share))
    while begin < len(submitted) and submitted[begin] <= submitted[begin - 1]:
        begin += 1  # jobs that are submitted at once belong to one part
    if not MIN_SLICE_JOBS <= begin <= len(submitted) - MIN_SLICE_JOBS:
        raise BadInput(
            f"of {len(submitted)} jobs, the first {begin} would be for tuning and the others for the report, expected "
            f"at least {MIN_SLICE_JOBS} each; jobs that are submitted at the same time are not divided"
        )
    count = MAX_SLICES
    while begin // count < MIN_SLICE_JOBS:
        count //= 2
    edges = [begin * number // count for number in range(count + 1)]
    slices = tuple(_part(first, last) for first, last in pairwise(edges))
    return Split(slices, _part(begin, len(submitted)))


def _part(first: int, last: int) -> HistoryPart:
    return HistoryPart(max(0, first - round((last - first) * WARM_UP)), first, last)


class PartRun(NamedTuple):
    """A policy with its settings, to simulate on a part of the history."""

    policy: str
    settings: Mapping[str, Any]
    part: HistoryPart


Simulate = Callable[[Sequence[PartRun]], Sequence[JobMeasures]]


class TunedPolicy(NamedTuple):
    """The policy to tune: its name, the settings that vary, and the default values of all settings."""

    name: str
    space: Space
    defaults: Mapping[str, Any]


class Goal(msgspec.Struct, frozen=True):
    """What to choose settings by. `pick`: number of the chosen point (None: the best by the objective)."""

    objective: Objective
    baselines: tuple[ReportPolicy, ...] = ()
    pick: int | None = None


class TrialBudget(NamedTuple):
    """How many settings to try, and whether to go on."""

    trials: int
    may_continue: Callable[[], bool] = lambda: True


class TuningResult(NamedTuple):
    """The report, and the number of settings that were tried, and that were simulated on the whole tuning part."""

    report: TuningReport
    tried: int
    finalists: int


class Tuner:
    """Tunes a policy on a history, of which `submitted` and `gpus` are the times of submission and GPUs of jobs."""

    def __init__(self, split: Split, submitted: Floats, gpus: Floats, simulate: Simulate, seed: int = 0) -> None:
        self._split, self._submitted, self._gpus = split, submitted, gpus
        self._simulate, self._seed = simulate, seed

    def tune(self, policy: TunedPolicy, goal: Goal, budget: TrialBudget) -> TuningResult:
        """Choose settings on the tuning part, and compare them with others on the report part."""
        search = Search(policy.space, policy.defaults, self.gpus_of_slices(), goal.objective, self._seed)
        found = search.run(self.evaluator(policy.name), budget.trials, budget.may_continue)
        default = ReportPolicy("default", f"{policy.name}, default settings", policy.name, policy.space.fixed)
        lucky = lucky_settings(found, goal.objective)
        if lucky and goal.pick is None:
            report = self.report([default], goal.objective)
            doubt = Doubt(lucky.wins, lucky.needed, lucky.slices)
            return TuningResult(msgspec.structs.replace(report, doubt=doubt), search.tried, len(found))
        front = find_front(found, goal.objective)
        scores = [float(goal.objective.scores(one.values, found[0].values)) for one in front]
        points = [
            ReportPolicy("point", f"point {number}", policy.name, one.settings, number, score)
            for number, (one, score) in enumerate(zip(front, scores, strict=True), start=1)
        ]
        chosen = goal.pick or _choose(front, scores)
        if chosen and chosen > len(points):
            raise BadInput(f"--pick {chosen}: the trade-off has the points 1 to {len(points)}")
        report = self.report([default, *points, *goal.baselines], goal.objective, chosen)
        return TuningResult(report, search.tried, len(found))

    def report(self, policies: Sequence[ReportPolicy], objective: Objective, chosen: int | None = None) -> TuningReport:
        """Compare policies on the report part; the first has the default settings."""
        part = self._split.report
        results = self._simulate([PartRun(one.policy, one.settings, part) for one in policies])
        if not np.isfinite(results[0].delay).any():
            raise BadInput("no job of the later part ends under the default settings: do jobs fit the cluster?")
        measured = ReportPart(self._submitted[part.measured : part.last], self._gpus[part.measured : part.last])
        return make_report(measured, list(zip(policies, results, strict=True)), objective, chosen, self._seed)

    def gpus_of_slices(self) -> list[Floats]:
        return [self._gpus[part.measured : part.last] for part in self._split.slices]

    def evaluator(self, policy: str) -> Evaluate:
        """Return a function that simulates a policy with settings on slices."""

        def evaluate(trials: Sequence[SettingTrial]) -> Sequence[JobMeasures]:
            return self._simulate([PartRun(policy, one.settings, self._split.slices[one.slice]) for one in trials])

        return evaluate


def _choose(front: Sequence[Evaluated], scores: Sequence[float]) -> int | None:
    """Return the number of the best point that is better than the default settings, also on most slices."""
    better = (number for number, score in enumerate(scores, start=1) if score < 1 and front[number - 1].is_trusted)
    return next(better, None)
