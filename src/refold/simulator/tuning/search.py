"""Search for good settings by successive halving: many on few slices of the tuning part, the best of them on all.

Settings are compared on the same slices, so that differences between slices do not count. Settings are drawn in
batches. Half of a batch is spread over the ranges; the other half are variations of the best found so far, at first of
the default settings. Which settings go on is decided by the objective and, for the trade-off, by each measure in turn.

The result is the Pareto front: the settings that no others beat in all measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from refold.errors import BadInput
from refold.placement import Floats
from refold.policies import Choices, SettingRange
from refold.simulator.results import JobMeasures, join_measures
from refold.simulator.tuning.trade_off import MEASURES, CountedJobs, Objective

BATCH = 16
"""Settings per batch."""

RUNGS = ((1 / 8, 1.0), (1 / 4, 1 / 2), (1.0, 1 / 4))
"""Shares of the slices, and of the settings of a batch that are tried on so many."""

STEP = 0.2
"""Standard deviation of a variation, as a share of the range."""

MUTATION = 0.4
"""Probability that a setting varies."""

MAX_DRAWS = 50
"""How often settings that are invalid, or were tried before, are drawn again."""

Settings = Mapping[str, Any]

MAX_POINTS = 8

MOST = 0.75
"""Share of the slices on which settings have to be better than the default ones: otherwise their lead is luck."""

MIN_WINS = 3


class SettingTrial(NamedTuple):
    """Settings to simulate on a slice, by number."""

    settings: Settings
    slice: int


Evaluate = Callable[[Sequence[SettingTrial]], Sequence[JobMeasures]]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """Settings that were simulated on all slices, and the values of their measures.

    `wins`: on how many slices their score is better than that of the default settings, of `slices` where it differs.
    """

    settings: Settings
    values: Floats
    wins: int = 0
    slices: int = 0

    @property
    def needed(self) -> int:
        """Number of wins from which a lead is trusted."""
        return max(MIN_WINS, ceil(MOST * self.slices))

    @property
    def is_trusted(self) -> bool:
        """Whether the settings are better than the default ones on most slices."""
        return self.wins >= self.needed


@dataclass(frozen=True, slots=True)
class Space:
    """The ranges of settings that vary; `fixed`: others that are set; `is_valid`: whether a policy takes them all."""

    ranges: Mapping[str, SettingRange]
    fixed: Settings
    is_valid: Callable[[Settings], bool]

    def spread(self, number: int, random: np.random.Generator) -> Iterator[Settings]:
        """Yield settings spread over the ranges: each is divided into as many parts, each of which is used once."""
        parts = {name: random.permutation(number) for name in self.ranges}
        for row in range(number):
            shares = {name: (part[row] + random.random()) / number for name, part in parts.items()}
            yield {**self.fixed, **{name: self.ranges[name].value(share) for name, share in shares.items()}}

    def vary(self, parent: Settings, other: Settings, defaults: Settings, random: np.random.Generator) -> Settings:
        """Return a variation: some settings of another parent, and some changed at random."""
        child = dict(self.fixed)
        varied = random.choice(list(self.ranges))
        for name, possible in self.ranges.items():
            source = other if random.random() < 0.25 else parent
            value = source.get(name, defaults[name])
            if name == varied or random.random() < MUTATION:
                value = _near(possible, value, random)
            if value != defaults[name]:
                child[name] = value
        return child


def _near(possible: SettingRange, value: Any, random: np.random.Generator) -> Any:
    if isinstance(possible, Choices):
        return possible.value(random.random())
    share = possible.share(value) + random.normal(0.0, STEP)
    return possible.value(min(max(share, 0.0), 1.0))


class Search:
    """A search for settings. `defaults`: default values of all settings. `gpus`: of the measured jobs of each slice."""

    def __init__(
        self, space: Space, defaults: Settings, gpus: Sequence[Floats], objective: Objective, seed: int = 0
    ) -> None:
        self._space, self._defaults, self._gpus = space, defaults, gpus
        self._objective, self._seed = objective, seed
        self._reference: Sequence[JobMeasures] = ()
        self._found: list[Evaluated] = []
        self._seen: list[Settings] = []

    @property
    def tried(self) -> int:
        return max(0, len(self._seen) - 1)

    def run(self, evaluate: Evaluate, trials: int, may_continue: Callable[[], bool]) -> list[Evaluated]:
        """Try settings while `may_continue`; return those that were simulated on all slices, the default ones first.

        The search stops early if the only settings that are better are so by luck: trying more would find more luck.
        """
        self._reference = ()
        self._seen, self._found = [self._space.fixed], [self.evaluate_fully(evaluate, self._space.fixed)]
        slices = range(len(self._gpus))
        order = sorted(slices, key=lambda part: -_finite_sum(self._reference[part].delay))
        for batch in count():
            candidates = self._draw(batch, min(BATCH, trials - self.tried)) if may_continue() else []
            if not candidates:
                break
            self._halve(evaluate, candidates, order, may_continue)
            if lucky_settings(self._found, self._objective):
                break
        return self._found

    def evaluate_fully(self, evaluate: Evaluate, settings: Settings) -> Evaluated:
        """Simulate settings on all slices; the first ones are those that all others are compared with."""
        measured = evaluate([SettingTrial(settings, part) for part in range(len(self._gpus))])
        if not self._reference:
            _check_waiting(measured)
            self._reference = measured
        return self._evaluated(settings, measured)

    def _halve(
        self, evaluate: Evaluate, candidates: Sequence[Settings], order: Sequence[int], may_continue: Callable[[], bool]
    ) -> None:
        """Simulate settings on more and more slices, and fewer and fewer settings."""
        measured: list[dict[int, JobMeasures]] = [{} for _ in candidates]
        alive = list(range(len(candidates)))
        used: Sequence[int] = ()
        for share_of_slices, share_of_batch in RUNGS:
            if used:
                values = np.array([self._values([measured[one][part] for part in used], used) for one in alive])
                survivors = self._survivors(values, used, max(1, round(len(candidates) * share_of_batch)))
                alive = [alive[row] for row in survivors]
            if not may_continue():
                return
            used = order[: max(1, round(len(order) * share_of_slices))]
            missing = [(one, part) for one in alive for part in used if part not in measured[one]]
            results = evaluate([SettingTrial(candidates[one], part) for one, part in missing])
            for (one, part), result in zip(missing, results, strict=True):
                measured[one][part] = result
        for one in alive:
            in_order = [measured[one][part] for part in range(len(self._gpus))]
            self._found.append(self._evaluated(candidates[one], in_order))

    def _evaluated(self, settings: Settings, measured: Sequence[JobMeasures]) -> Evaluated:
        """Return settings with their values on all slices together, and the number of slices on which they win."""
        ended = [part for part in range(len(self._gpus)) if np.isfinite(self._reference[part].delay).any()]
        scores = np.array([self._score([measured[part]], [part]) for part in ended])
        values = self._values(measured, range(len(self._gpus)))
        return Evaluated(settings, values, int((scores < 1.0).sum()), int((scores != 1.0).sum()))

    def _score(self, measured: Sequence[JobMeasures], parts: Sequence[int]) -> float:
        reference = self._values([self._reference[part] for part in parts], parts)
        return float(self._objective.scores(self._values(measured, parts), reference))

    def _survivors(self, values: Floats, used: Sequence[int], number: int) -> list[int]:
        """Return the best rows: every other by the objective, the rest by each measure in turn."""
        reference = self._values([self._reference[part] for part in used], used)
        by_objective = np.argsort(self._objective.scores(values, reference), kind="stable").tolist()
        by_measure = [np.argsort(values[:, column], kind="stable").tolist() for column in range(len(MEASURES))]
        rankings = cycle([ranking for single in by_measure for ranking in (by_objective, single)])
        chosen: list[int] = []
        while len(chosen) < min(number, len(values)):
            chosen.append(next(row for row in next(rankings) if row not in chosen))
        return sorted(chosen)

    def _draw(self, batch: int, number: int) -> list[Settings]:
        """Draw settings that were not tried before."""
        random = np.random.default_rng([self._seed, batch])
        drawn: list[Settings] = []
        parents = self._parents()
        spread = list(self._space.spread(-(-number // 2), random))
        for _ in range(MAX_DRAWS * number):
            if len(drawn) == number:
                break
            if len(drawn) % 2:
                first, second = (parents[int(random.integers(len(parents)))] for _ in range(2))
                settings = self._space.vary(first, second, self._defaults, random)
            else:
                spread = spread or list(self._space.spread(number, random))
                settings = spread.pop()
            if settings not in self._seen and self._space.is_valid(settings):
                drawn.append(settings)
                self._seen.append(settings)
        return drawn

    def _parents(self) -> list[Settings]:
        """Return the settings to vary: the best by the objective, which count double, and the best by each measure."""
        values = np.array([one.values for one in self._found])
        by_objective = np.argsort(self._objective.scores(values, values[0]), kind="stable")[:3].tolist()
        by_measure = [int(np.argmin(values[:, column])) for column in range(len(MEASURES))]
        return [self._found[row].settings for row in (*by_objective, *by_objective, *by_measure)]

    def _values(self, measured: Sequence[JobMeasures], parts: Sequence[int]) -> Floats:
        reference = join_measures([self._reference[part] for part in parts])
        gpus = np.concatenate([self._gpus[part] for part in parts])
        return CountedJobs.finished_under(reference, gpus).trade_off(join_measures(measured))


def _check_waiting(measured: Sequence[JobMeasures]) -> None:
    """Raise if there is nothing to tune: no job ends, or none waits."""
    delays = np.concatenate([one.delay for one in measured])
    if not np.isfinite(delays).any():
        raise BadInput("no job of the tuning part ends under the default settings: do jobs fit the cluster?")
    if not (delays[np.isfinite(delays)] > 0).any():
        raise BadInput("no job of the tuning part waits under the default settings: there is nothing to tune")


def _finite_sum(values: Floats) -> float:
    return float(values[np.isfinite(values)].sum())


def expected_slices(trials: int, slices: int) -> int:
    """Return about how many slices are simulated for so many settings, the default ones included."""
    total, before = 0.0, 0
    for share_of_slices, share_of_batch in RUNGS:
        upto = max(1, round(slices * share_of_slices))
        total += trials * share_of_batch * (upto - before)
        before = upto
    return slices + round(total)


def lucky_settings(found: Sequence[Evaluated], objective: Objective) -> Evaluated | None:
    """Return the best settings if some are better than the default ones, but none of these on most slices."""
    front = find_front(found, objective)
    better = [one for one in front if objective.scores(one.values, found[0].values) < 1]
    return better[0] if better and not any(one.is_trusted for one in better) else None


def find_front(found: Sequence[Evaluated], objective: Objective) -> list[Evaluated]:
    """Return the settings on the front, best by the objective first; the first of `found`, the default, is left out.

    Of settings with the same values, the first stay. If there are many points, the best by each measure stay, then the
    best by the objective.
    """
    values = np.array([one.values for one in found])
    defined = values[:, ~np.isnan(values).any(axis=0)]
    scores = objective.scores(values, values[0])
    front = [
        row
        for row in range(1, len(found))
        if not _is_dominated(defined[row], np.delete(defined, row, axis=0))
        and not (defined[:row] == defined[row]).all(axis=1).any()
    ]
    if not front:
        return []
    by_objective = sorted(front, key=lambda row: scores[row])
    best = [min(front, key=lambda row: (defined[row, column], row)) for column in range(defined.shape[1])]
    kept = list(dict.fromkeys([by_objective[0], *best, *by_objective]))[:MAX_POINTS]
    return [found[row] for row in sorted(kept, key=lambda row: scores[row])]


def _is_dominated(values: Floats, others: Floats) -> bool:
    """Return whether others are better in one measure and not worse in any."""
    return bool(((others <= values).all(axis=1) & (others < values).any(axis=1)).any())
