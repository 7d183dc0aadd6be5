"""How one job computes: its parallel plan. A plan never changes what is learned, only how fast and on what."""

from __future__ import annotations

from typing import Literal

import msgspec

from refold.errors import BadValue

Recompute = Literal["none", "selective", "full"]


class Plan(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Degrees of data, tensor and pipeline parallelism, and what is sharded, offloaded, recomputed, accumulated."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    offload: bool = False
    recompute: Recompute = "none"
    accumulation: int = 1

    def __post_init__(self) -> None:
        if min(self.data, self.tensor, self.pipeline, self.accumulation) < 1:
            raise BadValue(f"every degree of a plan is at least 1, got {self}")
        if not 0 <= self.zero <= 3:
            raise BadValue(f"ZeRO has stages 0 to 3, not {self.zero}")

    @property
    def gpus(self) -> int:
        """How many GPUs the plan runs on."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        parts = [f"DP{self.data}"]
        parts += [f"TP{self.tensor}"] if self.tensor > 1 else []
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"ZeRO-{self.zero}"] if self.zero else []
        parts += ["offload"] if self.offload else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        parts += [f"accumulate {self.accumulation}"] if self.accumulation > 1 else []
        return " ".join(parts)
