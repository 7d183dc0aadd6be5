"""Step time by component (compute, communication, waiting) and memory, for one plan or many."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.model import Plan
from refold.planning.perf.columns import FULL, Column, PlanColumns, in_blocks, plans_to_columns
from refold.planning.perf.communication import (
    context_seconds,
    expert_seconds,
    gradient_seconds,
    stage_seconds,
    tensor_seconds,
)
from refold.planning.perf.compute import (
    attention_flops_per_token,
    dequantize_seconds,
    head_time,
    layer_time,
    matmul_flops_per_token,
    peak_rate,
    scan_flops_per_token,
)
from refold.planning.perf.memory_model import (
    MemoryFootprint,
    StageParameters,
    memory_footprint,
    shard_of,
    stage_parameters,
)
from refold.planning.perf.training_setup import TrainingSetup

HOST_SECONDS_PER_PARAMETER = 1.5e-10
"""Lower bound of the update time on a host per parameter, with any number of threads: 30 bytes at 200 GB/s."""

DEFAULT_CPUS_PER_GPU = 8.0
"""CPU threads per GPU if unspecified."""


class StepTimeParts(NamedTuple):
    """Seconds of a step by component; they add up to the step time."""

    compute: Column
    recompute: Column
    launch: Column
    tensor: Column
    context: Column
    expert: Column
    pipeline: Column
    bubble: Column
    data: Column
    optimizer: Column
    offload: Column
    stragglers: Column


class EstimateColumns(NamedTuple):
    """Estimates of many plans: seconds by component, step time, memory footprint, and whether they fit."""

    parts: StepTimeParts
    step_seconds: Column
    memory: MemoryFootprint
    fits: NDArray[np.bool_]


class Estimate(msgspec.Struct, frozen=True):
    """Estimate of one plan, with seconds and GiB by component. A negative `spare_gib` is the missing memory."""

    plan: Plan
    step_seconds: float
    seconds: dict[str, float]
    samples_per_second: float
    tokens_per_second: float
    mfu: float
    memory_gib: float
    memory: dict[str, float]
    spare_gib: float
    host_gib: float
    host_spare_gib: float

    @property
    def fits(self) -> bool:
        """Whether the plan fits into the memory of GPUs and hosts."""
        return self.spare_gib >= 0 and self.host_spare_gib >= 0


def estimate_all(setup: TrainingSetup, plans: PlanColumns) -> EstimateColumns:
    parts = step_time_parts(setup, plans)
    needs = memory_footprint(setup, plans)
    seconds = sum(parts, np.zeros(len(plans)))  # in a fixed order, so that sums do not depend on the number of plans
    host = setup.machines.memory_gib
    fits = (needs.total <= setup.machines.usable_gib) & (needs.host <= (host or np.inf))
    return EstimateColumns(parts, seconds, needs, fits)


def estimate(setup: TrainingSetup, plan: Plan) -> Estimate:
    return estimate_at(setup, plan, estimate_all(setup, plans_to_columns([plan])), 0)


def estimate_at(setup: TrainingSetup, plan: Plan, estimates: EstimateColumns, row: int) -> Estimate:
    """Return the estimate of one row, with throughput and MFU."""
    step = float(estimates.step_seconds[row])
    machines = setup.machines
    total, host = float(estimates.memory.total[row]), float(estimates.memory.host[row])
    return Estimate(
        plan=plan,
        step_seconds=step,
        seconds={name: float(column[row]) for name, column in estimates.parts._asdict().items()},
        samples_per_second=setup.batch / step,
        tokens_per_second=setup.tokens / step,
        mfu=model_flops(setup) / step / (peak_rate(setup) * plan.gpus),
        memory_gib=total,
        memory={name: float(column[row]) for name, column in estimates.memory._asdict().items() if name != "host"},
        spare_gib=machines.usable_gib - total,
        host_gib=host,
        host_spare_gib=(machines.memory_gib or np.inf) - host,
    )


def model_flops(setup: TrainingSetup) -> float:
    """Return the FLOPs of a step that the model requires with any plan; recomputation does not count."""
    model = setup.model
    head = 2.0 * (1 + model.mtp_layers) * model.vocabulary * model.hidden if model.predicts_tokens else 0.0
    backward, share = setup.tuning.backward_products, setup.backward_share
    products = (1 + backward * share) * model.blocks * matmul_flops_per_token(setup) + (1 + backward) * head
    attention = attention_flops_per_token(setup) + scan_flops_per_token(setup)
    return setup.tokens * (products + (1 + 2 * share) * model.blocks * attention)


@in_blocks
def step_time_parts(setup: TrainingSetup, plans: PlanColumns) -> StepTimeParts:
    """Return the seconds of a step by component.

    A stage computes its layers for one micro-batch after the other, and transfers activations in between. The pipeline
    is full for `accumulation` micro-batches; filling and draining (the bubble) take (stages - 1) / interleave more.
    """
    layer = layer_time(setup, plans)
    blocks = setup.stage_blocks(plans)
    compute = _slowest_stage(setup, plans, layer.forward + layer.backward)
    recompute = blocks * layer.recompute
    tensor, context = (blocks * each(setup, plans) for each in (tensor_seconds, context_seconds))
    expert = blocks * expert_seconds(setup, plans, layer.forward + layer.backward)
    launch = np.maximum(0.0, blocks * _launch_seconds(setup, plans) - compute - recompute - tensor)
    stage_comm = _exposed_transfers(setup, plans, compute + recompute) + _stage_wait(setup, plans)
    micro_batch = compute + recompute + tensor + context + expert + launch + stage_comm
    parameters = stage_parameters(setup, plans, is_last=False)
    forward, backward = blocks * layer.forward, blocks * (layer.backward + layer.recompute)
    count = plans.accumulation
    transfer, update = _offload_seconds(setup, plans, parameters)
    parts = StepTimeParts(
        compute=count * compute,
        recompute=count * recompute,
        launch=count * launch,
        tensor=count * tensor,
        context=count * context,
        expert=count * expert,
        pipeline=count * stage_comm,
        bubble=(plans.pipeline - 1) / plans.interleave * micro_batch,
        data=_exposed_gradients(setup, plans, parameters, forward, backward),
        optimizer=np.where(plans.offload > 0, update, _optimizer_seconds(setup, plans, parameters)),
        offload=transfer,
        stragglers=np.zeros(len(plans)),
    )
    return parts._replace(stragglers=straggler_share(setup, plans) * sum(parts, np.zeros(len(plans))))


def straggler_share(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return by how much longer a step takes as all GPUs wait for the slowest, relative to everything else."""
    engine = setup.engine
    nodes = setup.machines.nodes
    of_group = np.log2(np.maximum(1.0, nodes / plans.replicate))  # that gathers weights together
    gather = np.where(plans.zero == 3, engine.gather_straggler_share * of_group, 0.0)
    return np.asarray(engine.straggler_share * np.log2(nodes) + gather)


