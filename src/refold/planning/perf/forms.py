"""Two fit forms for step times: the analytical model with corrections, and Rubick's seven parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from refold.errors import BadInput
from refold.planning.perf.columns import plans_to_columns
from refold.planning.perf.estimation import estimate_all
from refold.planning.perf.fitting import Parameter, PhaseTimes, Vector
from refold.planning.perf.hardware import GpuSpec
from refold.planning.perf.measurement import Measurement
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

MIB = 2.0**20


class CorrectedForm:
    """The analytical model with seven correction factors: 1 is as modelled, 1.2 takes 20 % longer.

    The structure of the model stays, so that plans and machines without measurements are still estimated.
    """

    name = "corrected"
    default_parameters: tuple[Parameter, ...] = (
        Parameter("compute", "compute time relative to the model", 1.0, 0.3),
        Parameter("small", "rows at which matrix products reach half of their rate", 1.0, 0.7, is_time=False),
        Parameter("launch", "host time to launch the kernels of a layer", 1.0, 0.7),
        Parameter("link", "communication time inside a node", 1.0, 0.5),
        Parameter("network", "communication time between nodes", 1.0, 0.5),
        Parameter("update", "optimizer time on GPUs", 1.0, 0.7),
        Parameter("host", "offload time: transfers, and the optimizer on CPUs", 1.0, 0.5),
    )

    def __init__(self, setup_for: Callable[[Measurement], TrainingSetup], prior_scale: float = 1.0) -> None:
        """`prior_scale` widens the priors, for machines that are not well known."""
        self._setup_for = setup_for
        self.parameters = tuple(
            msgspec.structs.replace(parameter, width=parameter.width * prior_scale)
            for parameter in self.default_parameters
        )

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> PhaseTimes:
        """Return step and optimizer times; samples on the same machines with the same batch are one call."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, sample in enumerate(samples):
            groups[(sample.gpus_on_node, sample.batch, sample.sequence, sample.cpus)].append(index)
        step, optimizer = np.empty(len(samples)), np.empty(len(samples))
        for indices in groups.values():
            names = (parameter.name for parameter in self.parameters)
            corrections = dict(zip(names, values.tolist(), strict=True))
            setup = apply_corrections(self._setup_for(samples[indices[0]]), corrections)
            estimates = estimate_all(setup, plans_to_columns([samples[index].plan for index in indices]))
            step[indices] = estimates.step_seconds
            optimizer[indices] = estimates.parts.optimizer + estimates.parts.offload
        return PhaseTimes(step, optimizer=optimizer)


def apply_corrections(setup: TrainingSetup, corrections: Mapping[str, float]) -> TrainingSetup:
    """Return a setup with the correction factors applied, by parameter name."""
    compute, small, launch, link, network, update, host = (
        corrections[parameter.name] for parameter in CorrectedForm.default_parameters
    )
    machines, engine = setup.machines, setup.engine
    gpu = machines.gpu
    efficiency = msgspec.structs.replace(gpu.efficiency, half_tokens=gpu.efficiency.half_tokens * small)
    pcie = gpu.pcie_gigabytes_per_second / host
    gpu = msgspec.structs.replace(gpu, pcie_gigabytes_per_second=pcie, efficiency=efficiency)
    inside, outside = machines.inside, machines.network
    machines = msgspec.structs.replace(
        machines,
        gpu=gpu,
        inside=msgspec.structs.replace(inside, gigabytes_per_second=inside.gigabytes_per_second / link),
        network=msgspec.structs.replace(outside, gigabytes_per_second=outside.gigabytes_per_second / network),
    )
    engine = msgspec.structs.replace(
        engine,
        compute_factor=engine.compute_factor * compute,
        launch_seconds=engine.launch_seconds * launch,
        update_passes=engine.update_passes * update,
        step_seconds=engine.step_seconds * update,
        cpu_seconds_per_parameter=engine.cpu_seconds_per_parameter * host,
    )
    return msgspec.structs.replace(setup, machines=machines, engine=engine)


_RUBICK_PARAMETERS = (
    Parameter("k_bwd", "backward time / forward time", 1.8, 0.4, 1.0, 10.0),
    Parameter("k_sync", "overlap of communication with the backward pass: 1 none, large full", 1.5, 0.6, 1.0, 100.0),
    Parameter("k_opt", "ms to update 2²⁰ weights on a GPU", 0.01, 2.0),
    Parameter("k_opt_off", "ms to update 2²⁰ weights with one CPU thread", 3.0, 0.7),
    Parameter("k_const", "fixed ms per step", 5.0, 1.5),
)
_ADDITIVE_OVERLAP = (
    Parameter("k_off", "ms that offload adds to the backward pass", 5.0, 1.5),
    Parameter("k_swap", "fixed ms of the optimizer", 10.0, 1.5),
)
_POWER_OVERLAP = (
    Parameter("k_off", "overlap of offload with the backward pass", 2.0, 0.6, 1.0, 100.0),
    Parameter("k_swap", "overlap of offload with the optimizer", 2.0, 0.6, 1.0, 100.0),
)


