"""The `plan` field of a job file: auto, off, a plan as text, or its degrees as a mapping."""

from __future__ import annotations

from typing import Any, TypeAlias

from refold.errors import BadInput, BadValue
from refold.model import MAX_DEGREE, RECOMPUTE, Plan, parse_plan_fields
from refold.model.documents import Part

EXPECTED_PLAN = "auto, off, a plan such as 'dp8 tp2 zero1', or its degrees: {dp: 8, tp: 2, zero: 1}"

_DEGREES = {
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
    "ga": "accumulation",
    "accumulate": "accumulation",
    "accumulation": "accumulation",
    "vpp": "interleave",
    "interleave": "interleave",
    "replicate": "replicate",
}
_SWITCHES = {"offload": "offload", "sp": "sequence_parallel", "sequence_parallel": "sequence_parallel"}
_RECOMPUTE = ("gc", "recompute")
_KEYS = (*_DEGREES, *_SWITCHES, *_RECOMPUTE, "zero", "fixed")


PlanChoice: TypeAlias = str | dict[str, Any]
"""`auto`, `off`, or the pinned fields of a plan."""


def read_plan_choice(part: Part) -> PlanChoice:
    """Read `auto`, `off`, or the pinned fields of a plan."""
    if isinstance(part.value, dict):
        return _read_mapping(part)
    if part.value is False or part.written == "off":  # YAML reads a bare `off` as false
        return "off"
    if part.value is True or part.written == "auto":
        return "auto"
    try:
        return parse_plan_fields(part.text(EXPECTED_PLAN, 256))
    except (BadValue, BadInput) as problem:
        raise part.error(problem) if isinstance(part.value, str) else part.unexpected(EXPECTED_PLAN) from None


def _read_mapping(part: Part) -> dict[str, Any]:
    parts = part.fields(_KEYS)
    if "fixed" in parts:
        return _read_fixed(parts["fixed"])
    return _read_degrees(part, parts)


def _read_fixed(part: Part) -> dict[str, Any]:
    return _read_degrees(part, part.fields([key for key in _KEYS if key != "fixed"], EXPECTED_PLAN))


def _read_degrees(part: Part, parts: dict[str, Part]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in parts.items():
        name, setting = _read_field(key, value)
        if name in fields:
            raise value.error(f"{name} is given twice, expected once")
        fields[name] = setting
    if not fields:
        raise part.unexpected(EXPECTED_PLAN)
    return fields


def _read_field(key: str, part: Part) -> tuple[str, Any]:
    if key in _DEGREES:
        return _DEGREES[key], part.integer("a whole number ≥ 1", 1, MAX_DEGREE)
    if key in _SWITCHES:
        return _SWITCHES[key], part.boolean()
    if key == "zero":
        return "zero", part.integer("a ZeRO stage from 0 to 3", 0, 3)
    if isinstance(part.value, bool):
        return "recompute", "full" if part.value else "none"
    return "recompute", part.one_of(RECOMPUTE)


def make_plan(part: Part, fields: dict[str, Any], gpus: int) -> Plan:
    """Return the pinned plan, checked against the requested number of GPUs."""
    plan = fill_data_degree(fields, gpus)
    if plan.gpus != gpus:
        raise part.error(f"{plan} needs {plan.gpus} GPUs, expected a plan for the requested {gpus}")
    return plan


def fill_data_degree(fields: dict[str, Any], gpus: int) -> Plan:
    """Return the plan with these fields; a data-parallel degree that is not given is derived from the GPUs."""
    plan = Plan(**fields)
    if "data" in fields or not gpus or gpus % plan.gpus:
        return plan
    return Plan(**fields, data=gpus // plan.gpus)
