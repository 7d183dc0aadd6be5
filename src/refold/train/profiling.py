"""Which configurations to try on this machine, and what comes of them. PyTorch is needed only when they are run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from refold.errors import BadInput, BadValue, MissingExtra, RefoldError
from refold.model import RECOMPUTE, Plan
from refold.perf import Measurement, ModelShape

if TYPE_CHECKING:
    from refold.train.steps import StepTimes, Trainer

ENOUGH = 7
"""Samples that a fit needs at least: as many as it has parameters."""


class ProfileConfig(msgspec.Struct, frozen=True):
    """A configuration to run: a plan, the global batch, tokens per sample, and threads of the CPU."""

    plan: Plan
    batch: int
    sequence: int
    threads: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.sequence, self.threads) < 1 or self.batch % self.plan.accumulation:
            raise BadValue(f"a batch of {self.batch} cannot be run with {self.plan} on {self.threads} threads")

    @property
    def micro_batch(self) -> int:
        """Samples of one forward pass."""
        return self.batch // self.plan.accumulation

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.plan.offload else ""
        return f"{self.plan}, {self.batch} × {self.sequence}{threads}"


class Effort(msgspec.Struct, frozen=True):
    """How long to look at each trial: `steps` after `warm_up`, or fewer if they take more than `seconds`, but one."""

    steps: int = 5
    warm_up: int = 2
    seconds: float = 20.0


USUAL_EFFORT = Effort()


def samples_to_take(
    shape: ModelShape, *, batch: int = 0, sequence: int = 0, threads: Sequence[int] = (), count: int = ENOUGH
) -> list[ProfileConfig]:
    """Configurations for one device, the most telling first: at least `count` of them.

    They have one global batch, as far as there are so many for it: micro-batches, what is recomputed, and offload
    with each number of threads; then larger batches. Whether each fits into memory is found out by running it.
    Among each `count` of them those that offload stand together: to change over takes time.
    """
    batch, sequence, threads = batch or shape.batch, sequence or shape.sequence, threads or usual_threads()
    trials = _trials_of(batch, sequence, threads)
    while len(trials) < count:
        batch *= 2
        trials += _trials_of(batch, sequence, threads)
    parts = [trials[start : start + count] for start in range(0, len(trials), count)]
    return [trial for number, part in enumerate(parts) for trial in _together(part, offload_last=number % 2 == 0)]


def _trials_of(batch: int, sequence: int, threads: Sequence[int]) -> list[ProfileConfig]:
    """By rank: plans that differ most come first, and accumulating twice as much is a rank of two."""
    kinds = [
        (0.0, Plan(), threads[0]),
        (1.0, Plan(recompute="full"), threads[0]),
        (2.25, Plan(recompute="selective"), threads[0]),
        (2.75, Plan(recompute="full", offload=True), threads[0]),
        *((0.5 + place, Plan(offload=True), number) for place, number in enumerate(threads)),
    ]
    ranked = [
        (
            rank + 2 * level,
            ProfileConfig(msgspec.structs.replace(plan, accumulation=accumulation), batch, sequence, number),
        )
        for level, accumulation in enumerate(_accumulations(batch))
        for rank, plan, number in kinds
    ]
    return [trial for _, trial in sorted(ranked, key=lambda one: one[0])]


def _together(trials: list[ProfileConfig], *, offload_last: bool) -> list[ProfileConfig]:
    """Those that offload after, or before, those that do not."""
    return sorted(trials, key=lambda trial: trial.plan.offload == offload_last)


def _accumulations(batch: int) -> list[int]:
    """1, and from there the next divisor of the batch that is at least twice as large."""
    found = [1]
    while found[-1] < batch:
        found.append(next(number for number in range(2 * found[-1], batch + 1) if not batch % number))
    return found


def usual_threads() -> list[int]:
    """Numbers of CPU threads worth a try on this machine: all of them, a quarter, a half, an eighth."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [*dict.fromkeys(max(1, usable // part) for part in (1, 4, 2, 8))]


