"""The plan of a job, as files say it: auto, off, as plans are printed, or by its degrees."""

from __future__ import annotations

from typing import Any

from refold.documents import Part
from refold.errors import BadInput, BadValue
from refold.model import LARGEST_DEGREE, RECOMPUTE, Plan, fields_from_text

EXPECTED = "auto, off, a plan such as 'dp8 tp2 zero1', or its degrees: {dp: 8, tp: 2, zero: 1}"

_DEGREES = {
    "dp": "data",
    "data": "data",
    "tp": "tensor",
    "tensor": "tensor",
    "pp": "pipeline",
    "pipeline": "pipeline",
    "ga": "accumulation",
    "accumulate": "accumulation",
    "accumulation": "accumulation",
    "vpp": "interleave",
    "interleave": "interleave",
}
_SWITCHES = {"offload": "offload", "sp": "sequence_parallel", "sequence_parallel": "sequence_parallel"}
_RECOMPUTE = ("gc", "recompute")
_KEYS = (*_DEGREES, *_SWITCHES, *_RECOMPUTE, "zero", "fixed")


def plan_wish(part: Part) -> str | dict[str, Any]:
    """`auto`, `off`, or those fields of a plan that are pinned."""
    if isinstance(part.value, dict):
        return _pinned(part)
    if part.value is False or part.written == "off":  # a bare `off` is YAML for false
        return "off"
    if part.value is True or part.written == "auto":
        return "auto"
    try:
        return fields_from_text(part.text(EXPECTED, 256))
    except (BadValue, BadInput) as problem:
        raise part.refused(problem) if isinstance(part.value, str) else part.wrong(EXPECTED) from None


def _pinned(part: Part) -> dict[str, Any]:
    said = part.fields(_KEYS)
    if "fixed" in said:
        return _pinned_in(said["fixed"])
    return _degrees(part, said)


def _pinned_in(part: Part) -> dict[str, Any]:
    return _degrees(part, part.fields([key for key in _KEYS if key != "fixed"], EXPECTED))


def _degrees(part: Part, said: dict[str, Part]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in said.items():
        name, meant = _field(key, value)
        if name in given:
            raise value.refused(f"says {name} twice")
        given[name] = meant
    if not given:
        raise part.wrong(EXPECTED)
    return given


def _field(key: str, part: Part) -> tuple[str, Any]:
    if key in _DEGREES:
        return _DEGREES[key], part.whole("a whole number ≥ 1", 1, LARGEST_DEGREE)
    if key in _SWITCHES:
        return _SWITCHES[key], part.truth()
    if key == "zero":
        return "zero", part.whole("a stage of ZeRO, 0 to 3", 0, 3)
    if isinstance(part.value, bool):
        return "recompute", "full" if part.value else "none"
    return "recompute", part.one_of(RECOMPUTE)


def plan_on(part: Part, given: dict[str, Any], gpus: int) -> Plan:
    """The plan that a part pins, if it is one for so many GPUs."""
    plan = plan_for(given, gpus)
    if plan.gpus != gpus:
        raise part.refused(f"{plan} runs on {plan.gpus} GPUs, expected a plan for the {gpus} that are asked for")
    return plan


def plan_for(given: dict[str, Any], gpus: int) -> Plan:
    """The plan with these fields; how often data are split, if that is not said, is what is left of the GPUs."""
    plan = Plan(**given)
    if "data" in given or not gpus or gpus % plan.gpus:
        return plan
    return Plan(**given, data=gpus // plan.gpus)
