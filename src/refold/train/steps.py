"""Training steps under a plan on one device, with the time of each phase."""

from __future__ import annotations

import gc
from itertools import pairwise
from statistics import median
from time import perf_counter

import msgspec
import torch

from refold.errors import BadInput
from refold.model import Plan
from refold.planning.perf import ModelShape
from refold.train.models import Batch, build
from refold.train.optimizers import DeviceOptimizer, OffloadedOptimizer, Optimizer, make_buckets
from refold.train.timers import make_timer


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds of one step by phase. `transfer` (copies between host and device) overlaps the others.

    `loss` is the loss before the step.
    """

    total: float
    forward: float
    backward: float
    optimizer: float
    transfer: float
    loss: float


def median_times(steps: list[StepTimes]) -> StepTimes:
    """Return the median of each field."""
    return StepTimes(*(median(values) for values in zip(*map(msgspec.structs.astuple, steps), strict=True)))


class Trainer:
    """A model on a device that can be trained with different plans one after another.

    By default, weights are in bfloat16 on a GPU and in float32 on the CPU; AdamW always uses float32.
    """

    def __init__(
        self, shape: ModelShape, device: str = "cpu", *, dtype: torch.dtype | None = None, seed: int = 0
    ) -> None:
        self.shape, self.device = shape, device
        self.dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
        self.timer = make_timer(device)
        self.model = build(shape, device, self.dtype, seed)
        self._buckets = make_buckets(self.model)
        self._optimizer: Optimizer | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(weights.numel() for weights in self.model.parameters())

    def step(self, batch: Batch, plan: Plan, threads: int = 1) -> StepTimes:
        """Run one step on a batch. With offload, the weights are updated with this number of CPU `threads`."""
        check_single_device(plan, len(batch.inputs))
        optimizer = self._optimizer_for(plan, threads)
        losses = []
        self.timer.synchronize()
        start = perf_counter()
        events = [self.timer.record()]
        micro_batches = batch.split(plan.accumulation)
        for number, micro_batch in enumerate(micro_batches, start=1):
            loss = self.model(micro_batch, plan.recompute) / plan.accumulation
            events.append(self.timer.record())
            if number == len(micro_batches):
                optimizer.begin_last_backward()
            loss.backward()
            events.append(self.timer.record())
            losses.append(loss.detach())
            del loss
        transfer = optimizer.step()
        events.append(self.timer.record())
        self.timer.synchronize()
        total = perf_counter() - start
        *passes, update = [earlier.seconds_until(later) for earlier, later in pairwise(events)]
        return StepTimes(total, sum(passes[::2]), sum(passes[1::2]), update, transfer, float(sum(losses)))

    def abort_step(self) -> None:
        """Discard the state of a failed step and release its memory."""
        if self._optimizer is not None:
            self._optimizer.discard_gradients()
        gc.collect()
        self.timer.reset_peak_memory()

    def _optimizer_for(self, plan: Plan, threads: int) -> Optimizer:
        if isinstance(self._optimizer, OffloadedOptimizer if plan.offload else DeviceOptimizer):
            optimizer = self._optimizer
        else:
            self._close_optimizer()
            optimizer = (
                OffloadedOptimizer(self._buckets, self.timer) if plan.offload else DeviceOptimizer(self._buckets)
            )
            self._optimizer = optimizer
        if isinstance(optimizer, OffloadedOptimizer):
            optimizer.threads = threads
        return optimizer

    def _close_optimizer(self) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
            self._optimizer = None
            self.abort_step()


def check_single_device(plan: Plan, batch: int) -> None:
    """Raise BadInput if one device cannot run the plan. ZeRO has no effect on one device, which holds all shards."""
    if plan.gpus > 1:
        raise BadInput(f"plan {plan} is for {plan.gpus} GPUs, but steps are measured on one")
    if batch % plan.accumulation:
        raise BadInput(f"a batch of {batch} cannot be split into {plan.accumulation} micro-batches of equal size")
