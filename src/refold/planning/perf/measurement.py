"""Measured step time and memory; the counterpart of `Estimate`, which is modelled."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.model import Plan

Status = Literal["ok", "oom"]


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Measurement of one plan for one model on given machines; times per step, memory per GPU.

    `batch` is the global batch. `cpus` is the total of the job; 0: unknown. `backward_seconds` includes gradient
    synchronisation, `optimizer_seconds` the part of offloading after the last backward pass. `memory_gib` is the peak
    of allocated memory, `reserved_gib` of memory reserved by the process. Values that were not measured are None; a
    run out of memory ("oom") has none.
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
                f"measurement of {self.model!r}: {self.plan} uses {self.plan.gpus} GPUs, "
                f"but gpus_on_node is {self.gpus_on_node}"
            )
        if min(self.batch, self.sequence) < 1:
            raise BadValue(f"measurement of {self.model!r}: batch and sequence must be ≥ 1")
        if self.batch % (self.plan.data * self.plan.accumulation):
            parts = f"{self.plan.data} replicas × {self.plan.accumulation} micro-batches"
            raise BadValue(f"measurement of {self.model!r}: batch {self.batch} is not divisible by {parts}")
        if (self.status == "ok") != (self.step_seconds is not None):
            raise BadValue(f"measurement of {self.model!r}: step_seconds is required with status 'ok', and only then")
        amounts = (self.cpus, self.forward_seconds, self.backward_seconds, self.optimizer_seconds)
        for amount in (*amounts, self.memory_gib, self.reserved_gib):
            if amount is not None and not (isfinite(amount) and amount >= 0):
                raise BadValue(f"measurement of {self.model!r}: value is {amount}, expected a number ≥ 0")
        if self.step_seconds is not None and not (isfinite(self.step_seconds) and self.step_seconds > 0):
            raise BadValue(f"measurement of {self.model!r}: step_seconds is {self.step_seconds}, expected > 0")

    @property
    def micro_batch(self) -> float:
        """Samples per replica and forward pass."""
        return self.batch / (self.plan.data * self.plan.accumulation)

    @property
    def samples_per_second(self) -> float:
        """Throughput of the whole job; 0 if it did not run."""
        return self.batch / self.step_seconds if self.step_seconds else 0.0
