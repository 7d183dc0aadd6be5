"""Does a training that changes shape give the same losses and weights as one that does not?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.reshaping.job import TrainingJob, Way, plans
from refold.model import Plan

SEQUENCE = plans("dp2", "tp2", "pp2 accumulate 2", "dp2 zero3", "dp1 accumulate 4 recompute full", "dp4")
"""The plans that the issue names, in its order; the number of ranks changes between them."""

ALL_PLANS = plans(
    "dp1",
    "dp1 accumulate 2 recompute full",
    "dp1 offload",
    "dp2",
    "tp2",
    "dp2 zero1 accumulate 2",
    "dp2 zero3 recompute selective",
    "pp2 accumulate 4",
    "dp4 zero2",
    "dp2 tp2 zero3",
    "pp2 dp2 accumulate 2",
    "pp2 tp2 accumulate 2",
)

SECONDS_PER_CHANGE = 5.0
"""A training is slowed down so that there is so much time between two changes."""

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


class Comparison(NamedTuple):
    """Largest relative difference of losses and largest difference of weights, relative to the largest weight."""

    name: str
    dtype: str
    steps: int
    changes: int
    losses: float
    weights: float

    @property
    def is_equal(self) -> bool:
        """Whether the losses are within the tolerance."""
        return self.losses <= TOLERANCE[self.dtype]


def compare_named_sequence(folder: Path, dtype: str, steps: int) -> Comparison:
    """Train with the plans of `SEQUENCE`, each changed live at an arbitrary step."""
    reference = _undisturbed(folder / f"reference-{dtype}-{steps}", dtype, steps)
    chance = random.Random(steps)
    changes: list[tuple[Plan, Way]] = [(plan, "live") for plan in SEQUENCE[1:]]
    return _compare(folder / f"named-{dtype}-{steps}", reference, "named", dtype, steps, SEQUENCE[0], changes, chance)


def compare_random_sequence(folder: Path, seed: int, dtype: str, steps: int, count: int) -> Comparison:
    """Train with random plans; live, warm and cold changes at random steps."""
    reference = _undisturbed(folder / f"reference-{dtype}-{steps}", dtype, steps)
    chance = random.Random(seed)
    ways: Sequence[Way] = ("live", "live", "live", "warm", "cold")
    changes = [(chance.choice(ALL_PLANS), chance.choice(ways)) for _ in range(count)]
    first = chance.choice(ALL_PLANS)
    return _compare(folder / f"seed-{seed}", reference, f"seed {seed}", dtype, steps, first, changes, chance)


def _undisturbed(folder: Path, dtype: str, steps: int) -> Path:
    if not (folder / "weights").exists():
        job = TrainingJob(folder, "--steps", steps, "--dtype", dtype)
        _run(job, lambda: job.start(Plan()))
    return folder


def _compare(
    folder: Path,
    reference: Path,
    name: str,
    dtype: str,
    steps: int,
    first: Plan,
    changes: Sequence[tuple[Plan, Way]],
    chance: random.Random,
) -> Comparison:
    pace = SECONDS_PER_CHANGE * (len(changes) + 1) / steps
    job = TrainingJob(folder, "--steps", steps, "--dtype", dtype, "--pace", pace)

    def train() -> None:
        job.start(first)
        for number, (plan, way) in enumerate(changes, 1):
            earliest = steps * number // (len(changes) + 2)
            job.wait_for_step(earliest + chance.randrange(max(1, steps // (2 * len(changes) + 4))))
            job.change(plan, way)

    _run(job, train)
    expected = {step.number: step.loss for step in TrainingJob(reference).steps()}
    found = job.steps()
    if {step.number for step in found} != expected.keys():
        raise RuntimeError(f"{name}: steps are missing")
    losses = max(abs(step.loss - expected[step.number]) / abs(expected[step.number]) for step in found)
    return Comparison(name, dtype, steps, len(changes), losses, _weight_difference(folder, reference))


def _run(job: TrainingJob, train: Callable[[], None]) -> None:
    try:
        train()
        job.finish()
    finally:
        job.kill()


def _weight_difference(folder: Path, reference: Path) -> float:
    import torch

    found, expected = torch.load(folder / "weights"), torch.load(reference / "weights")
    largest = max(float(weights.abs().max()) for weights in expected.values())
    return max(float((found[name] - weights).abs().max()) for name, weights in expected.items()) / largest