def _slowest_stage(setup: TrainingSetup, plans: PlanColumns, layer: Column) -> Column:
    """Return the compute time of the slowest stage for one micro-batch; the other stages wait for it.

    Layers are distributed so that the stage with the output layer has fewer. The slowest stage then takes the largest
    of: an equal share of everything, the largest number of layers per stage, and the output layer alone.
    """
    head = head_time(setup, plans)
    blocks = setup.stage_blocks(plans)
    return np.maximum(np.maximum(blocks * layer + head / plans.pipeline, np.ceil(blocks) * layer), head)


def _launch_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the host time to launch the kernels of one layer, forward and backward; the GPU waits for it."""
    engine, machines = setup.engine, setup.machines
    factor = np.array([1.0, engine.launch_factor_selective, engine.launch_factor_full])[plans.recompute.astype(int)]
    seconds = layer_launch_seconds(setup) * factor + dequantize_wait(setup, plans)
    domains = len(machines.domains)
    remote_ranks = np.maximum(0.0, plans.tensor - machines.gpus / domains)
    has_pipeline = (plans.pipeline > 1) & (plans.tensor > 1) & (domains > 1)
    extra = (
        engine.tensor_wait_across_nodes * remote_ranks + engine.tensor_wait_in_pipeline * plans.tensor * has_pipeline
    )
    return np.asarray(seconds + extra)


def layer_launch_seconds(setup: TrainingSetup) -> float:
    """Return the host time to launch the kernels of a layer without recomputation."""
    engine, model = setup.engine, setup.model
    if model.traced:
        return engine.operation_launch_seconds * model.operations / model.blocks
    seconds = engine.launch_seconds * model.parts / 2
    if model.experts > 1:
        seconds += engine.expert_launch_seconds * model.expert_layers / model.blocks
    if not model.bias and not model.opaque:
        seconds += engine.norm_launch_seconds * (model.norms + (2 if model.head_norms else 0))
    return seconds + engine.adapter_launch_seconds * setup.adapters.number


def dequantize_wait(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds for which the host waits until the weights of a layer are dequantized, in all passes.

    With 7 B weights in 4 bits, steps of litgpt on an A100 that have few tokens and are bound by the host take 79 ms
    longer (LoRA) or 86 (adapters of another kind): as long as dequantizing them takes.
    """
    return np.where(plans.recompute == FULL, 3.0, 2.0) * dequantize_seconds(setup, plans)


