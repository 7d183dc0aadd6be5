"""The parallel plan of a job. A plan affects speed and resource use, and never the result of the training."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import msgspec

from refold.errors import BadInput, BadValue

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)

MAX_DEGREE = 2**20
"""The upper bound of every degree of a plan."""

DEGREES = ("data", "tensor", "pipeline", "context", "expert", "accumulation", "interleave", "replicate")
"""The fields of a plan that are degrees: integers of at least 1."""


class Plan(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True, cache_hash=True):
    """Degrees of data, tensor, pipeline and context parallelism, ZeRO stage, offloading, recomputation, accumulation.

    `accumulation` is the number of micro-batches per step and data-parallel replica; with pipeline parallelism they
    fill the pipeline. The global batch size does not depend on the plan: a micro-batch has batch / (data ×
    accumulation) samples. `interleave` is the number of chunks of layers per pipeline stage. `sequence_parallel`
    splits along the sequence the activations that tensor parallelism does not split. `context` is the number of GPUs
    among which every sequence is divided; they hold the same weights. `expert` is the number of GPUs among which the
    experts of a layer are divided; these are data- and context-parallel GPUs, so that it does not add to their number.
    `replicate` is the number of groups of data- and context-parallel GPUs each of which has all shards of ZeRO (hybrid
    sharding, HSDP); 1: all of them are one group.
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
    context: int = 1
    expert: int = 1
    replicate: int = 1

    def __post_init__(self) -> None:
        wrong = [name for name in DEGREES if not 1 <= getattr(self, name) <= MAX_DEGREE]
        if wrong:
            named = ", ".join(f"{name} {getattr(self, name)}" for name in wrong)
            raise BadValue(f"plan has {named}, expected every degree to be at least 1 and at most {MAX_DEGREE}")
        if not 0 <= self.zero <= 3:
            raise BadValue(f"zero is {self.zero}, expected ZeRO stages 0 to 3")

    @property
    def gpus(self) -> int:
        """The number of GPUs that the plan uses."""
        return self.data * self.tensor * self.pipeline * self.context

    def __str__(self) -> str:
        parts = [f"DP{self.data}"]
        parts += [f"TP{self.tensor}"] if self.tensor > 1 else []
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"CP{self.context}"] if self.context > 1 else []
        parts += [f"EP{self.expert}"] if self.expert > 1 else []
        parts += [f"interleave {self.interleave}"] if self.interleave > 1 else []
        parts += ["SP"] if self.sequence_parallel else []
        parts += [f"ZeRO-{self.zero}"] if self.zero else []
        parts += [f"replicate {self.replicate}"] if self.replicate > 1 else []
        parts += ["offload"] if self.offload else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        parts += [f"accumulate {self.accumulation}"] if self.accumulation > 1 else []
        return " ".join(parts)


_TOKEN = re.compile(r"(?P<name>[a-z]+)[\s=:]*(?P<value>\d{1,18}|none|selective|full)?[\s,+]*")
_FIELD_BY_NAME = {
    "dp": "data",
    "data": "data",
    "tp": "tensor",
    "tensor": "tensor",
    "pp": "pipeline",
    "pipeline": "pipeline",
    "cp": "context",
    "context": "context",
    "ep": "expert",
    "expert": "expert",
    "zero": "zero",
    "accumulate": "accumulation",
    "accumulation": "accumulation",
    "ga": "accumulation",
    "replicate": "replicate",
    "interleave": "interleave",
    "vpp": "interleave",
}


def parse_plan(text: str) -> Plan:
    """Parse a plan such as 'DP8 TP2 PP4 ZeRO-1 recompute full accumulate 16' or 'dp8,tp2,zero=1,offload'."""
    return Plan(**parse_plan_fields(text))


def parse_plan_fields(text: str) -> dict[str, Any]:
    """Parse a plan, and return only the fields that the text specifies."""
    fields: dict[str, Any] = {}
    rest = text.strip().lower().replace("zero-", "zero")
    while rest:
        match = _TOKEN.match(rest)
        if match is None:
            raise _not_a_plan(text, rest)
        name, value = match["name"], match["value"]
        if name in _FIELD_BY_NAME and value is not None and value.isdigit():
            field = _FIELD_BY_NAME[name]
            parsed: Any = int(value)
        elif name == "recompute" and value in (None, *RECOMPUTE):
            field, parsed = "recompute", value or "full"
        elif name in ("sp", "offload") and value is None:
            field, parsed = ("sequence_parallel" if name == "sp" else "offload"), True
        else:
            raise _not_a_plan(text, rest)
        if field in fields:
            raise BadInput(f"plan {text!r} sets {field} twice")
        fields[field] = parsed
        rest = rest[match.end() :]
    if not fields:
        raise _not_a_plan(text, "")
    Plan(**fields)  # validates the values
    return fields


def _not_a_plan(text: str, rest: str) -> BadInput:
    position = f" at {rest!r}" if rest else ""
    return BadInput(
        f"{text!r} is not a plan{position}; write it as 'dp8 tp2 pp4 zero1 accumulate 16', with offload, sp, cp2, ep8, "
        "replicate 2, interleave 2 or recompute none|selective|full as options"
    )
