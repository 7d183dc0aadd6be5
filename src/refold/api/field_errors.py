"""What is wrong with a field of something that was asked, in words that begin with the field."""

from __future__ import annotations

import re

import msgspec

from refold.errors import BadField

_PLACED = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_NAMED = re.compile(r"Object (?P<is>contains unknown|missing required) field `(?P<field>[^`]*)`", re.DOTALL)


def bad_field(error: msgspec.ValidationError) -> BadField:
    """The same, as we say it."""
    problem, field = str(error), ""
    if placed := _PLACED.fullmatch(problem):
        problem, field = placed["problem"], placed["field"]
    if named := _NAMED.fullmatch(problem):
        field = f"{field}.{named['field']}".lstrip(".")
        told = "is absent" if named["is"].startswith("missing") else "is no field that there is"
        return BadField(f"{field} {told}", field)
    if not field:
        return BadField(problem.replace("`", ""))
    return BadField(f"{field}: {problem[:1].lower()}{problem[1:].replace('`', '')}", field)
