"""Choose training configurations for this machine and measure them. PyTorch is only needed for measuring."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from refold.errors import BadInput, BadValue, MissingExtra, RefoldError
from refold.model import RECOMPUTE, Plan
from refold.planning.perf import Measurement, ModelShape

if TYPE_CHECKING:
    from refold.train.steps import StepTimes, Trainer

MIN_SAMPLES = 7
"""Minimum number of measurements for a fit: the number of its parameters."""


class ProfileConfig(msgspec.Struct, frozen=True):
    """A configuration to measure: plan, global batch size, tokens per sample, and CPU threads."""

    plan: Plan
    batch: int
    sequence: int
    threads: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.sequence, self.threads) < 1 or self.batch % self.plan.accumulation:
            raise BadValue(f"a batch of {self.batch} cannot be trained with {self.plan} on {self.threads} threads")

    @property
    def micro_batch(self) -> int:
        """Samples per forward pass."""
        return self.batch // self.plan.accumulation

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.plan.offload else ""
        return f"{self.plan}, {self.batch} × {self.sequence}{threads}"


class StepBudget(msgspec.Struct, frozen=True):
    """Steps to measure per configuration: `steps` after `warm_up` steps; fewer after `seconds`, but at least one."""

    steps: int = 5
    warm_up: int = 2
    seconds: float = 20.0


DEFAULT_BUDGET = StepBudget()


def choose_configs(
    shape: ModelShape, *, batch: int = 0, sequence: int = 0, threads: Sequence[int] = (), count: int = MIN_SAMPLES
) -> list[ProfileConfig]:
    """Return at least `count` configurations for one device, the most informative first.

    They vary the micro-batch size, recomputation, and offload with each number of threads at one global batch size; if
    that gives too few, larger batches are added. Whether a configuration fits into memory is only known after running
    it. Within each group of `count`, configurations with offload are adjacent, because switching takes time.
    """
    batch, sequence, threads = batch or shape.batch, sequence or shape.sequence, threads or default_thread_counts()
    configs = _configs_for_batch(batch, sequence, threads)
    while len(configs) < count:
        batch *= 2
        configs += _configs_for_batch(batch, sequence, threads)
    groups = [configs[start : start + count] for start in range(0, len(configs), count)]
    return [
        config for index, group in enumerate(groups) for config in _group_offload(group, offload_last=index % 2 == 0)
    ]


def _configs_for_batch(batch: int, sequence: int, threads: Sequence[int]) -> list[ProfileConfig]:
    """Return configurations by rank: the most different plans first; twice the accumulation adds 2 to the rank."""
    kinds = [
        (0.0, Plan(), threads[0]),
        (1.0, Plan(recompute="full"), threads[0]),
        (2.25, Plan(recompute="selective"), threads[0]),
        (2.75, Plan(recompute="full", offload=True), threads[0]),
        *((0.5 + index, Plan(offload=True), count) for index, count in enumerate(threads)),
    ]
    ranked = [
        (
            rank + 2 * level,
            ProfileConfig(msgspec.structs.replace(plan, accumulation=accumulation), batch, sequence, count),
        )
        for level, accumulation in enumerate(_accumulations(batch))
        for rank, plan, count in kinds
    ]
    return [config for _, config in sorted(ranked, key=lambda pair: pair[0])]


def _group_offload(configs: list[ProfileConfig], *, offload_last: bool) -> list[ProfileConfig]:
    """Move the configurations with offload to the end or the beginning."""
    return sorted(configs, key=lambda config: config.plan.offload == offload_last)


def _accumulations(batch: int) -> list[int]:
    """Return divisors of the batch, starting with 1, each at least twice as large as the previous one."""
    divisors = [1]
    while divisors[-1] < batch:
        divisors.append(next(number for number in range(2 * divisors[-1], batch + 1) if not batch % number))
    return divisors


def default_thread_counts() -> list[int]:
    """Return numbers of CPU threads to try on this machine: all, a quarter, a half, an eighth."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [*dict.fromkeys(max(1, usable // divisor) for divisor in (1, 4, 2, 8))]


