"""Variants of Rubick's traces (load, share of large models), and errors of the speeds that policies predict."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import exp

import msgspec
import numpy as np

from refold.model import Job, Plan
from refold.planning.perf import TrainingSetup
from refold.planning.plans import Knowledge, Layout, Speed, Speeds
from refold.simulator import SpeedModel

LARGE = ("llama7", "llama30")
"""The large models."""


def at_load(jobs: Sequence[Job], load: float) -> tuple[Job, ...]:
    """Return the same jobs, arriving `load` times as fast."""
    return tuple(msgspec.structs.replace(job, submitted=job.submitted / load) for job in jobs)


def permuted(jobs: Sequence[Job], draw: int) -> tuple[Job, ...]:
    """Return the same jobs, randomly assigned to the same submission times; draw 0: the jobs as they are."""
    if draw == 0:
        return tuple(jobs)
    order = np.random.default_rng(draw).permutation(len(jobs)).tolist()
    return tuple(
        msgspec.structs.replace(jobs[other], submitted=job.submitted) for job, other in zip(jobs, order, strict=True)
    )


def with_large_share(jobs: Sequence[Job], share: float, charge: SpeedModel, seed: int) -> tuple[Job, ...]:
    """Return the jobs with the given share of large models; the requested GPU-seconds of each job stay the same.

    Random jobs are changed until the share is right, in an order that is the same for every share. A changed job gets
    the model, the GPUs and the plan of a random job of the other kind, and the number of steps (at least one) that
    takes as many GPU-seconds as before.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(jobs)).tolist()
    models = {large: [job for job in jobs if (job.workload in LARGE) == large] for large in (True, False)}
    drawn = {large: rng.integers(len(models[large]), size=len(jobs)).tolist() for large in (True, False)}
    change = round(share * len(jobs)) - len(models[True])
    target = change > 0
    candidates = [index for index in order if (jobs[index].workload in LARGE) != target]
    changed = list(jobs)
    for index in candidates[: abs(change)]:
        changed[index] = _with_model_of(jobs[index], models[target][drawn[target][index]], charge)
    return tuple(changed)


def gpu_seconds(job: Job, charge: SpeedModel) -> float:
    """Return the GPU-seconds of a job as requested."""
    return charge.work(job) * job.demand.total_gpus


def _with_model_of(job: Job, other: Job, charge: SpeedModel) -> Job:
    """Return the job with the model, GPUs and plan of another job."""
    assert other.steps is not None
    steps = max(1, round(gpu_seconds(job, charge) / gpu_seconds(other, charge) * other.steps))
    changed = msgspec.structs.replace(
        other,
        id=job.id,
        submitted=job.submitted,
        tenant=job.tenant,
        job_class=job.job_class,
        steps=steps,
    )
    return msgspec.structs.replace(changed, work=charge.work(changed))


class ErroneousSpeeds(Speeds):
    """Predicted speeds with errors: each combination of model, plan and layout has a factor of exp(N(0, spread)).

    The factor depends only on the combination and the seed, so repeated predictions are equal. The best plan is chosen
    by the erroneous speeds.
    """

    spread = 0.0
    seed = 0

    def _best_of_menu(self, setup: TrainingSetup, plans: Sequence[Plan]) -> Speed | None:
        found = [self._estimate(setup, plan)._replace(fits=True) for plan in plans]
        return max(found, key=lambda speed: speed.steps_per_second, default=None)

    def _estimate(self, setup: TrainingSetup, plan: Plan) -> Speed:
        correct = super()._estimate(setup, plan)
        factor = error_factor(self.seed, self.spread, setup.model.name, plan, setup.machines.gpus_on_node)
        return correct._replace(steps_per_second=correct.steps_per_second * factor)


def error_factor(seed: int, spread: float, model: str, plan: Plan, layout: Layout) -> float:
    """Return the factor by which the predicted speed of a combination is wrong."""
    digest = hashlib.sha256(repr((seed, model, plan, layout)).encode()).digest()
    return exp(spread * float(np.random.default_rng(int.from_bytes(digest[:8], "little")).normal()))


@contextmanager
def with_model_errors(spread: float, seed: int) -> Iterator[None]:
    """Let policies created in this context predict erroneous speeds; charged speeds are not affected.

    Policies create `Speeds` when they first see a cluster, by the name imported in their modules. The context replaces
    that name, because policies have no setting for errors.
    """

    class SeededErrors(ErroneousSpeeds):
        def __init__(self, *given: object, **named: Knowledge) -> None:
            super().__init__(*given, **named)  # type: ignore[arg-type]
            self.spread, self.seed = spread, seed

    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("refold.policies.") and getattr(module, "Speeds", None) is Speeds
    ]
    try:
        for module in modules:
            module.Speeds = SeededErrors  # type: ignore[attr-defined]
        yield
    finally:
        for module in modules:
            module.Speeds = Speeds  # type: ignore[attr-defined]
