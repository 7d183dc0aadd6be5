"""Training steps under a plan, on one device, and how long each part of them takes."""

from __future__ import annotations

import gc
from itertools import pairwise
from statistics import median
from time import perf_counter

import msgspec
import torch

from refold.errors import BadInput
from refold.model import Plan
from refold.perf import ModelShape
from refold.train.models import Batch, build
from refold.train.optimizers import OnDevice, OnHost, Optimizer, buckets_of
from refold.train.timers import clock_of


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds of one step. Copies between host and device (`transfer`) overlap the others; `loss` was before it."""

    whole: float
    forward: float
    backward: float
    optimizer: float
    transfer: float
    loss: float


def middle_of(steps: list[StepTimes]) -> StepTimes:
    """The median of each part."""
    return StepTimes(*(median(parts) for parts in zip(*map(msgspec.structs.astuple, steps), strict=True)))


class Trainer:
    """A model on a device, ready to be trained with one plan after another.

    If nothing else is said, weights are in bfloat16 on a GPU and in float32 on a CPU; AdamW works in float32 always.
    """

    def __init__(
        self, shape: ModelShape, device: str = "cpu", *, dtype: torch.dtype | None = None, seed: int = 0
    ) -> None:
        self.shape, self.device = shape, device
        self.dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
        self.clock = clock_of(device)
        self.model = build(shape, device, self.dtype, seed)
        self._buckets = buckets_of(self.model)
        self._optimizer: Optimizer | None = None

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        return sum(weights.numel() for weights in self.model.parameters())

    def step(self, batch: Batch, plan: Plan, threads: int = 1) -> StepTimes:
        """One step on a whole batch; `threads` of the CPU update the weights where the plan offloads that."""
        check_runs_here(plan, len(batch.inputs))
        optimizer = self._optimizer_for(plan, threads)
        losses = []
        self.clock.finish()
        began = perf_counter()
        marks = [self.clock.mark()]
        parts = batch.parts(plan.accumulation)
        for number, part in enumerate(parts, start=1):
            loss = self.model(part, plan.recompute) / plan.accumulation
            marks.append(self.clock.mark())
            if number == len(parts):
                optimizer.expect_last()
            loss.backward()
            marks.append(self.clock.mark())
            losses.append(loss.detach())
            del loss
        transfer = optimizer.step()
        marks.append(self.clock.mark())
        self.clock.finish()
        whole = perf_counter() - began
        *passes, last = [earlier.seconds_until(later) for earlier, later in pairwise(marks)]
        return StepTimes(whole, sum(passes[::2]), sum(passes[1::2]), last, transfer, float(sum(losses)))

    def give_up_step(self) -> None:
        """Forget what a step that failed has left behind, and give back its memory."""
        if self._optimizer is not None:
            self._optimizer.forget()
        gc.collect()
        self.clock.forget()

    def _optimizer_for(self, plan: Plan, threads: int) -> Optimizer:
        if isinstance(self._optimizer, OnHost if plan.offload else OnDevice):
            optimizer = self._optimizer
        else:
            self._close_optimizer()
            optimizer = OnHost(self._buckets, self.clock) if plan.offload else OnDevice(self._buckets)
            self._optimizer = optimizer
        if isinstance(optimizer, OnHost):
            optimizer.threads = threads
        return optimizer

    def _close_optimizer(self) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
            self._optimizer = None
            self.give_up_step()


def check_runs_here(plan: Plan, batch: int) -> None:
    """Complain about a plan that one device cannot run. ZeRO is no hindrance: one device holds all the shards."""
    if plan.gpus > 1:
        raise BadInput(f"plan {plan} is for {plan.gpus} GPUs, and steps are measured on one")
    if batch % plan.accumulation:
        raise BadInput(f"a batch of {batch} cannot be parted into {plan.accumulation} micro-batches of one size")