def _exposed_transfers(setup: TrainingSetup, plans: PlanColumns, passes: Column) -> Column:
    """Return the seconds of transfers between stages that do not overlap with a stage's passes."""
    hidden = np.where(plans.interleave > 1, setup.engine.overlap_stages * passes, 0.0)
    return np.maximum(0.0, stage_seconds(setup, plans) - hidden)


def _stage_wait(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the waiting time of a stage for its neighbours, for frameworks and sizes where it was observed."""
    engine = setup.engine
    applies = (setup.machines.gpus >= engine.stage_wait_from_gpus) | (plans.tensor >= engine.stage_wait_from_tensor)
    return np.where(applies, np.minimum(2.0, plans.pipeline - 1) * engine.stage_wait, 0.0)


def _exposed_gradients(
    setup: TrainingSetup, plans: PlanColumns, parameters: StageParameters, forward: Column, backward: Column
) -> Column:
    """Return the data-parallel communication that does not overlap with a stage's forward and backward passes.

    Gradients overlap with the backward pass that produces them, weights with the pass before the one that needs them.
    """
    engine = setup.engine
    communication = gradient_seconds(setup, plans, parameters.total, parameters.routed)
    hidden = np.where(plans.zero == 0, engine.overlap_gradients, engine.overlap_shards)
    hidden = hidden * setup.machines.gpu.peer_to_peer
    per_step = np.maximum(0.0, communication.gradients_per_step - hidden * backward)
    per_step += np.maximum(0.0, communication.weights_per_step - hidden * forward)
    during_backward = communication.gradients_per_micro_batch + communication.weights_per_pass
    per_micro_batch = np.maximum(0.0, during_backward - hidden * backward)
    per_micro_batch += np.maximum(0.0, communication.weights_per_pass - hidden * forward)
    return per_step + plans.accumulation * per_micro_batch


def _optimizer_seconds(setup: TrainingSetup, plans: PlanColumns, parameters: StageParameters) -> Column:
    """Return the time of Adam on the GPU, bound by memory: read and write states, read gradients, write weights."""
    engine, gpu = setup.engine, setup.machines.gpu
    rate = gpu.memory_gigabytes_per_second * 1e9 * gpu.efficiency.memory
    updated = setup.trained_share * shard_of(parameters, plans, plans.zero >= 1)
    return updated * update_bytes(setup) / rate + engine.step_seconds


def update_bytes(setup: TrainingSetup) -> float:
    """Return the memory traffic of the optimizer per trained weight."""
    engine = setup.engine
    return engine.update_passes * (2 * setup.optimizer_bytes + engine.gradient_bytes + engine.weight_bytes)


def _offload_seconds(setup: TrainingSetup, plans: PlanColumns, parameters: StageParameters) -> tuple[Column, Column]:
    """Return the PCIe time of gradients and weights, and the update time by the CPU threads of each GPU."""
    engine, machines = setup.engine, setup.machines
    updated = setup.trained_share * np.where(plans.offload > 0, shard_of(parameters, plans, plans.zero >= 1), 0.0)
    pcie = machines.gpu.pcie_gigabytes_per_second * 1e9 * machines.gpu.efficiency.pcie
    transfer = 2 * engine.weight_bytes * updated / pcie
    threads = machines.cpus / machines.gpus if machines.cpus else DEFAULT_CPUS_PER_GPU
    host_bound = HOST_SECONDS_PER_PARAMETER * max(machines.gpus_on_node)
    return transfer, updated * max(engine.cpu_seconds_per_parameter / threads, host_bound) + engine.step_seconds
