"""Everything about a training job but its plan."""

from __future__ import annotations

import msgspec

from refold.errors import BadValue
from refold.perf.columns import Column, PlanColumns
from refold.perf.engine import Engine
from refold.perf.hardware import Machines
from refold.perf.shapes import ModelShape


class Setting(msgspec.Struct, frozen=True):
    """Which model, on which machines, by which training framework, with what global batch and sequence."""

    model: ModelShape
    machines: Machines
    engine: Engine
    batch: int
    sequence: int

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= 2**40 and 1 <= self.sequence <= 2**40):
            raise BadValue(f"batch and sequence are at least 1, not {self.batch} and {self.sequence}")

    @property
    def tokens(self) -> int:
        """Tokens of a step; of an opaque model, samples."""
        return self.batch * self.tokens_per_sample

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample; an opaque model does not say, so there a sample counts as one."""
        return 1 if self.model.opaque else self.sequence

    def micro_tokens(self, plans: PlanColumns) -> Column:
        """Tokens of one micro-batch: the global batch is kept, whatever the plan."""
        return self.tokens / (plans.data * plans.accumulation)

    def stage_blocks(self, plans: PlanColumns) -> Column:
        """Layers per pipeline stage, on average."""
        return self.model.blocks / plans.pipeline