def profile(
    shape: ModelShape,
    trials: Iterable[ProfileConfig],
    *,
    device: str = "cpu",
    wanted: int | None = None,
    effort: Effort = USUAL_EFFORT,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Measurement]:
    """Run trials one after the other, until `wanted` of them have fitted into memory.

    What needs no less memory than a trial that did not fit is not tried. `on_step` is told of every step.
    """
    need_torch("refold profile")
    from refold.train.steps import Trainer

    gpu = name_of_device(device)
    try:
        trainer = Trainer(shape, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadInput(f"the weights of {shape.name!r} alone do not fit into the memory of {gpu!r}") from None
    failed: list[ProfileConfig] = []
    fitted = 0
    for trial in trials:
        if wanted is not None and fitted >= wanted:
            return
        if any(needs_no_less(trial, other) for other in failed):
            continue
        measured = measure(trainer, trial, gpu, effort, on_step)
        if measured.status == "ok":
            fitted += 1
        else:
            failed.append(trial)
        yield measured


def measure(
    trainer: Trainer,
    trial: ProfileConfig,
    gpu: str,
    effort: Effort = USUAL_EFFORT,
    on_step: Callable[[], None] = lambda: None,
) -> Measurement:
    """What a step of a trial takes: medians of steps after some to warm up, and the peak of memory of all of them."""
    known = Measurement(
        trainer.shape.name, gpu, (1,), trial.plan, trial.batch, trial.sequence, float(trial.threads), status="oom"
    )
    trainer.clock.forget()
    try:
        times = _steps(trainer, trial, effort, on_step)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        times = []
    if not times:  # only here are the frames gone that held the tensors
        trainer.give_up_step()
        return known
    from refold.train.steps import middle_of

    middle = middle_of(times)
    memory, reserved = trainer.clock.peak_gib()
    return msgspec.structs.replace(
        known,
        step_seconds=middle.whole,
        forward_seconds=middle.forward,
        backward_seconds=middle.backward,
        optimizer_seconds=middle.optimizer,
        memory_gib=memory,
        reserved_gib=reserved,
        status="ok",
    )


def _steps(trainer: Trainer, trial: ProfileConfig, effort: Effort, on_step: Callable[[], None]) -> list[StepTimes]:
    from refold.train.models import random_batch

    batch = random_batch(trainer.shape, trial.batch, trial.sequence, trainer.device, trainer.dtype)

    def step() -> StepTimes:
        taken = trainer.step(batch, trial.plan, trial.threads)
        on_step()
        return taken

    for _ in range(effort.warm_up):
        step()
    until = perf_counter() + effort.seconds
    times = [step()]
    while len(times) < effort.steps and perf_counter() < until:
        times.append(step())
    return times


def needs_no_less(trial: ProfileConfig, other: ProfileConfig) -> bool:
    """Whether a trial takes at least the memory of another: what follows from their plans alone, without a model."""
    return (
        trial.sequence >= other.sequence
        and trial.micro_batch >= other.micro_batch
        and RECOMPUTE.index(trial.plan.recompute) <= RECOMPUTE.index(other.plan.recompute)
        and trial.plan.offload <= other.plan.offload
        and (trial.plan.accumulation > 1) >= (other.plan.accumulation > 1)  # gradients are kept between micro-batches
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the device or of the host ran out."""
    import torch

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    said = str(error).lower()
    return any(sign in said for sign in ("out of memory", "can't allocate memory", "alloc_failed"))


def need_torch(feature: str) -> None:
    """Complain where PyTorch is absent, or does not work."""
    if find_spec("torch") is None:
        raise MissingExtra(feature, "torch")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise BadInput(f"PyTorch is installed, but cannot be loaded: {error}") from None


def usual_device() -> str:
    """A GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Complain about a device that is not here."""
    import torch

    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        has = "has no GPU that PyTorch can use" if device == "cuda" else "has 'cpu' and perhaps 'cuda'"
        raise BadInput(f"no device {device!r}: this machine {has}")


def name_of_device(device: str) -> str:
    """The name of this GPU in the catalogue; its own, where the catalogue does not know it; 'cpu' is 'cpu'."""
    if device == "cpu":
        return "cpu"
    import torch

    own = torch.cuda.get_device_name()
    try:
        from refold.catalogue import find_gpu

        return find_gpu(own).name
    except RefoldError:
        return own.removeprefix("NVIDIA ")


def with_layers(shape: ModelShape, layers: int) -> ModelShape:
    """The same model with so many layers only (of each stack), under a name that says so."""
    if layers >= shape.layers:
        raise BadInput(f"model {shape.name!r} has {shape.layers} layers: it cannot be cut to {layers}")
    return msgspec.structs.replace(
        shape,
        name=f"{shape.name}-{layers}-layers",
        layers=layers,
        encoder_layers=min(layers, shape.encoder_layers),
        parameters_stated=0,
    )
