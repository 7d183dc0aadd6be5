"""How long a training step took, and how much memory: as it was observed, where an Estimate is as it was modelled."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.model import Plan

Status = Literal["ok", "oom"]


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One plan for one model, as it ran on these machines; times are of one step, memory is of one GPU.

    `batch` is the global one. `cpus` are those of the whole job; 0: not known. `backward_seconds` has the
    synchronisation of gradients in it, `optimizer_seconds` what offloading adds after the last backward pass.
    `memory_gib` is the peak of what tensors took, `reserved_gib` of what the process held for them. What was
    not measured is None; of what ran out of memory ("oom"), nothing was.
    """

    model: str
    gpu: str
    gpus_on_node: tuple[int, ...]
    plan: Plan
    batch: int
    sequence: int
    cpus: float = 0.0
    step_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    memory_gib: float | None = None
    reserved_gib: float | None = None
    status: Status = "ok"

    def __post_init__(self) -> None:
        if not self.gpus_on_node or min(self.gpus_on_node) < 1 or sum(self.gpus_on_node) != self.plan.gpus:
            raise BadValue(
                f"a measurement of {self.model!r}: {self.plan} is for {self.plan.gpus} GPUs, not {self.gpus_on_node}"
            )
        if min(self.batch, self.sequence) < 1:
            raise BadValue(f"a measurement of {self.model!r}: a step has at least one sample of at least one token")
        if self.batch % (self.plan.data * self.plan.accumulation):
            parts = f"{self.plan.data} replicas × {self.plan.accumulation} micro-batches"
            raise BadValue(f"a measurement of {self.model!r}: batch {self.batch} does not divide by {parts}")
        if (self.status == "ok") != (self.step_seconds is not None):
            raise BadValue(f"a measurement of {self.model!r}: step_seconds go with the status 'ok', and only with it")
        amounts = (self.cpus, self.forward_seconds, self.backward_seconds, self.optimizer_seconds)
        for amount in (*amounts, self.memory_gib, self.reserved_gib):
            if amount is not None and not (isfinite(amount) and amount >= 0):
                raise BadValue(f"a measurement of {self.model!r}: {amount} is not a number ≥ 0")
        if self.step_seconds is not None and not (isfinite(self.step_seconds) and self.step_seconds > 0):
            raise BadValue(f"a measurement of {self.model!r}: step_seconds are {self.step_seconds}, expected > 0")

    @property
    def micro_batch(self) -> float:
        """Samples of one forward pass of one replica."""
        return self.batch / (self.plan.data * self.plan.accumulation)

    @property
    def samples_per_second(self) -> float:
        """Throughput of the whole job; 0 where it did not run."""
        return self.batch / self.step_seconds if self.step_seconds else 0.0
