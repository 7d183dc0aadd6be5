"""Plan search: the best plans for a training setup, exact over all valid plans, with reasons for the others.

1. Generate all valid plans.
2. Drop plans that do not fit into memory, which is cheaper to compute than time.
3. Time the plans with the lowest bounds, then those that the bound does not rule out.
4. Rank them and explain the rejected ones; if nothing fits, advise what would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from refold.errors import BadValue
from refold.model import Plan
from refold.planning.perf import (
    Estimate,
    Machines,
    PlanColumns,
    TrainingSetup,
    build_machines,
    estimate,
    estimate_all,
    estimate_at,
)
from refold.planning.plans.defaults import LORA_SEQUENCE, dividing_batch
from refold.planning.plans.selection import (
    TIE_FACTOR,
    MemoryHeadroom,
    RejectedPlans,
    Rows,
    family_of,
    fastest,
    memory_headroom,
    nearest_to_fitting,
    plans_breaking_rules,
    plans_out_of_memory,
    slower_families,
    time_candidates,
)
from refold.planning.plans.space import DEFAULT_LIMITS, PlanLimits, all_plans, divisors

MIN_ADVISED_SEQUENCE = 256
"""The shortest sequences that are advised if nothing fits."""

ADVISED_RANK = 16
"""The rank of adapters that are advised if not all weights can be trained."""

MAX_SEARCHED_GPUS = 16384
"""Limit of doubling the number of GPUs when searching for one on which something fits."""

MAX_TRIED_DIVISORS = 20
"""How many divisors of the batch are tried as numbers of GPUs when no plan can use all GPUs."""

RISKY_GIB = 3.0
"""A plan with less GPU memory to spare than this may run out of memory: estimates have errors."""

MAX_REMOVED_GPUS = 64
"""How many GPUs are removed at most when no plan can use all GPUs."""

MAX_SLOWDOWN = 2.0
"""A family whose best plan is modelled to take longer than this many times the fastest is not measured."""

MICRO_BATCHES_PER_STAGE = 4
"""Micro-batches with which a pipeline is filled, if the batch is large enough."""


class PlanSearch(msgspec.Struct, frozen=True):
    """Result of a plan search: the best plans in order, and the reasons for rejecting the others.

    Of `considered` valid plans, `out_of_memory` do not fit, and `pruned` were not timed because they could not be among
    the best. `safer`: if the best plan is risky, the fastest one that is not. If nothing fits, `misses` are the plans
    with the least missing memory, and `enough_gpus` is the first doubled number of GPUs on which something fits, if
    any. `advice` says what would help.
    """

    best: tuple[Estimate, ...]
    considered: int
    out_of_memory: int
    pruned: int
    rejected: tuple[RejectedPlans, ...]
    safer: Estimate | None = None
    misses: tuple[Estimate, ...] = ()
    advice: tuple[str, ...] = ()
    enough_gpus: int | None = None


def best_plans(setup: TrainingSetup, limits: PlanLimits = DEFAULT_LIMITS, count: int = 10) -> PlanSearch:
    """Return the `count` fastest plans that fit, and why the others were rejected."""
    if count < 1:
        raise BadValue(f"count is {count}, expected at least 1 plan")
    plans = all_plans(setup, limits)
    headroom = memory_headroom([setup], plans)
    fitting = plans.rows(headroom.fits)
    family = family_of(fitting)
    seconds = time_candidates(setup, fitting, family, count)
    search = PlanSearch(
        best=_estimates(setup, fitting, fastest(fitting, seconds, count)),
        considered=len(plans),
        out_of_memory=len(plans) - len(fitting),
        pruned=int(np.isinf(seconds).sum()),
        rejected=slower_families(fitting, seconds, family)
        + plans_out_of_memory(plans, headroom)
        + plans_breaking_rules(setup, limits),
    )
    if not search.best:
        return _with_advice(search, setup, limits, plans, headroom, count)
    best = search.best[0]
    safer = _safer(setup, limits) if is_risky(best) else None
    return msgspec.structs.replace(search, safer=safer, advice=_faster_advice(search, setup, limits))


def is_risky(found: Estimate) -> bool:
    """Whether a plan that fits may run out of memory, as it has little to spare."""
    return 0 <= found.spare_gib < RISKY_GIB


def _safer(setup: TrainingSetup, limits: PlanLimits) -> Estimate | None:
    """Return the best plan that is not risky."""
    machines = setup.machines
    margin = machines.margin + RISKY_GIB / machines.gpu.memory_gib
    if margin >= 1:
        return None
    cautious = msgspec.structs.replace(machines, margin=margin)
    found = best_plan(msgspec.structs.replace(setup, machines=cautious), limits)
    return found and estimate(setup, found.plan)


def _faster_advice(search: PlanSearch, setup: TrainingSetup, limits: PlanLimits) -> tuple[str, ...]:
    """Advise uneven stages if layers do not divide, and another batch if it does not, where a plan is faster."""
    advice, best, gpus = [], search.best[0], setup.machines.gpus
    if not limits.uneven and any(one.name == "layers" for one in search.rejected):
        uneven = best_plan(setup, msgspec.structs.replace(limits, uneven=True))
        if uneven and uneven.step_seconds * TIE_FACTOR < best.step_seconds:
            share = uneven.step_seconds / best.step_seconds
            advice.append(f"with --uneven, {uneven.plan} would take {share:.2f} × the step time of the best plan")
    if (batch := dividing_batch(setup.batch, gpus)) != setup.batch:
        divided = best_plan(msgspec.structs.replace(setup, batch=batch), limits)
        if divided and divided.samples_per_second > best.samples_per_second * TIE_FACTOR:
            factor = divided.samples_per_second / best.samples_per_second
            advice.append(
                f"with --batch {batch}, a multiple of {gpus} GPUs, {divided.plan} would train {factor:.2f} × as fast"
            )
    return tuple(advice)


def best_plan(setup: TrainingSetup, limits: PlanLimits = DEFAULT_LIMITS) -> Estimate | None:
    """Return the fastest plan that fits, or None: `best_plans` without reasons."""
    plans = all_plans(setup, limits)
    fitting = plans.rows(memory_headroom([setup], plans).fits) if len(plans) else plans
    if not len(fitting):
        return None
    seconds = time_candidates(setup, fitting, np.zeros(len(fitting), np.intp), 1)
    return _estimates(setup, fitting, fastest(fitting, seconds, 1))[0]


def _estimates(setup: TrainingSetup, plans: PlanColumns, rows: Rows) -> tuple[Estimate, ...]:
    chosen = plans.rows(rows)
    result = estimate_all(setup, chosen)
    return tuple(estimate_at(setup, chosen.plan(row), result, row) for row in range(len(chosen)))


def _with_advice(
    search: PlanSearch,
    setup: TrainingSetup,
    limits: PlanLimits,
    plans: PlanColumns,
    headroom: MemoryHeadroom,
    count: int,
) -> PlanSearch:
    """Add the plans that lack the least memory, and advice."""
    doubled = next(_best_on(setup, limits, _doubled(setup.machines)), None)
    fewer = None if len(plans) else next(_best_on(setup, limits, _smaller(setup)), None)
    unlimited = best_plan(setup) if limits != DEFAULT_LIMITS else None
    advice = list(_changed_options(setup, limits))
    advice += [
        f"{result.plan.gpus} × {setup.machines.gpu.name} would be enough: {result.plan}"
        for result in (fewer, doubled)
        if result
    ]
    advice += [f"without these limits this plan would fit: {unlimited.plan}"] if unlimited else []
    if not (unlimited or setup.tuning.lora_rank):
        advice += islice(_with_adapters(setup, limits), 1)
    return msgspec.structs.replace(
        search,
        misses=_estimates(setup, plans, nearest_to_fitting(plans, headroom.missing, count)),
        advice=tuple(advice),
        enough_gpus=doubled.plan.gpus if doubled else None,
    )


def _changed_options(setup: TrainingSetup, limits: PlanLimits) -> Iterator[str]:
    """Yield what would fit on the same GPUs: another batch, adapters, frozen weights in 4 bits, shorter sequences."""
    gpus = setup.machines.gpus
    batch = dividing_batch(setup.batch, gpus)
    if batch != setup.batch and (found := best_plan(msgspec.structs.replace(setup, batch=batch), limits)):
        yield f"with --batch {batch}, a multiple of {gpus} GPUs, this plan would fit: {found.plan}"
    if setup.model.opaque:
        return
    if setup.tuning.lora_rank:
        yield from islice(_with_adapters(setup, limits), 1)
    length = setup.sequence // 2
    while length >= MIN_ADVISED_SEQUENCE:
        if found := best_plan(msgspec.structs.replace(setup, sequence=length), limits):
            yield f"with --seq {length} this plan would fit: {found.plan}"
            return
        length //= 2


def _with_adapters(setup: TrainingSetup, limits: PlanLimits) -> Iterator[str]:
    """Yield what would fit with adapters, frozen weights in 4 bits, and the sequences of fine-tuning."""
    tuning, gpus = setup.tuning, setup.machines.gpus
    if tuning.quantized or tuning.frozen_layers or setup.model.kind != "decoder":
        return
    if not tuning.lora_rank and gpus > setup.machines.gpu.gpus_per_node:
        return
    adapters = msgspec.structs.replace(tuning, lora_rank=tuning.lora_rank or ADVISED_RANK)
    quantized = msgspec.structs.replace(adapters, quantized=True, stored_quantised=False)
    options = [(f"--lora {ADVISED_RANK}", adapters)] if not tuning.lora_rank else []
    for name, changed in [*options, ("--qlora", quantized)]:
        for sequence in dict.fromkeys((setup.sequence, min(setup.sequence, LORA_SEQUENCE))):
            found = best_plan(msgspec.structs.replace(setup, tuning=changed, sequence=sequence), limits)
            if found:
                shorter = "" if sequence == setup.sequence else f" --seq {sequence}"
                yield f"with {name}{shorter} this plan would fit: {found.plan}"


def _best_on(setup: TrainingSetup, limits: PlanLimits, others: Iterator[Machines]) -> Iterator[Estimate]:
    result = (best_plan(msgspec.structs.replace(setup, machines=machines), limits) for machines in others)
    return (best for best in result if best)


def _doubled(machines: Machines) -> Iterator[Machines]:
    """Yield machines with 2, 4, 8, … times the GPUs, CPUs and memory; a single node is filled up first."""
    while 2 * machines.gpus <= MAX_SEARCHED_GPUS:
        layout = machines.gpus_on_node
        fits_one_node = len(layout) == 1 and 2 * layout[0] <= machines.gpu.gpus_per_node
        machines = msgspec.structs.replace(
            machines,
            gpus_on_node=(2 * layout[0],) if fits_one_node else 2 * layout,
            cpus=2 * machines.cpus,
            memory_gib=2 * machines.memory_gib,
        )
        yield machines


def _smaller(setup: TrainingSetup) -> Iterator[Machines]:
    """Yield machines with 1, 2, 3, … GPUs fewer, removed from the last node, then as many as divide the batch."""
    machines = setup.machines
    for _ in range(min(MAX_REMOVED_GPUS, machines.gpus - 1)):
        *others, last = machines.gpus_on_node
        remaining = 1 - 1 / machines.gpus
        machines = msgspec.structs.replace(
            machines,
            gpus_on_node=(*others, last - 1) if last > 1 else tuple(others),
            cpus=remaining * machines.cpus,
            memory_gib=remaining * machines.memory_gib,
        )
        yield machines
    whole = setup.machines
    dividing = [count for count in divisors(setup.batch) if count < whole.gpus - MAX_REMOVED_GPUS]
    for count in sorted(dividing, reverse=True)[:MAX_TRIED_DIVISORS]:
        share = count / whole.gpus
        fewer = build_machines(whole.gpu, count, cpus=share * whole.cpus, memory_gib=share * whole.memory_gib)
        yield msgspec.structs.replace(fewer, inside=whole.inside, network=whole.network, margin=whole.margin)


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
