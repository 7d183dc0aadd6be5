"""Two forms that step times can be fitted in: the analytical model, corrected, and Rubick's seven parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from refold.errors import BadInput
from refold.perf.columns import columns_of
from refold.perf.estimation import estimate_all
from refold.perf.fitting import Parameter, Times, Vector
from refold.perf.hardware import GpuSpec
from refold.perf.measurement import Measurement
from refold.perf.setting import Setting
from refold.perf.shapes import ModelShape

MIB = 2.0**20


class CorrectedForm:
    """The analytical model with seven corrections: 1 is as modelled, 1.2 takes a fifth longer.

    Everything that the model knows of plans stays in it, so that what was never measured (other degrees, other
    machines) is still estimated by the formulas, and only better.
    """

    name = "corrected"
    usual: tuple[Parameter, ...] = (
        Parameter("compute", "seconds of computing, against the model's", 1.0, 0.3),
        Parameter("small", "rows that products need to reach half of their rate", 1.0, 0.7),
        Parameter("launch", "seconds in which the host starts the kernels of a layer", 1.0, 0.7),
        Parameter("link", "seconds of traffic inside a node", 1.0, 0.5),
        Parameter("network", "seconds of traffic between nodes", 1.0, 0.5),
        Parameter("update", "seconds of the optimiser on GPUs", 1.0, 0.7),
        Parameter("host", "seconds of offloading: transfers, and the optimiser on CPUs", 1.0, 0.5),
    )

    def __init__(self, setting_for: Callable[[Measurement], Setting], unsure: float = 1.0) -> None:
        """`unsure`: how many times less the model is believed than usually, where its machines are not well known."""
        self._setting_for = setting_for
        self.parameters = tuple(msgspec.structs.replace(one, width=one.width * unsure) for one in self.usual)

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> Times:
        """Steps, and optimisers; those on the same machines with the same batch are one call."""
        together: dict[object, list[int]] = defaultdict(list)
        for index, one in enumerate(samples):
            together[(one.gpus_on_node, one.batch, one.sequence, one.cpus)].append(index)
        step, optimizer = np.empty(len(samples)), np.empty(len(samples))
        for indices in together.values():
            names = (parameter.name for parameter in self.parameters)
            corrections = dict(zip(names, values.tolist(), strict=True))
            setting = corrected(self._setting_for(samples[indices[0]]), corrections)
            found = estimate_all(setting, columns_of([samples[index].plan for index in indices]))
            step[indices] = found.step_seconds
            optimizer[indices] = found.parts.optimizer + found.parts.offload
        return Times(step, optimizer=optimizer)


def corrected(setting: Setting, corrections: Mapping[str, float]) -> Setting:
    """A setting in which everything takes as many times as long as the corrections say, by name."""
    compute, small, launch, link, network, update, host = (corrections[one.name] for one in CorrectedForm.usual)
    machines, engine = setting.machines, setting.engine
    gpu = machines.gpu
    reached = msgspec.structs.replace(gpu.efficiency, half_tokens=gpu.efficiency.half_tokens * small)
    pcie = gpu.pcie_gigabytes_per_second / host
    gpu = msgspec.structs.replace(gpu, pcie_gigabytes_per_second=pcie, efficiency=reached)
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
    return msgspec.structs.replace(setting, machines=machines, engine=engine)


_RUBICK = (
    Parameter("k_bwd", "backward pass, in forward passes", 1.8, 0.4, 1.0, 10.0),
    Parameter("k_sync", "how far communication hides behind it: 1 not at all, large fully", 1.5, 0.6, 1.0, 100.0),
    Parameter("k_opt", "ms to update 2²⁰ weights on a GPU", 0.01, 2.0),
    Parameter("k_opt_off", "ms to update 2²⁰ weights with one CPU thread", 3.0, 0.7),
    Parameter("k_const", "ms that a step takes besides", 5.0, 1.5),
)
_ADDED = (
    Parameter("k_off", "ms that offloading adds to the backward pass", 5.0, 1.5),
    Parameter("k_swap", "ms that the optimiser takes besides", 10.0, 1.5),
)
_POWERS = (
    Parameter("k_off", "how far offloading hides behind the backward pass", 2.0, 0.6, 1.0, 100.0),
    Parameter("k_swap", "how far offloading hides behind the optimiser", 2.0, 0.6, 1.0, 100.0),
)


class RubickForm:
    """The seven parameters of Rubick (MLSys 2025), as its authors' code has them; times in ms, weights in 2²⁰.

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
        self.parameters: tuple[Parameter, ...] = _RUBICK + (_ADDED if overlap == "additive" else _POWERS)
        self._overlap, self._shape = overlap, shape
        self._forward_ms = 1000 * _forward_per_sample(samples)
        self._pcie = pcie or gpu.pcie_gigabytes_per_second * gpu.efficiency.pcie
        self._link = link or gpu.link.gigabytes_per_second * gpu.efficiency.link
        self._network = network or gpu.node_network_gigabytes_per_second * gpu.efficiency.network / gpu.network_cards

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> Times:
        """Forward, backward with its communication (T_cc), optimiser with offloading (T_oo), and the step."""
        k_bwd, k_sync, k_opt, k_opt_off, k_const, k_off, k_swap = values.tolist()
        plans = columns_of([one.plan for one in samples])
        batch = np.array([one.batch for one in samples], float)
        nodes = np.array([len(one.gpus_on_node) for one in samples])
        threads = np.array([max(one.cpus / one.plan.gpus, 1.0) for one in samples])
        slices = plans.tensor * plans.pipeline
        sliced, offload, again = slices > 1, plans.offload > 0, plans.recompute > 0
        weights = self._shape.parameters / MIB / slices
        forward = self._forward_ms * batch / (plans.data * plans.accumulation * slices)
        forward = forward * np.where(sliced, (plans.accumulation + plans.pipeline - 1) / plans.accumulation, 1.0)
        backward = k_bwd * forward
        moved = 8 * weights * (plans.data - 1) / plans.data
        moved = moved * np.where((plans.zero >= 2) & ~offload, plans.accumulation, 1.0)
        sync = _power_mean(moved / np.where(nodes > 1, self._network, self._link), backward, k_sync)
        down = np.where(offload, 4 * weights / plans.data / self._pcie, 0.0)
        share = np.where(plans.zero > 0, plans.data, 1.0)
        update = np.where(offload, k_opt_off * weights / (plans.data * threads), k_opt * weights / share)
        if self._overlap == "additive":
            hidden, finish = sync + np.where(offload, k_off + down, 0.0), update + k_swap + down
        else:
            hidden, finish = _power_mean(down, sync, k_off), _power_mean(down, update, k_swap)
        talk = self._talk(samples, plans.tensor, plans.pipeline, batch / plans.data)
        forwards = plans.accumulation * np.where(again, 2.0, 1.0) * forward
        backwards = (plans.accumulation - 1) * backward
        step = forwards + backwards + hidden + finish + talk + k_const
        return Times(step / 1000, None, (hidden + backwards) / 1000, finish / 1000)

    def _talk(self, samples: Sequence[Measurement], tensor: Vector, pipeline: Vector, samples_each: Vector) -> Vector:
        """What tensor and pipeline parallelism say: four all-reduces a layer, and one hand-over a stage, in 4 bytes."""
        width = self._shape.hidden * np.array([one.sequence for one in samples]) * samples_each / MIB
        within = 8 * 4 * width * self._shape.blocks * (tensor - 1) / tensor / self._link
        between = np.where(pipeline > 1, 16 * width / tensor * pipeline / self._network, 0.0)
        return np.asarray(within + between)


def _power_mean(one: Vector, other: Vector, exponent: float) -> Vector:
    """(a^k + b^k)^(1/k), without overflow: the sum for k = 1, the larger of them for large k."""
    more, less = np.maximum(one, other), np.minimum(one, other)
    return np.asarray(more * (1 + (less / np.maximum(more, 1e-12)) ** exponent) ** (1 / exponent))


def _forward_per_sample(samples: Sequence[Measurement]) -> float:
    """Seconds that one GPU takes for the forward pass of one sample: profiled, not fitted."""
    seen = [
        one.forward_seconds * one.plan.gpus / one.batch
        for one in samples
        if one.forward_seconds and one.plan.recompute == "none"
    ] or [one.forward_seconds * one.plan.gpus / one.batch for one in samples if one.forward_seconds]
    if not seen:
        raise BadInput("Rubick's form needs the time of a forward pass: a column forward_s, in one sample at least")
    return float(np.median(seen))
