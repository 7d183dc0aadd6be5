"""The search for settings: halving on slices, variations of the best, and ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from refold.policies import Choices, Range, range_by_default
from refold.simulator.results import JobMeasures
from refold.simulator.tuning.search import BATCH, Search, Settings, SettingTrial, Space, expected_slices
from refold.simulator.tuning.trade_off import OBJECTIVES

SLICES = 8
JOBS = 20
RANGES: dict[str, Range | Choices] = {"price": Range(1.0, 100.0, log=True), "lanes": Choices((False, True))}
DEFAULTS = {"price": 50.0, "lanes": False}


class Simulator:
    """Delays are least at a price of 5 with lanes; counts the simulated slices."""

    def __init__(self) -> None:
        self.trials: list[SettingTrial] = []

    def __call__(self, trials: Sequence[SettingTrial]) -> Sequence[JobMeasures]:
        self.trials += trials
        return [self.measure(trial) for trial in trials]

    def measure(self, trial: SettingTrial) -> JobMeasures:
        settings = {**DEFAULTS, **trial.settings}
        distance = abs(np.log(settings["price"] / 5.0)) + (not settings["lanes"])
        busy = 100.0 * (trial.slice + 1)
        delay = np.full(JOBS, busy * (1.0 + distance))
        return JobMeasures(delay, np.ones(JOBS), np.zeros(JOBS))


def make_search(seed: int = 0, fixed: Settings | None = None, is_valid: bool = True) -> Search:
    ranges = {name: one for name, one in RANGES.items() if name not in (fixed or {})}
    space = Space(ranges, fixed or {}, lambda _: is_valid)
    return Search(space, DEFAULTS, [np.ones(JOBS)] * SLICES, OBJECTIVES["balanced"], seed)


def test_better_settings_are_found_and_the_default_ones_come_first() -> None:
    found = make_search().run(Simulator(), 48, lambda: True)
    assert found[0].settings == {}
    best = min(found, key=lambda one: one.values[0])
    assert best.settings["lanes"] is True
    assert 3.0 < best.settings["price"] < 8.0


def test_few_settings_are_simulated_on_all_slices() -> None:
    simulator = Simulator()
    found = make_search().run(simulator, BATCH, lambda: True)
    slices = [sum(one.settings == trial.settings for one in simulator.trials) for trial in simulator.trials]
    assert len(found) == 1 + BATCH // 4
    assert sorted(set(slices)) == [1, 2, SLICES]
    assert len(simulator.trials) == expected_slices(BATCH, SLICES) < SLICES * BATCH


def test_the_busiest_slices_are_simulated_first() -> None:
    simulator = Simulator()
    make_search().run(simulator, BATCH, lambda: True)
    assert [trial.slice for trial in simulator.trials[SLICES : SLICES + BATCH]] == [SLICES - 1] * BATCH


def test_a_search_depends_on_its_seed_only() -> None:
    first, again, other = (make_search(seed).run(Simulator(), 32, lambda: True) for seed in (1, 1, 2))
    assert [one.settings for one in first] == [one.settings for one in again]
    assert [one.settings for one in first] != [one.settings for one in other]


def test_no_settings_are_tried_after_the_time_is_over() -> None:
    search = make_search()
    assert [one.settings for one in search.run(Simulator(), 48, lambda: False)] == [{}]


def test_fixed_settings_do_not_vary() -> None:
    simulator = Simulator()
    make_search(fixed={"price": 7.0}).run(simulator, 48, lambda: True)
    assert {trial.settings["price"] for trial in simulator.trials} == {7.0}


def test_settings_are_tried_once() -> None:
    simulator = Simulator()
    make_search(fixed={"price": 7.0}).run(simulator, 48, lambda: True)
    keys = [(str(trial.settings), trial.slice) for trial in simulator.trials]
    assert len(keys) == len(set(keys))


def test_settings_that_the_policy_rejects_are_not_tried() -> None:
    simulator = Simulator()
    make_search(is_valid=False).run(simulator, 48, lambda: True)
    assert {str(trial.settings) for trial in simulator.trials} == {"{}"}


@pytest.mark.parametrize(
    ("one", "values"),
    [
        (Range(1.0, 100.0, log=True), [1.0, 10.0, 100.0]),
        (Range(0.0, 1.0), [0.0, 0.5, 1.0]),
        (Range(1, 9), [1, 5, 9]),
        (Choices(("a", "b", "c")), ["a", "b", "c"]),
    ],
)
def test_values_of_a_range(one: Range | Choices, values: list[object]) -> None:
    assert [one.value(share) for share in (0.0, 0.5, 1.0)] == values


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        (True, Choices((False, True))),
        (8, Range(2, 32, log=True)),
        (100.0, Range(25.0, 400.0, log=True)),
        (0.5, Range(0.125, 1.0)),
        (0, None),
        ("arrival", None),
    ],
)
def test_a_range_follows_from_the_type_of_the_default(default: object, expected: object) -> None:
    assert range_by_default(default) == expected


def test_a_share_is_the_inverse_of_a_value() -> None:
    for one in (Range(1.0, 100.0, log=True), Range(-2.0, 2.0)):
        assert one.share(one.value(0.25)) == pytest.approx(0.25, abs=0.01)
