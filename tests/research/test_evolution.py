"""The evolution strategy."""

import numpy as np
import pytest

from refold.research import Evolution, EvolutionState


def test_the_evolution_strategy_finds_the_minimum_of_a_scaled_quadratic_function() -> None:
    target, scale = np.array([3.0, -2.0, 0.5]), np.array([1.0, 10.0, 100.0])
    evolution = Evolution(EvolutionState.initial([0.0, 0.0, 0.0], 1.0), population=8, seed=0)
    for _ in range(120):
        samples = evolution.ask()
        evolution.tell(samples, [float((((sample - target) * scale) ** 2).sum()) for sample in samples])
    assert evolution.state.mean == pytest.approx(target, abs=1e-3)
