"""Validation errors of msgspec, reworded as errors about a field of the request."""

from __future__ import annotations

import re

import msgspec

from refold.errors import BadField, UnknownName

MAX_QUOTED_CHARS = 64
"""Maximum length of a name in a request that an error message quotes."""

_LOCATED = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_NAMED = re.compile(r"Object (?P<is>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)


def field_error(error: msgspec.ValidationError, kind: object = None) -> BadField:
    """Convert a validation error to a `BadField` whose message names the field; `kind` is the type of the request."""
    problem, field = str(error), ""
    if located := _LOCATED.fullmatch(problem):
        problem, field = located["problem"], located["field"]
    if named := _NAMED.fullmatch(problem):
        field = f"{field}.{named['field'][:MAX_QUOTED_CHARS]}".lstrip(".")
        if named["is"].startswith("missing"):
            return BadField(f"{field} is missing", field)
        known = kind.__struct_fields__ if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
        near = UnknownName("field", field, known).nearest
        return BadField(f"unknown field {field!r}{f'; did you mean {near!r}?' if near else ''}", field)
    if not field:
        return BadField(problem.replace("`", ""))
    return BadField(f"{field}: {problem[:1].lower()}{problem[1:].replace('`', '')}", field)
