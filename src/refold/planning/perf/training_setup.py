"""The training setup of a job: everything except its plan."""

from __future__ import annotations

from functools import cached_property

import msgspec

from refold.errors import BadValue
from refold.planning.perf.columns import Column, PlanColumns
from refold.planning.perf.engine import Engine
from refold.planning.perf.hardware import Machines
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.tuning import Tuning


class TrainingSetup(msgspec.Struct, frozen=True, dict=True):
    """Model, machines, training framework, global batch and sequence length of a job, and what it trains.

    `packed`: sequences are filled with samples of so many tokens on average, which do not attend to each other; 0: a
    sequence is one sample.
    """

    model: ModelShape
    machines: Machines
    engine: Engine
    batch: int
    sequence: int
    tuning: Tuning = Tuning()
    packed: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= 2**40 and 1 <= self.sequence <= 2**40):
            raise BadValue(f"batch is {self.batch} and sequence is {self.sequence}, expected at least 1")
        gpu, arithmetic = self.machines.gpu, self.engine.arithmetic
        if self.engine.low_precision and not (gpu.fp4_tflops if arithmetic == "nvfp4" else gpu.fp8_tflops):
            raise BadValue(f"{gpu.name} has no matrix products in {arithmetic}")
        if self.tuning.lora_rank and self.model.opaque:
            raise BadValue(f"LoRA needs the shapes of {self.model.name}, which is known only by its totals")
        if self.tuning.frozen_layers >= self.model.blocks:
            frozen, layers = self.tuning.frozen_layers, self.model.blocks
            raise BadValue(f"{frozen} layers are frozen, but {self.model.name} has {layers}: nothing would be trained")
        if self.packed < 0:
            raise BadValue(f"packed is {self.packed}, expected a number of tokens ≥ 0")

    @property
    def tokens(self) -> int:
        """Tokens per step; samples for an opaque model."""
        return self.batch * self.tokens_per_sample

    @property
    def tokens_per_sample(self) -> int:
        """Tokens per sample; 1 for an opaque model, whose samples count as one token."""
        return 1 if self.model.opaque else self.sequence

    @property
    def attended(self) -> int:
        """Tokens to which those of a sample attend: the sequence, or less if samples are packed."""
        return min(self.packed or self.sequence, self.sequence)

    @property
    def backward_share(self) -> float:
        """Layers that have a backward pass, relative to all."""
        return 1 - self.tuning.frozen_layers / self.model.blocks

    @cached_property
    def trained_share(self) -> float:
        """Trained weights relative to all."""
        return self.tuning.trained_share(self.model)

    @cached_property
    def stored_weight_bytes(self) -> float:
        """Bytes per weight as stored on GPUs, with those of adapters; as gathered by ZeRO-3."""
        if not self.tuning.lora_rank:
            return self.engine.weight_bytes
        return self.tuning.frozen_weight_bytes(self.model) + self.trained_share * self.engine.weight_bytes

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state per trained weight."""
        return self.tuning.optimizer_bytes(self.engine.optimizer_bytes)

    def micro_tokens(self, plans: PlanColumns) -> Column:
        """Return the tokens of a micro-batch that one GPU has; the global batch is the same for all plans."""
        return self.tokens / (plans.replicas * plans.accumulation)

    def stage_blocks(self, plans: PlanColumns) -> Column:
        """Return the average number of layers per pipeline stage."""
        return self.model.blocks / plans.pipeline
