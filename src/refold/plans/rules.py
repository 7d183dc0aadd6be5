"""What makes a plan impossible: rules as data, each with a test for many plans and a sentence for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from refold.model import Plan
from refold.perf import SELECTIVE, Estimate, PlanColumns, Setting, columns_of, estimate
from refold.plans.space import BOUNDED, CHOSEN, USUAL, Mask, PlanLimits, code, value_of


class PlanBatch(NamedTuple):
    """Many plans, to be tested."""

    setting: Setting
    plans: PlanColumns
    limits: PlanLimits


class SinglePlan(NamedTuple):
    """One plan, to be told why not."""

    setting: Setting
    plan: Plan
    limits: PlanLimits


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: which of many plans break it (one answer for each, or one for all), and what to say to one that does."""

    name: str
    test: Callable[[PlanBatch], Any]
    sentence: Callable[[SinglePlan], str]

    def broken(self, setting: Setting, plans: PlanColumns, limits: PlanLimits) -> Mask:
        """Which of the plans break it."""
        return np.broadcast_to(np.asarray(self.test(PlanBatch(setting, plans, limits)), bool), len(plans))


def why_not(setting: Setting, plan: Plan, limits: PlanLimits = USUAL) -> list[str]:
    """Why a plan cannot be used; nothing where it can.

    What a plan that breaks a rule would need is of no use to anyone, so memory is looked at last.
    """
    plans, asked = columns_of([plan]), SinglePlan(setting, plan, limits)
    broken = [rule.sentence(asked) for rule in RULES if rule.broken(setting, plans, limits)[0]]
    return broken or memory_shortages(estimate(setting, plan))


def memory_shortages(found: Estimate) -> list[str]:
    """What of an estimate does not fit, in words."""
    amounts = (
        ("memory", found.memory_gib, found.spare_gib),
        ("host memory", found.host_gib, found.host_spare_gib),
    )
    return [
        f"out of {name} by {gib(-spare)} GiB: needs {gib(needs)} of {gib(needs + spare)} GiB"
        for name, needs, spare in amounts
        if spare < 0
    ]


def gib(amount: float) -> str:
    """An amount of memory, to a tenth where that says something."""
    return f"{amount:,.1f}" if amount >= 0.05 else f"{amount:.1g}"


def _leaves_over(many: PlanBatch, width: int) -> Any:
    """Which plans cannot split a width, or a number of heads, evenly."""
    return np.mod(width, many.plans.tensor) != 0


def _cannot_copy_key_heads(many: PlanBatch) -> Any:
    """More GPUs than key heads hold copies of them (Megatron): one number must be a multiple of the other."""
    key_heads, whole = _key_heads(many.setting), ~_leaves_over(many, many.setting.model.heads)
    return whole & _leaves_over(many, key_heads) & (np.mod(many.plans.tensor, key_heads) != 0)


def _key_heads(setting: Setting) -> int:
    return setting.model.kv_heads or setting.model.heads


def _leaves_layers_over(many: PlanBatch) -> Any:
    """Stages may be uneven where the limits say so, but not in turns: chunks of layers come in whole rounds."""
    blocks, plans = many.setting.model.blocks, many.plans
    odd = np.mod(blocks, plans.pipeline * plans.interleave) != 0
    in_turns = (plans.interleave > 1) | (not many.limits.uneven)
    return (plans.pipeline > 1) & np.where(in_turns, odd, plans.pipeline > blocks)


def _layers_left_over(one: SinglePlan) -> str:
    blocks, plan = one.setting.model.blocks, one.plan
    if plan.interleave > 1:
        return f"{blocks} layers do not divide by pipeline {plan.pipeline} × interleave {plan.interleave}"
    return f"{blocks} layers {'are too few for' if one.limits.uneven else 'do not divide by'} pipeline {plan.pipeline}"


def _batch_left_over(one: SinglePlan) -> str:
    data, accumulation = one.plan.data, one.plan.accumulation
    factors = f" (data {data} × accumulation {accumulation})" if accumulation > 1 else ""
    return f"batch {one.setting.batch} does not divide by {data * accumulation}{factors}"


def _nodes_too_small(one: SinglePlan) -> str:
    sizes = sorted(set(one.setting.machines.gpus_on_node), reverse=True)
    return f"groups of tensor {one.plan.tensor} do not stay within nodes of {' and '.join(map(str, sizes))} GPUs"


def _width_left_over(one: SinglePlan) -> str:
    model, tensor = one.setting.model, one.plan.tensor
    name, width = ("hidden", model.hidden) if model.hidden % tensor else ("feed-forward", model.ffn_width)
    return f"{name} width {width} does not divide by tensor {tensor}"


def _no_rounds(one: SinglePlan) -> str:
    if one.plan.pipeline == 1:
        return f"interleave {one.plan.interleave} needs a pipeline"
    return (
        f"interleaved stages work in rounds: accumulation {one.plan.accumulation} is no multiple of "
        f"pipeline {one.plan.pipeline}"
    )


def _sequence_not_split(one: SinglePlan) -> str:
    if one.plan.tensor == 1:
        return "sequence parallelism splits what tensor parallelism leaves whole, and tensor is 1"
    return f"sequence {one.setting.sequence} does not divide by tensor {one.plan.tensor}"


def _differs_from_pins(many: PlanBatch) -> Any:
    differs = [getattr(many.plans, name) != code(value) for name, value in many.limits.pinned.given().items()]
    return np.logical_or.reduce([np.zeros(len(many.plans), bool), *differs])


