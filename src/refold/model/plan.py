"""How one job computes: its parallel plan. A plan never changes what is learned, only how fast and on what."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import msgspec

from refold.errors import BadInput, BadValue

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)

LARGEST_DEGREE = 2**20
"""No degree of a plan is larger than this: garbage is refused at the edge."""


DEGREES = ("data", "tensor", "pipeline", "accumulation", "interleave")
"""Fields of a plan that count something."""


class Plan(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Degrees of data, tensor and pipeline parallelism, and what is sharded, offloaded, recomputed, accumulated.

    `accumulation` is how many micro-batches one step has per data-parallel replica; under pipeline parallelism
    they are what fills the pipeline. The global batch is kept: a micro-batch has batch / (data × accumulation)
    samples. `interleave` is how many chunks of layers a pipeline stage holds; `sequence_parallel` splits what
    tensor parallelism leaves whole along the sequence.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    offload: bool = False
    recompute: Recompute = "none"
    accumulation: int = 1
    interleave: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        degrees = [getattr(self, name) for name in DEGREES]
        if not 1 <= min(degrees) <= max(degrees) <= LARGEST_DEGREE:
            named = ", ".join(f"{name} {getattr(self, name)}" for name in DEGREES)
            raise BadValue(f"every degree of a plan is at least 1 (and at most {LARGEST_DEGREE}), got {named}")
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
        parts += [f"interleave {self.interleave}"] if self.interleave > 1 else []
        parts += ["SP"] if self.sequence_parallel else []
        parts += [f"ZeRO-{self.zero}"] if self.zero else []
        parts += ["offload"] if self.offload else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        parts += [f"accumulate {self.accumulation}"] if self.accumulation > 1 else []
        return " ".join(parts)


_WORD = re.compile(r"(?P<name>[a-z]+)[\s=:]*(?P<value>\d+|none|selective|full)?[\s,+]*")
_DEGREE_OF = {
    "dp": "data",
    "data": "data",
    "tp": "tensor",
    "tensor": "tensor",
    "pp": "pipeline",
    "pipeline": "pipeline",
    "zero": "zero",
    "accumulate": "accumulation",
    "accumulation": "accumulation",
    "ga": "accumulation",
    "interleave": "interleave",
    "vpp": "interleave",
}


def plan_from_text(text: str) -> Plan:
    """'DP8 TP2 PP4 ZeRO-1 recompute full accumulate 16', as plans are printed; 'dp8,tp2,zero=1,offload' will do."""
    return Plan(**fields_from_text(text))


def fields_from_text(text: str) -> dict[str, Any]:
    """The same, but only what is said."""
    given: dict[str, Any] = {}
    left = text.strip().lower().replace("zero-", "zero")
    while left:
        word = _WORD.match(left)
        if word is None:
            raise _not_a_plan(text, left)
        name, value = word["name"], word["value"]
        if name in _DEGREE_OF and value is not None and value.isdigit():
            field = _DEGREE_OF[name]
            meant: Any = int(value)
        elif name == "recompute" and value in (None, *RECOMPUTE):
            field, meant = "recompute", value or "full"
        elif name in ("sp", "offload") and value is None:
            field, meant = ("sequence_parallel" if name == "sp" else "offload"), True
        else:
            raise _not_a_plan(text, left)
        if field in given:
            raise BadInput(f"plan {text!r} says {field} twice")
        given[field] = meant
        left = left[word.end() :]
    if not given:
        raise _not_a_plan(text, "")
    Plan(**given)  # refuses what cannot be
    return given


def _not_a_plan(text: str, left: str) -> BadInput:
    where = f" at {left!r}" if left else ""
    return BadInput(
        f"{text!r} is not a plan{where}; write it as 'dp8 tp2 pp4 zero1 accumulate 16', with offload, sp, "
        "interleave 2 or recompute none|selective|full where wanted"
    )
