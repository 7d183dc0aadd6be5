"""Validity rules of plans, as data: a vectorised test for many plans, and a message for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from refold.model import Plan
from refold.planning.perf import SELECTIVE, Estimate, PlanColumns, TrainingSetup, estimate, plans_to_columns
from refold.planning.plans.launch_targets import cannot_launch, launch_problem
from refold.planning.plans.space import (
    BOUNDED_FIELDS,
    CHOICE_FIELDS,
    DEFAULT_LIMITS,
    END_CHUNKS,
    MIN_HYBRID_ZERO,
    Mask,
    PlanLimits,
    cannot_run,
    cannot_run_reason,
    decode_value,
    encode_value,
)


class PlanBatch(NamedTuple):
    """Many plans to be tested."""

    setup: TrainingSetup
    plans: PlanColumns
    limits: PlanLimits


class SinglePlan(NamedTuple):
    """One plan to be explained."""

    setup: TrainingSetup
    plan: Plan
    limits: PlanLimits


@dataclass(frozen=True, slots=True)
class Rule:
    """A validity rule: a test (one result per plan, or one for all), and the message for a plan that breaks it."""

    name: str
    test: Callable[[PlanBatch], Any]
    message: Callable[[SinglePlan], str]

    def broken(self, setup: TrainingSetup, plans: PlanColumns, limits: PlanLimits) -> Mask:
        return np.broadcast_to(np.asarray(self.test(PlanBatch(setup, plans, limits)), bool), len(plans))


def rejection_reasons(setup: TrainingSetup, plan: Plan, limits: PlanLimits = DEFAULT_LIMITS) -> list[str]:
    """Return why a plan cannot be used; empty if it can.

    Memory is checked only if no rule is broken.
    """
    plans, candidate = plans_to_columns([plan]), SinglePlan(setup, plan, limits)
    broken = [rule.message(candidate) for rule in RULES if rule.broken(setup, plans, limits)[0]]
    return broken or memory_shortages(estimate(setup, plan))


def memory_shortages(result: Estimate) -> list[str]:
    amounts = (("memory", result.memory_gib, result.spare_gib), ("host memory", result.host_gib, result.host_spare_gib))
    return [
        f"out of {name} by {format_gib(-spare)} GiB: needs {format_gib(needs)} of {format_gib(needs + spare)} GiB"
        for name, needs, spare in amounts
        if spare < 0
    ]


def format_gib(amount: float) -> str:
    """Format GiB with one decimal, or one significant digit for small amounts."""
    return f"{amount:,.1f}" if amount >= 0.05 else f"{amount:.1g}"


def _not_divisible(group: PlanBatch, width: int) -> Any:
    """Return which plans cannot split a width or a number of heads evenly."""
    return np.mod(width, group.plans.tensor) != 0


def _cannot_replicate_key_heads(group: PlanBatch) -> Any:
    """Return which plans break the rule for key heads.

    With more GPUs than key heads, Megatron replicates the heads: one number must be a multiple of the other.
    """
    key_heads, divisible = _key_heads(group.setup), ~_not_divisible(group, group.setup.model.heads)
    return divisible & _not_divisible(group, key_heads) & (np.mod(group.plans.tensor, key_heads) != 0)


def _key_heads(setup: TrainingSetup) -> int:
    return setup.model.kv_heads or setup.model.heads


def _layers_not_divisible(group: PlanBatch) -> Any:
    """Return which plans cannot divide the layers: evenly, or if that suffices, one for each chunk of the stages."""
    blocks, plans = group.setup.model.blocks, group.plans
    chunks = plans.pipeline * plans.interleave
    if group.limits.uneven:
        return (plans.pipeline > 1) & (chunks > np.where(plans.interleave > 1, blocks + END_CHUNKS, blocks))
    return (plans.pipeline > 1) & (np.mod(blocks, chunks) != 0)


def _layers_text(single: SinglePlan) -> str:
    blocks, plan = single.setup.model.blocks, single.plan
    problem = "are too few for" if single.limits.uneven else "are not divisible by"
    if plan.interleave > 1:
        return f"{blocks} layers {problem} pipeline {plan.pipeline} × interleave {plan.interleave}"
    return f"{blocks} layers {problem} pipeline {plan.pipeline}"


def _batch_text(single: SinglePlan) -> str:
    data, accumulation = single.plan.data, single.plan.accumulation
    factors = f" (data {data} × accumulation {accumulation})" if accumulation > 1 else ""
    return f"batch {single.setup.batch} is not divisible by {data * accumulation}{factors}"


def _node_text(single: SinglePlan) -> str:
    sizes = " and ".join(map(str, sorted(set(single.setup.machines.domains), reverse=True)))
    return f"tensor-parallel groups of {single.plan.tensor} do not fit evenly into nodes of {sizes} GPUs"


def _width_text(single: SinglePlan) -> str:
    model, tensor = single.setup.model, single.plan.tensor
    name, width = ("hidden", model.hidden) if model.hidden % tensor else ("feed-forward", model.ffn_width)
    return f"{name} width {width} is not divisible by tensor {tensor}"


def _linear_text(single: SinglePlan) -> str:
    heads = single.setup.model.linear.key_heads if single.setup.model.linear else 0
    return f"the {heads} key heads of linear attention are not divisible by tensor {single.plan.tensor}"


def _interleave_text(single: SinglePlan) -> str:
    if single.plan.pipeline == 1:
        return f"interleave {single.plan.interleave} needs a pipeline"
    return (
        f"interleave needs an accumulation that is a multiple of pipeline {single.plan.pipeline}, "
        f"but it is {single.plan.accumulation}"
    )


def _sequence_text(single: SinglePlan) -> str:
    if single.plan.tensor == 1:
        return "sequence parallelism needs tensor parallelism, and tensor is 1"
    context = f" × context {single.plan.context}" if single.plan.context > 1 else ""
    return f"sequence {single.setup.sequence} is not divisible by tensor {single.plan.tensor}{context}"


def _expert_text(single: SinglePlan) -> str:
    experts, degree = single.setup.model.experts, single.plan.expert
    if experts % degree:
        return f"{experts} experts are not divisible among {degree} GPUs" if experts > 1 else "the model has no experts"
    replicas = single.plan.data * single.plan.context
    return f"experts are divided among replicas, but {replicas} (data × context) is not divisible by expert {degree}"


def _replicate_text(single: SinglePlan) -> str:
    plan = single.plan
    if plan.zero < MIN_HYBRID_ZERO:
        return f"replicate {plan.replicate} (hybrid sharding) needs ZeRO-{MIN_HYBRID_ZERO} or higher"
    if plan.expert > 1 or plan.offload:
        return "hybrid sharding is not possible with expert parallelism or offload"
    replicas = plan.data * plan.context
    if replicas == plan.replicate:
        return f"replicate {plan.replicate} leaves groups of one GPU, over which ZeRO cannot shard"
    return f"{replicas} replicas (data × context) cannot be divided into {plan.replicate} groups for hybrid sharding"


def _differs_from_pins(group: PlanBatch) -> Any:
    differs = [
        getattr(group.plans, name) != encode_value(value) for name, value in group.limits.pinned.to_dict().items()
    ]
    return np.logical_or.reduce([np.zeros(len(group.plans), bool), *differs])


def _pins_text(single: SinglePlan) -> str:
    fixed = single.limits.pinned.to_dict().items()
    differs = [
        (name, value, getattr(single.plan, name)) for name, value in fixed if getattr(single.plan, name) != value
    ]
    return ", ".join(f"{name} is {actual}, but pinned to {value}" for name, value, actual in differs)


def _outside_limits(group: PlanBatch) -> Any:
    limits, plans = group.limits, group.plans
    large = [getattr(plans, name) > limits.maximum(name) for name in BOUNDED_FIELDS]
    return np.logical_or.reduce(
        [*large, *(~np.isin(getattr(plans, name), limits.choices(name)) for name in CHOICE_FIELDS)]
    )


def _limits_text(single: SinglePlan) -> str:
    limits, plan = single.limits, single.plan
    allowed = {name: [decode_value(name, number) for number in limits.choices(name)] for name in CHOICE_FIELDS}
    violations = [
        f"{name} {getattr(plan, name)} (allowed: {', '.join(map(str, choices))})"
        for name, choices in allowed.items()
        if getattr(plan, name) not in choices
    ]
    violations += [
        f"{name} {getattr(plan, name)} (at most {limits.maximum(name)})"
        for name in BOUNDED_FIELDS
        if getattr(plan, name) > limits.maximum(name)
    ]
    return f"outside the limits: {', '.join(violations)}"


def _engine_text(single: SinglePlan) -> str:
    engine = single.limits.engine
    problem = launch_problem(engine, single.plan) if engine else ""
    return f"{engine} cannot run it: {problem}"


RULES: tuple[Rule, ...] = (
    Rule(
        "gpus",
        lambda group: group.plans.gpus != group.setup.machines.gpus,
        lambda single: f"the plan uses {single.plan.gpus} GPUs, but the machines have {single.setup.machines.gpus}",
    ),
    Rule("pinned", _differs_from_pins, _pins_text),
    Rule("limits", _outside_limits, _limits_text),
    Rule(
        "opaque",
        lambda group: group.setup.model.opaque & ((group.plans.gpus > group.plans.data) | (group.plans.recompute > 0)),
        lambda single: (
            f"{single.setup.model.name!r} is an opaque model: only data parallelism without recomputation is possible"
        ),
    ),
    Rule(
        "heads",
        lambda group: (not group.setup.model.opaque) & _not_divisible(group, group.setup.model.heads),
        lambda single: f"{single.setup.model.heads} heads are not divisible by tensor {single.plan.tensor}",
    ),
    Rule(
        "kv-heads",
        lambda group: (not group.setup.model.opaque) & _cannot_replicate_key_heads(group),
        lambda single: (
            f"{_key_heads(single.setup)} key heads cannot be split or replicated evenly by tensor {single.plan.tensor}"
        ),
    ),
    Rule(
        "linear-attention",
        lambda group: (
            group.setup.model.linear is not None and _not_divisible(group, group.setup.model.linear.key_heads)
        ),
        _linear_text,
    ),
    Rule(
        "widths",
        lambda group: (
            (not group.setup.model.opaque)
            & (_not_divisible(group, group.setup.model.hidden) | _not_divisible(group, group.setup.model.ffn_width))
        ),
        _width_text,
    ),
    Rule(
        "node",
        lambda group: (
            (not group.limits.tensor_across_nodes)
            & (np.mod(gcd(*group.setup.machines.domains), group.plans.tensor) != 0)
        ),
        _node_text,
    ),
    Rule("layers", lambda group: (not group.setup.model.opaque) & _layers_not_divisible(group), _layers_text),
    Rule(
        "batch", lambda group: np.mod(group.setup.batch, group.plans.data * group.plans.accumulation) != 0, _batch_text
    ),
    Rule(
        "interleave",
        lambda group: (
            (group.plans.interleave > 1)
            & ((group.plans.pipeline == 1) | (np.mod(group.plans.accumulation, group.plans.pipeline) != 0))
        ),
        _interleave_text,
    ),
    Rule(
        "sequence",
        lambda group: (
            (group.plans.sequence_parallel > 0)
            & (
                (group.plans.tensor == 1)
                | (np.mod(group.setup.sequence, group.plans.tensor * group.plans.context) != 0)
            )
        ),
        _sequence_text,
    ),
    Rule(
        "expert",
        lambda group: (
            (group.plans.expert > 1)
            & (
                (np.mod(group.setup.model.experts, group.plans.expert) != 0)
                | (np.mod(group.plans.replicas, group.plans.expert) != 0)
            )
        ),
        _expert_text,
    ),
    Rule(
        "replicate",
        lambda group: (
            (group.plans.replicate > 1)
            & (
                (group.plans.zero < MIN_HYBRID_ZERO)
                | (group.plans.expert > 1)
                | (group.plans.offload > 0)
                | (np.mod(group.plans.replicas, group.plans.replicate) != 0)
                | (group.plans.replicas == group.plans.replicate)
            )
        ),
        _replicate_text,
    ),
    Rule(
        "offload-experts",
        lambda group: (group.plans.expert > 1) & (group.plans.offload > 0),
        lambda single: "offload is not possible with expert parallelism",  # noqa: ARG005
    ),
    Rule(
        "context",
        lambda group: (
            (not group.setup.model.opaque)
            & (group.plans.context > 1)
            & (np.mod(group.setup.sequence, 2 * group.plans.context) != 0)
        ),
        lambda single: (
            f"sequence {single.setup.sequence} is not divisible by {2 * single.plan.context}: with context "
            f"{single.plan.context}, each GPU has two parts of it"
        ),
    ),
    Rule(
        "selective",
        lambda group: (group.plans.recompute == SELECTIVE) & (not group.setup.engine.selects_activations),
        lambda single: (
            f"selective recomputation saves no memory with the fused attention of {single.setup.engine.name}"
        ),
    ),
    Rule(
        "zero-pipeline",
        lambda group: (group.plans.zero >= 2) & (group.plans.pipeline > 1),
        lambda single: (
            f"ZeRO-{single.plan.zero} shards gradients, which a pipeline accumulates over micro-batches; "
            "use at most ZeRO-1 with a pipeline"
        ),
    ),
    Rule(
        "zero-data",
        lambda group: (group.plans.zero >= 1) & (group.plans.replicas == 1) & (group.plans.offload == 0),
        lambda single: f"ZeRO-{single.plan.zero} shards states across replicas, but data is 1",
    ),
    Rule(
        "offload-zero",
        lambda group: (group.plans.offload > 0) & (group.plans.zero == 0) & (group.plans.data > 1),
        lambda single: (
            f"offload with {single.plan.data} replicas needs ZeRO-1 or higher: each replica would store all states"
        ),
    ),
    Rule(
        "offload-slices",
        lambda group: (group.plans.offload > 0) & (group.plans.gpus > group.plans.data),
        lambda single: (  # noqa: ARG005
            "offload is possible with data parallelism only, not with tensor, pipeline or context parallelism"
        ),
    ),
    Rule(
        "features",
        lambda group: cannot_run(group.setup.engine, group.plans),
        lambda single: cannot_run_reason(single.setup.engine, single.plan),
    ),
    Rule(
        "engine",
        lambda group: group.limits.engine is not None and cannot_launch(group.limits.engine, group.plans),
        _engine_text,
    ),
)
"""All rules. `space.all_plans` constructs the plans that break none of them; a test compares the two."""
