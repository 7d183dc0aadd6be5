"""The few plans with which a new model type is profiled: one of each family, since plans of a family are alike."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from refold.model import Plan
from refold.planning.perf import TrainingSetup
from refold.planning.plans.search import best_plans
from refold.planning.plans.space import PlanLimits, divisors

MAX_SLOWDOWN = 2.0
"""A family whose best plan is modelled to take longer than this many times the fastest is not measured."""

MICRO_BATCHES_PER_STAGE = 4
"""Micro-batches with which a pipeline is filled, if the batch is large enough."""


def best_of_families(setup: TrainingSetup, limits: PlanLimits) -> list[Plan]:
    """Return the best plan of each family as modelled, fastest first."""
    search = best_plans(setup, limits, 1)
    slower = [group.example for group in search.rejected if group.reason == "slower" and group.margin <= MAX_SLOWDOWN]
    return [*(estimate.plan for estimate in search.best), *slower]


def simple_plans(own: Plan, gpus: int, batch: int) -> list[Plan]:
    """Return plans for a model of which nothing is known, the most likely to be fast first.

    Compared with the job's own plan, a GPU holds no larger part of the model, since its memory may not be sufficient.
    """
    parts = own.tensor * own.pipeline
    plans: list[Plan] = []
    for tensor, pipeline in ((own.tensor, own.pipeline), (1, 1), (2, 1), (gpus, 1), (1, 2), (1, gpus)):
        data, rest = divmod(gpus, tensor * pipeline)
        if rest or tensor * pipeline < parts or batch % data:
            continue
        accumulation = own.accumulation if pipeline == 1 else _micro_batches(batch // data, pipeline)
        if (batch // data) % accumulation == 0 and (pipeline == 1 or accumulation >= pipeline):
            degrees = {"data": data, "tensor": tensor, "pipeline": pipeline, "accumulation": accumulation}
            zero = own.zero if data > 1 and (pipeline == 1 or own.zero < 2) else 0
            plans.append(msgspec.structs.replace(own, zero=zero, interleave=1, sequence_parallel=False, **degrees))
    return list(dict.fromkeys(plans))


def _micro_batches(samples: int, stages: int) -> int:
    """Return the largest number of micro-batches up to a few per stage."""
    return max(_divisors_up_to(samples, MICRO_BATCHES_PER_STAGE * stages))


def _divisors_up_to(number: int, limit: int) -> Iterator[int]:
    return (divisor for divisor in divisors(number) if divisor <= limit)
