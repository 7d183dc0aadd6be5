"""Rubick's traces, changed: more or less load, more or fewer large models; and a policy that believes wrong speeds."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import exp

import msgspec
import numpy as np

from refold.model import Job, Plan
from refold.perf import Setting
from refold.plans import Knowledge, Layout, Speed, Speeds
from refold.simulator import SpeedModel

LARGE = ("llama7", "llama30")
"""The models that are called large."""


def at_load(jobs: Sequence[Job], load: float) -> tuple[Job, ...]:
    """The same jobs, arriving so many times as fast."""
    return tuple(msgspec.structs.replace(job, submitted=job.submitted / load) for job in jobs)


def with_large_share(jobs: Sequence[Job], share: float, charge: SpeedModel, seed: int) -> tuple[Job, ...]:
    """So large a part of the jobs trains large models; what each asks for in GPU-seconds stays what it was.

    Jobs are changed at random until the share is right, in an order that is the same for every share. Who is changed
    takes over the model, the GPUs and the plan of a random job of the other kind, and as many steps as its own
    GPU-seconds are worth there, but at least one.
    """
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(jobs)).tolist()
    models = {large: [job for job in jobs if (job.workload in LARGE) == large] for large in (True, False)}
    drawn = {large: chance.integers(len(models[large]), size=len(jobs)).tolist() for large in (True, False)}
    change = round(share * len(jobs)) - len(models[True])
    wanted = change > 0
    candidates = [index for index in order if (jobs[index].workload in LARGE) != wanted]
    changed = list(jobs)
    for index in candidates[: abs(change)]:
        changed[index] = _as_another(jobs[index], models[wanted][drawn[wanted][index]], charge)
    return tuple(changed)


def gpu_seconds(job: Job, charge: SpeedModel) -> float:
    """What a job takes as it was asked for."""
    return charge.work(job) * job.demand.total_gpus


def _as_another(job: Job, other: Job, charge: SpeedModel) -> Job:
    """The job with another's model, GPUs and plan."""
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


class MistakenSpeeds(Speeds):
    """Speeds that are off: each point (model, plan, layout) by a factor of its own, exp(N(0, spread)).

    The factor is drawn from the point and the seed alone, so whoever asks again is told the same. Which plan is best is
    decided by the mistaken speeds.
    """

    spread = 0.0
    seed = 0

    def _best_of(self, setting: Setting, plans: Sequence[Plan]) -> Speed | None:
        found = [self._estimate(setting, plan)._replace(fits=True) for plan in plans]
        return max(found, key=lambda speed: speed.steps_per_second, default=None)

    def _estimate(self, setting: Setting, plan: Plan) -> Speed:
        right = super()._estimate(setting, plan)
        factor = mistake(self.seed, self.spread, setting.model.name, plan, setting.machines.gpus_on_node)
        return right._replace(steps_per_second=right.steps_per_second * factor)


def mistake(seed: int, spread: float, model: str, plan: Plan, layout: Layout) -> float:
    """By how much the speed of a point is off."""
    point = hashlib.sha256(repr((seed, model, plan, layout)).encode()).digest()
    return exp(spread * float(np.random.default_rng(int.from_bytes(point[:8], "little")).normal()))


@contextmanager
def mistaken(spread: float, seed: int) -> Iterator[None]:
    """While this lasts, every policy that makes its Speeds believes wrong ones; what is charged stays right.

    Policies make them when they first see a cluster, by the name under which their module knows the class: this puts
    another class there. That is what a policy has no setting for, since nobody would want to set it.
    """

    class Here(MistakenSpeeds):
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
            module.Speeds = Here  # type: ignore[attr-defined]
        yield
    finally:
        for module in modules:
            module.Speeds = Speeds  # type: ignore[attr-defined]
