"""Other searches, with the same number of simulated slices: random search, and Optuna's TPE if it is installed.

Both simulate every setting on the whole tuning part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refold.policies import Range
from refold.simulator.tuning import Evaluated, Objective, Search, Space, TunedPolicy, Tuner, expected_slices

HALVING, RANDOM, TPE = "refold tune", "random search", "TPE (Optuna)"


class SearchRun(NamedTuple):
    """The best settings that a search has found, their score on the tuning part, and the slices it has simulated."""

    settings: Mapping[str, Any]
    score: float
    slices: int


Score = Callable[[Mapping[str, Any]], float]


def run_search(
    method: str, tuner: Tuner, policy: TunedPolicy, objective: Objective, trials: int, seed: int
) -> SearchRun:
    """Search with about as many simulated slices as `refold tune` needs for so many settings."""
    counted: list[int] = []
    if method == HALVING:
        search = Search(policy.space, policy.defaults, tuner.gpus_of_slices(), objective, seed)
        found = search.run(_counting(tuner, policy, counted), trials, lambda: True)
        return _best(found, objective, sum(counted))
    slices = len(tuner.gpus_of_slices())
    number = expected_slices(trials, slices) // slices - 1
    full = Search(policy.space, policy.defaults, tuner.gpus_of_slices(), objective, seed)
    evaluate = _counting(tuner, policy, counted)
    default = full.evaluate_fully(evaluate, policy.space.fixed)
    found = [default]

    def score(settings: Mapping[str, Any]) -> float:
        found.append(full.evaluate_fully(evaluate, settings))
        return float(objective.scores(found[-1].values, default.values))

    {RANDOM: _random, TPE: _tpe}[method](policy.space, number, seed, score)
    return _best(found, objective, sum(counted))


def _counting(tuner: Tuner, policy: TunedPolicy, counted: list[int]) -> Any:
    evaluate = tuner.evaluator(policy.name)

    def count(trials: Any) -> Any:
        counted.append(len(trials))
        return evaluate(trials)

    return count


def _best(found: list[Evaluated], objective: Objective, slices: int) -> SearchRun:
    scores = objective.scores(np.array([one.values for one in found]), found[0].values)
    best = int(np.argmin(scores))
    return SearchRun(found[best].settings, float(scores[best]), slices)


def _random(space: Space, number: int, seed: int, score: Score) -> None:
    random = np.random.default_rng(seed)
    tried = 0
    while tried < number:
        for settings in space.spread(1, random):
            if space.is_valid(settings):
                score(settings)
                tried += 1


def has_optuna() -> bool:
    """Return whether Optuna is installed."""
    return importlib.util.find_spec("optuna") is not None


def _tpe(space: Space, number: int, seed: int, score: Score) -> None:
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: Any) -> float:
        settings = {}
        for name, one in space.ranges.items():
            if isinstance(one, Range):
                share = trial.suggest_float(name, 0.0, 1.0)
                settings[name] = one.value(share)
            else:
                settings[name] = one.values[trial.suggest_categorical(name, range(len(one.values)))]
        if not space.is_valid(settings):
            raise optuna.TrialPruned
        return score(settings)

    study.optimize(objective, n_trials=number)
