"""Validation errors of msgspec, reworded as errors about a field of the request."""

from __future__ import annotations

import re

import msgspec

from refold.errors import BadField

_LOCATED = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_NAMED = re.compile(r"Object (?P<is>contains unknown|missing required) field `(?P<field>[^`]*)`", re.DOTALL)


def field_error(error: msgspec.ValidationError) -> BadField:
    """Convert a validation error to a `BadField` whose message starts with the field."""
    problem, field = str(error), ""
    if located := _LOCATED.fullmatch(problem):
        problem, field = located["problem"], located["field"]
    if named := _NAMED.fullmatch(problem):
        field = f"{field}.{named['field']}".lstrip(".")
        if named["is"].startswith("missing"):
            return BadField(f"{field} is missing", field)
        return BadField(f"unknown field {field!r}", field)
    if not field:
        return BadField(problem.replace("`", ""))
    return BadField(f"{field}: {problem[:1].lower()}{problem[1:].replace('`', '')}", field)
