"""CMA-ES: minimises a function of many numbers by sampling a normal distribution that adapts to good samples.

Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), with its default parameters. Only the order of the
costs counts, so that a noisy function does no harm as long as all samples of a generation see the same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class EvolutionState(msgspec.Struct, frozen=True):
    """The state between two generations: the distribution and its evolution paths."""

    mean: list[float]
    sigma: float
    covariance: list[list[float]]
    covariance_path: list[float]
    sigma_path: list[float]
    generation: int = 0

    @staticmethod
    def initial(mean: Sequence[float], sigma: float) -> EvolutionState:
        """Return the first state: independent numbers around `mean`, with standard deviation `sigma`."""
        zeros = [0.0] * len(mean)
        return EvolutionState(list(mean), sigma, np.eye(len(mean)).tolist(), zeros, zeros)


class Evolution:
    """Asks for the costs of a generation of samples, and moves the distribution towards the best half of them."""

    def __init__(self, state: EvolutionState, population: int, seed: int) -> None:
        self.state, self._population, self._seed = state, population, seed
        parents = population // 2
        weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
        self._weights: Floats = weights / weights.sum()
        self._mass = 1.0 / float((self._weights**2).sum())

    def ask(self) -> Floats:
        """Return the samples of this generation, one per row; the same for the same state and seed."""
        normal = np.random.default_rng((self._seed, self.state.generation)).standard_normal(
            (self._population, len(self.state.mean))
        )
        root, _ = self._roots()
        samples: Floats = np.array(self.state.mean) + self.state.sigma * normal @ root.T
        return samples

    def tell(self, samples: Floats, costs: Sequence[float]) -> None:
        """Update the distribution with the costs of the samples."""
        old, count, mass = self.state, len(self.state.mean), self._mass
        rate_sigma = (mass + 2) / (count + mass + 5)
        damping = 1 + 2 * max(0.0, sqrt((mass - 1) / (count + 1)) - 1) + rate_sigma
        rate_path = (4 + mass / count) / (count + 4 + 2 * mass / count)
        rate_one = 2 / ((count + 1.3) ** 2 + mass)
        rate_mass = min(1 - rate_one, 2 * (mass - 2 + 1 / mass) / ((count + 2) ** 2 + mass))
        expected_norm = sqrt(count) * (1 - 1 / (4 * count) + 1 / (21 * count**2))

        best = samples[np.argsort(costs, kind="stable")[: len(self._weights)]]
        steps = (best - np.array(old.mean)) / old.sigma
        step = self._weights @ steps
        _, inverse_root = self._roots()
        sigma_path = (1 - rate_sigma) * np.array(old.sigma_path)
        sigma_path += sqrt(rate_sigma * (2 - rate_sigma) * mass) * inverse_root @ step
        norm = float(np.linalg.norm(sigma_path))
        is_steady = norm / sqrt(1 - (1 - rate_sigma) ** (2 * (old.generation + 1))) < (1.4 + 2 / (count + 1)) * (
            expected_norm
        )
        path = (1 - rate_path) * np.array(old.covariance_path)
        path += is_steady * sqrt(rate_path * (2 - rate_path) * mass) * step
        lost = (1 - is_steady) * rate_path * (2 - rate_path)
        covariance = (1 - rate_one * (1 - lost) - rate_mass) * np.array(old.covariance)
        covariance += rate_one * np.outer(path, path) + rate_mass * (steps.T * self._weights) @ steps
        self.state = EvolutionState(
            (np.array(old.mean) + old.sigma * step).tolist(),
            old.sigma * float(np.exp(rate_sigma / damping * (norm / expected_norm - 1))),
            ((covariance + covariance.T) / 2).tolist(),
            path.tolist(),
            sigma_path.tolist(),
            old.generation + 1,
        )

    def _roots(self) -> tuple[Floats, Floats]:
        """Return the square root of the covariance, and its inverse."""
        values, vectors = np.linalg.eigh(np.array(self.state.covariance))
        deviations = np.sqrt(np.maximum(values, 1e-20))
        return (vectors * deviations) @ vectors.T, (vectors / deviations) @ vectors.T
