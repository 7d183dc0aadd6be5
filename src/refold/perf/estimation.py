"""How long a step takes and what it is made of: compute, talk, wait, for one plan or for a million."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.model import Plan
from refold.perf.columns import Column, PlanColumns, columns_of
from refold.perf.communication import gradient_seconds, stage_seconds, tensor_seconds
from refold.perf.compute import attention_flops_per_token, head_time, layer_time, matmul_flops_per_token, peak_rate
from refold.perf.memory_model import USABLE, Memory, memory, stage_parameters
from refold.perf.setting import Setting

HOST_SECONDS_PER_PARAMETER = 1.5e-10
"""What a node needs at least for each parameter that is updated on it, however many threads: 30 bytes at 200 GB/s."""

USUAL_CPUS_PER_GPU = 8.0
"""CPU threads per GPU where nothing was said."""


class Parts(NamedTuple):
    """Seconds of a step by what they go to; they add up to the step."""

    compute: Column
    recompute: Column
    launch: Column
    tensor: Column
    pipeline: Column
    bubble: Column
    data: Column
    optimizer: Column
    offload: Column


class Estimates(NamedTuple):
    """What many plans would do: seconds by part, seconds of a step, GiB by part, and whether they fit."""

    parts: Parts
    step_seconds: Column
    memory: Memory
    fits: NDArray[np.bool_]


class Estimate(msgspec.Struct, frozen=True):
    """What one plan would do. Seconds and GiB by part; `spare_gib` below 0: so much is missing."""

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
        """Whether it fits into the memory of GPUs and hosts."""
        return self.spare_gib >= 0 and self.host_spare_gib >= 0


def estimate_all(setting: Setting, plans: PlanColumns) -> Estimates:
    """What each of the plans would do."""
    parts = step_parts(setting, plans)
    needs = memory(setting, plans)
    seconds = sum(parts, np.zeros(len(plans)))  # in this order, so that no sum depends on how many plans there are
    host = setting.machines.memory_gib
    fits = (needs.total <= setting.machines.gpu.memory_gib * USABLE) & (needs.host <= (host or np.inf))
    return Estimates(parts, seconds, needs, fits)


def estimate(setting: Setting, plan: Plan) -> Estimate:
    """What one plan would do."""
    return row_of(setting, plan, estimate_all(setting, columns_of([plan])), 0)


def row_of(setting: Setting, plan: Plan, found: Estimates, row: int) -> Estimate:
    """One of many estimates, with the figures people compare by."""
    step = float(found.step_seconds[row])
    machines = setting.machines
    total, host = float(found.memory.total[row]), float(found.memory.host[row])
    return Estimate(
        plan=plan,
        step_seconds=step,
        seconds={name: float(column[row]) for name, column in found.parts._asdict().items()},
        samples_per_second=setting.batch / step,
        tokens_per_second=setting.tokens / step,
        mfu=model_flops(setting) / step / (peak_rate(setting) * plan.gpus),
        memory_gib=total,
        memory={name: float(column[row]) for name, column in found.memory._asdict().items() if name != "host"},
        spare_gib=machines.gpu.memory_gib * USABLE - total,
        host_gib=host,
        host_spare_gib=(machines.memory_gib or np.inf) - host,
    )


def model_flops(setting: Setting) -> float:
    """Arithmetic of a step that the model needs, whatever the plan: what is computed again does not count."""
    model = setting.model
    layers = model.blocks * (matmul_flops_per_token(setting) + attention_flops_per_token(setting))
    head = 2.0 * model.vocabulary * model.hidden if model.predicts_tokens else 0.0
    return 3.0 * setting.tokens * (layers + head)


def step_parts(setting: Setting, plans: PlanColumns) -> Parts:
    """Seconds of a step by part.

    A stage computes its layers for one micro-batch after another; between them it hands on what it has. The
    pipeline is full for `accumulation` micro-batches, and fills and drains for (stages - 1) / interleave more.
    """
    layer = layer_time(setting, plans)
    talk = tensor_seconds(setting, plans)
    blocks = setting.stage_blocks(plans)
    compute = _slowest_stage(setting, plans, layer.forward + layer.backward)
    again = blocks * layer.again
    tensor = blocks * talk
    launch = np.maximum(0.0, blocks * _launch_seconds(setting, plans) - compute - again - tensor)
    handing = stage_seconds(setting, plans) + _stage_wait(setting, plans)
    tick = compute + again + tensor + launch + handing
    parameters = stage_parameters(setting, plans, is_last=False)
    forward, backward = blocks * layer.forward, blocks * (layer.backward + layer.again)
    each = plans.accumulation
    transfer, update = _offload_seconds(setting, plans, parameters)
    return Parts(
        compute=each * compute,
        recompute=each * again,
        launch=each * launch,
        tensor=each * tensor,
        pipeline=each * handing,
        bubble=(plans.pipeline - 1) / plans.interleave * tick,
        data=_exposed_gradients(setting, plans, parameters, forward, backward),
        optimizer=np.where(plans.offload > 0, update, _optimizer_seconds(setting, plans, parameters)),
        offload=transfer,
    )


def _slowest_stage(setting: Setting, plans: PlanColumns, layer: Column) -> Column:
    """Seconds in which the slowest stage computes one micro-batch: the others wait for it.

    Layers are dealt out so that the stage with the output layer has fewer. The slowest stage then has at least its
    share of everything, the most layers that a stage has, or the output layer alone.
    """
    head = head_time(setting, plans)
    blocks = setting.stage_blocks(plans)
    return np.maximum(np.maximum(blocks * layer + head / plans.pipeline, np.ceil(blocks) * layer), head)


def _launch_seconds(setting: Setting, plans: PlanColumns) -> Column:
    """What the host takes to start the kernels of one layer, forward and backward; a GPU can but wait for that."""
    engine, machines, model = setting.engine, setting.machines, setting.model
    more = np.array([1.0, engine.launch_selective, engine.launch_full])[plans.recompute.astype(int)]
    seconds = engine.launch_seconds * more * (1 + model.attentions / model.blocks) / 2
    beyond = np.maximum(0.0, plans.tensor - machines.gpus / machines.nodes)
    piped = (plans.pipeline > 1) & (plans.tensor > 1) & (machines.nodes > 1)
    waits = engine.tensor_wait_across_nodes * beyond + engine.tensor_wait_in_pipeline * plans.tensor * piped
    return np.asarray(seconds + waits)


def _stage_wait(setting: Setting, plans: PlanColumns) -> Column:
    """What a stage waits for each neighbour, in frameworks and on clusters where that was seen."""
    engine = setting.engine
    seen = setting.machines.gpus >= engine.stage_wait_from_gpus
    neighbours = np.minimum(2.0, plans.pipeline - 1)
    return neighbours * (engine.stage_wait if seen else 0.0)


def _exposed_gradients(
    setting: Setting, plans: PlanColumns, parameters: Column, forward: Column, backward: Column
) -> Column:
    """What of the talk about gradients and weights computing does not hide, given seconds of a stage's passes.

    Gradients hide behind the backward pass that makes them, weights behind the pass before the one they are for.
    """
    engine = setting.engine
    talk = gradient_seconds(setting, plans, parameters)
    hidden = np.where(plans.zero == 0, engine.overlap_gradients, engine.overlap_shards)
    once = np.maximum(0.0, talk.gradients_per_step - hidden * backward)
    once += np.maximum(0.0, talk.weights_per_step - hidden * forward)
    on_the_way_back = talk.gradients_per_micro_batch + talk.weights_per_pass
    each = np.maximum(0.0, on_the_way_back - hidden * backward)
    each += np.maximum(0.0, talk.weights_per_pass - hidden * forward)
    return once + plans.accumulation * each


def _optimizer_seconds(setting: Setting, plans: PlanColumns, parameters: Column) -> Column:
    """Adam on the GPU: states are read and written, gradients read, weights written; limited by memory."""
    engine, gpu = setting.engine, setting.machines.gpu
    moved = engine.update_passes * (2 * engine.optimizer_bytes + engine.gradient_bytes + engine.weight_bytes)
    rate = gpu.memory_gigabytes_per_second * 1e9 * gpu.efficiency.memory
    return parameters / np.where(plans.zero >= 1, plans.data, 1.0) * moved / rate + engine.step_seconds


def _offload_seconds(setting: Setting, plans: PlanColumns, parameters: Column) -> tuple[Column, Column]:
    """Gradients down and weights up over PCIe, and the update by the CPU threads that each GPU has."""
    engine, machines = setting.engine, setting.machines
    own = np.where(plans.offload > 0, parameters / np.where(plans.zero >= 1, plans.data, 1.0), 0.0)
    pcie = machines.gpu.pcie_gigabytes_per_second * 1e9 * machines.gpu.efficiency.pcie
    transfer = 2 * engine.weight_bytes * own / pcie
    threads = machines.cpus / machines.gpus if machines.cpus else USUAL_CPUS_PER_GPU
    together = HOST_SECONDS_PER_PARAMETER * max(machines.gpus_on_node)
    return transfer, own * max(engine.cpu_seconds_per_parameter / threads, together) + engine.step_seconds