def profile(
    shape: ModelShape,
    configs: Iterable[ProfileConfig],
    *,
    device: str = "cpu",
    max_fitting: int | None = None,
    budget: StepBudget = DEFAULT_BUDGET,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Measurement]:
    """Measure configurations one after another, until `max_fitting` of them have fitted into memory.

    Configurations that need at least as much memory as one that did not fit are skipped. `on_step` is called after
    every step.
    """
    require_torch("refold profile")
    from refold.train.steps import Trainer

    gpu = device_name(device)
    try:
        trainer = Trainer(shape, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadInput(f"the weights of {shape.name!r} do not fit into the memory of {gpu!r}") from None
    failed: list[ProfileConfig] = []
    fitted = 0
    for config in configs:
        if max_fitting is not None and fitted >= max_fitting:
            return
        if any(needs_at_least_memory_of(config, other) for other in failed):
            continue
        measurement = measure(trainer, config, gpu, budget, on_step)
        if measurement.status == "ok":
            fitted += 1
        else:
            failed.append(config)
        yield measurement


def measure(
    trainer: Trainer,
    config: ProfileConfig,
    gpu: str,
    budget: StepBudget = DEFAULT_BUDGET,
    on_step: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure the steps of a configuration: median times after warm-up, and peak memory including warm-up."""
    out_of_memory = Measurement(
        trainer.shape.name, gpu, (1,), config.plan, config.batch, config.sequence, float(config.threads), status="oom"
    )
    trainer.timer.reset_peak_memory()
    try:
        times = _run_steps(trainer, config, budget, on_step)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        times = []
    if not times:  # outside the except block, where the traceback would keep the tensors alive
        trainer.abort_step()
        return out_of_memory
    from refold.train.steps import median_times

    medians = median_times(times)
    memory, reserved = trainer.timer.peak_memory_gib()
    return msgspec.structs.replace(
        out_of_memory,
        step_seconds=medians.total,
        forward_seconds=medians.forward,
        backward_seconds=medians.backward,
        optimizer_seconds=medians.optimizer,
        memory_gib=memory,
        reserved_gib=reserved,
        status="ok",
    )


def _run_steps(
    trainer: Trainer, config: ProfileConfig, budget: StepBudget, on_step: Callable[[], None]
) -> list[StepTimes]:
    from refold.train.models import random_batch

    batch = random_batch(trainer.shape, config.batch, config.sequence, trainer.device, trainer.dtype)

    def step() -> StepTimes:
        times = trainer.step(batch, config.plan, config.threads)
        on_step()
        return times

    for _ in range(budget.warm_up):
        step()
    deadline = perf_counter() + budget.seconds
    times = [step()]
    while len(times) < budget.steps and perf_counter() < deadline:
        times.append(step())
    return times


def needs_at_least_memory_of(config: ProfileConfig, other: ProfileConfig) -> bool:
    """Return whether a configuration needs at least as much memory as another, judged by their plans alone."""
    return (
        config.sequence >= other.sequence
        and config.micro_batch >= other.micro_batch
        and RECOMPUTE.index(config.plan.recompute) <= RECOMPUTE.index(other.plan.recompute)
        and config.plan.offload <= other.plan.offload
        and (config.plan.accumulation > 1)
        >= (other.plan.accumulation > 1)  # gradients stay in memory between micro-batches
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that the device or the host ran out of memory."""
    import torch

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    message = str(error).lower()
    return any(text in message for text in ("out of memory", "can't allocate memory", "alloc_failed"))


def require_torch(feature: str) -> None:
    """Raise an error if PyTorch is not installed or cannot be loaded."""
    if find_spec("torch") is None:
        raise MissingExtra(feature, "train")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise BadInput(f"PyTorch is installed, but cannot be loaded: {error}") from None


def default_device() -> str:
    """Return 'cuda' if PyTorch can use a GPU, else 'cpu'."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise BadInput if the device is not available."""
    import torch

    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        reason = "this machine has no GPU that PyTorch can use" if device == "cuda" else "expected 'cpu' or 'cuda'"
        raise BadInput(f"no device {device!r}: {reason}")


def device_name(device: str) -> str:
    """Return the name of the device: as in the catalogue or, for unknown GPUs, as reported by the driver."""
    if device == "cpu":
        return "cpu"
    import torch

    reported = torch.cuda.get_device_name()
    try:
        from refold.planning.catalogue import find_gpu

        return find_gpu(reported).name
    except RefoldError:
        return reported.removeprefix("NVIDIA ")


def truncate_layers(shape: ModelShape, layers: int) -> ModelShape:
    """Return the model with only this number of layers (in each stack) and a name that includes the number."""
    if layers >= shape.layers:
        raise BadInput(f"model {shape.name!r} has {shape.layers} layers: cannot reduce it to {layers}")
    return msgspec.structs.replace(
        shape,
        name=f"{shape.name}-{layers}-layers",
        layers=layers,
        encoder_layers=min(layers, shape.encoder_layers),
        parameters_stated=0,
    )