class RubickForm:
    """The seven parameters of Rubick (MLSys 2025), as in its authors' code; times in ms, weights in units of 2²⁰.

    With d replicas, T_fwd the forward time of one micro-batch, a micro-batches and c CPU threads per GPU:
    T_bwd = k_bwd·T_fwd, T_comm = 8·P·(d-1)/d / B, T_sync = (T_comm^k_sync + T_bwd^k_sync)^(1/k_sync),
    T_off = 4·P/d / B_pcie, T_opt = k_opt·P (shared among replicas under ZeRO) or k_opt_off·P/(d·c), and
    T_iter = α_f·T_fwd + (a - 1)·T_bwd + T_cc + T_oo + k_const. The two overlaps T_cc and T_oo are sums
    ("additive": T_sync + k_off + T_off and T_opt + k_swap + T_off) or power means with those exponents ("power").
    """

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        samples: Sequence[Measurement],
        overlap: Literal["additive", "power"] = "additive",
        pcie: float = 0.0,
        link: float = 0.0,
        network: float = 0.0,
    ) -> None:
        self.name = f"rubick-{overlap}"
        self.parameters: tuple[Parameter, ...] = _RUBICK_PARAMETERS + (
            _ADDITIVE_OVERLAP if overlap == "additive" else _POWER_OVERLAP
        )
        self._overlap, self._shape = overlap, shape
        self._forward_ms = 1000 * _forward_per_sample(samples)
        self._pcie = pcie or gpu.pcie_gigabytes_per_second * gpu.efficiency.pcie
        self._link = link or gpu.link.gigabytes_per_second * gpu.efficiency.link
        self._network = network or gpu.node_network_gigabytes_per_second * gpu.efficiency.network / gpu.network_cards

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> PhaseTimes:
        """Return the times of the step, the backward pass with communication (T_cc), and the optimizer (T_oo)."""
        k_bwd, k_sync, k_opt, k_opt_off, k_const, k_off, k_swap = values.tolist()
        plans = plans_to_columns([sample.plan for sample in samples])
        batch = np.array([sample.batch for sample in samples], float)
        nodes = np.array([len(sample.gpus_on_node) for sample in samples])
        threads = np.array([max(sample.cpus / sample.plan.gpus, 1.0) for sample in samples])
        slices = plans.tensor * plans.pipeline
        sliced, offload, recomputes = slices > 1, plans.offload > 0, plans.recompute > 0
        weights = self._shape.parameters / MIB / slices
        forward = self._forward_ms * batch / (plans.replicas * plans.accumulation * slices)
        forward = forward * np.where(sliced, (plans.accumulation + plans.pipeline - 1) / plans.accumulation, 1.0)
        backward = k_bwd * forward
        payload = 8 * weights * (plans.data - 1) / plans.data
        payload = payload * np.where((plans.zero >= 2) & ~offload, plans.accumulation, 1.0)
        sync = _power_mean(payload / np.where(nodes > 1, self._network, self._link), backward, k_sync)
        transfer = np.where(offload, 4 * weights / plans.data / self._pcie, 0.0)
        share = np.where(plans.zero > 0, plans.data, 1.0)
        update = np.where(offload, k_opt_off * weights / (plans.data * threads), k_opt * weights / share)
        if self._overlap == "additive":
            hidden, finish = sync + np.where(offload, k_off + transfer, 0.0), update + k_swap + transfer
        else:
            hidden, finish = _power_mean(transfer, sync, k_off), _power_mean(transfer, update, k_swap)
        communication = self._communication(samples, plans.tensor, plans.pipeline, batch / plans.data)
        forwards = plans.accumulation * np.where(recomputes, 2.0, 1.0) * forward
        backwards = (plans.accumulation - 1) * backward
        step = forwards + backwards + hidden + finish + communication + k_const
        return PhaseTimes(step / 1000, None, (hidden + backwards) / 1000, finish / 1000)

    def _communication(
        self, samples: Sequence[Measurement], tensor: Vector, pipeline: Vector, samples_per_replica: Vector
    ) -> Vector:
        """Return the ms of tensor (four all-reduces per layer) and pipeline communication (one per stage), in FP32."""
        width = self._shape.hidden * np.array([sample.sequence for sample in samples]) * samples_per_replica / MIB
        tensor_ms = 8 * 4 * width * self._shape.blocks * (tensor - 1) / tensor / self._link
        pipeline_ms = np.where(pipeline > 1, 16 * width / tensor * pipeline / self._network, 0.0)
        return np.asarray(tensor_ms + pipeline_ms)


def _power_mean(first: Vector, second: Vector, exponent: float) -> Vector:
    """Return (a^k + b^k)^(1/k) without overflow: the sum for k = 1, the larger one for large k."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    return np.asarray(larger * (1 + (smaller / np.maximum(larger, 1e-12)) ** exponent) ** (1 / exponent))


def _forward_per_sample(samples: Sequence[Measurement]) -> float:
    """Return the seconds of one GPU for the forward pass of one sample; measured, not fitted."""
    forward_times = [
        sample.forward_seconds * sample.plan.gpus / sample.batch
        for sample in samples
        if sample.forward_seconds and sample.plan.recompute == "none"
    ] or [sample.forward_seconds * sample.plan.gpus / sample.batch for sample in samples if sample.forward_seconds]
    if not forward_times:
        raise BadInput("no sample has a forward time; Rubick's form needs the column forward_s in at least one")
    return float(np.median(forward_times))