def _pins(one: SinglePlan) -> str:
    fixed = one.limits.pinned.given().items()
    differs = [(name, value, getattr(one.plan, name)) for name, value in fixed if getattr(one.plan, name) != value]
    return ", ".join(f"{name} is pinned to {value}, not {ours}" for name, value, ours in differs)


def _outside_limits(many: PlanBatch) -> Any:
    limits, plans = many.limits, many.plans
    large = [getattr(plans, name) > limits.largest(name) for name in BOUNDED]
    return np.logical_or.reduce([*large, *(~np.isin(getattr(plans, name), limits.choices(name)) for name in CHOSEN)])


def _limits(one: SinglePlan) -> str:
    limits, plan = one.limits, one.plan
    allowed = {name: [value_of(name, number) for number in limits.choices(name)] for name in CHOSEN}
    said = [
        f"{name} {getattr(plan, name)} (of {', '.join(map(str, choices))})"
        for name, choices in allowed.items()
        if getattr(plan, name) not in choices
    ]
    said += [
        f"{name} {getattr(plan, name)} (at most {limits.largest(name)})"
        for name in BOUNDED
        if getattr(plan, name) > limits.largest(name)
    ]
    return f"outside the limits: {', '.join(said)}"


RULES: tuple[Rule, ...] = (
    Rule(
        "gpus",
        lambda many: many.plans.data * many.plans.tensor * many.plans.pipeline != many.setting.machines.gpus,
        lambda one: f"the plan uses {one.plan.gpus} GPUs, and the machines have {one.setting.machines.gpus}",
    ),
    Rule("pinned", _differs_from_pins, _pins),
    Rule("limits", _outside_limits, _limits),
    Rule(
        "opaque",
        lambda many: (
            many.setting.model.opaque
            & ((many.plans.tensor > 1) | (many.plans.pipeline > 1) | (many.plans.recompute > 0))
        ),
        lambda one: f"of {one.setting.model.name!r} only totals are known: data parallelism only, and no recomputing",
    ),
    Rule(
        "heads",
        lambda many: (not many.setting.model.opaque) & _leaves_over(many, many.setting.model.heads),
        lambda one: f"{one.setting.model.heads} heads do not divide by tensor {one.plan.tensor}",
    ),
    Rule(
        "kv-heads",
        lambda many: (not many.setting.model.opaque) & _cannot_copy_key_heads(many),
        lambda one: (
            f"{_key_heads(one.setting)} key heads are neither split nor copied evenly by tensor {one.plan.tensor}"
        ),
    ),
    Rule(
        "widths",
        lambda many: (
            (not many.setting.model.opaque)
            & (_leaves_over(many, many.setting.model.hidden) | _leaves_over(many, many.setting.model.ffn_width))
        ),
        _width_left_over,
    ),
    Rule(
        "node",
        lambda many: (
            (not many.limits.tensor_across_nodes)
            & (np.mod(gcd(*many.setting.machines.gpus_on_node), many.plans.tensor) != 0)
        ),
        _nodes_too_small,
    ),
    Rule("layers", lambda many: (not many.setting.model.opaque) & _leaves_layers_over(many), _layers_left_over),
    Rule(
        "batch",
        lambda many: np.mod(many.setting.batch, many.plans.data * many.plans.accumulation) != 0,
        _batch_left_over,
    ),
    Rule(
        "interleave",
        lambda many: (
            (many.plans.interleave > 1)
            & ((many.plans.pipeline == 1) | (np.mod(many.plans.accumulation, many.plans.pipeline) != 0))
        ),
        _no_rounds,
    ),
    Rule(
        "sequence",
        lambda many: (
            (many.plans.sequence_parallel > 0) & ((many.plans.tensor == 1) | _leaves_over(many, many.setting.sequence))
        ),
        _sequence_not_split,
    ),
    Rule(
        "selective",
        lambda many: (many.plans.recompute == SELECTIVE) & (not many.setting.engine.selects_activations),
        lambda one: (
            f"selective recomputation spares what attention keeps, and {one.setting.engine.name}'s fused attention "
            "keeps nothing"
        ),
    ),
    Rule(
        "zero-pipeline",
        lambda many: (many.plans.zero >= 2) & (many.plans.pipeline > 1),
        lambda one: (
            f"ZeRO-{one.plan.zero} keeps a share of the gradients only, and a pipeline adds them up over "
            "micro-batches: at most ZeRO-1 goes with it"
        ),
    ),
    Rule(
        "zero-data",
        lambda many: (many.plans.zero >= 1) & (many.plans.data == 1) & (many.plans.offload == 0),
        lambda one: f"ZeRO-{one.plan.zero} shares states among replicas, and there is only one",
    ),
    Rule(
        "offload-zero",
        lambda many: (many.plans.offload > 0) & (many.plans.zero == 0) & (many.plans.data > 1),
        lambda one: (
            f"offloading needs ZeRO-1 or more, or each of {one.plan.data} replicas would keep all states on a host"
        ),
    ),
    Rule(
        "offload-slices",
        lambda many: (many.plans.offload > 0) & ((many.plans.tensor > 1) | (many.plans.pipeline > 1)),
        lambda one: "offloading goes with data parallelism only, not with tensor or pipeline parallelism",  # noqa: ARG005
    ),
)
"""The literal table. `space.all_plans` builds what breaks none of them; a test holds the two together."""
