"""The training setup of a job: everything except its plan."""

from __future__ import annotations

import msgspec

from refold.errors import BadValue
from refold.perf.columns import Column, PlanColumns
from refold.perf.engine import Engine
from refold.perf.hardware import Machines
from refold.perf.shapes import ModelShape


class TrainingSetup(msgspec.Struct, frozen=True):
    """Model, machines, training framework, global batch and sequence length of a job."""

    model: ModelShape
    machines: Machines
    engine: Engine
    batch: int
    sequence: int

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= 2**40 and 1 <= self.sequence <= 2**40):
            raise BadValue(f"batch is {self.batch} and sequence is {self.sequence}, expected at least 1")
        gpu, arithmetic = self.machines.gpu, self.engine.arithmetic
        if self.engine.low_precision and not (gpu.fp4_tflops if arithmetic == "nvfp4" else gpu.fp8_tflops):
            raise BadValue(f"{gpu.name} has no matrix products in {arithmetic}")

    @property
    def tokens(self) -> int:
        """Tokens per step; samples for an opaque model."""
        return self.batch * self.tokens_per_sample

    @property
    def tokens_per_sample(self) -> int:
        """Tokens per sample; 1 for an opaque model, whose samples count as one token."""
        return 1 if self.model.opaque else self.sequence

    def micro_tokens(self, plans: PlanColumns) -> Column:
        """Return the tokens of a micro-batch that one GPU has; the global batch is the same for all plans."""
        return self.tokens / (plans.replicas * plans.accumulation)

    def stage_blocks(self, plans: PlanColumns) -> Column:
        """Return the average number of layers per pipeline stage."""
        return self.model.blocks / plans.pipeline
