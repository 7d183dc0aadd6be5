"""Names of output files with fields, as in Slurm: 'logs/%x-%j.out'."""

from __future__ import annotations

import re
from collections.abc import Mapping

from refold.errors import BadValue

OUTPUT_FIELDS: Mapping[str, str] = {
    "j": "number of the job",
    "A": "number of the array",
    "a": "task number in the array",
    "x": "job name",
    "u": "user",
    "t": "index of the instance",
}
"""What the fields of a pattern stand for; `%%` is a percent sign, and `%4a` pads with zeros."""

_FIELD = re.compile(r"%(\d?)(.?)", re.DOTALL)


def check_output_pattern(pattern: str) -> None:
    """Raise BadValue if a pattern has an unknown field."""
    expand_output_pattern(pattern, dict.fromkeys(OUTPUT_FIELDS, ""))


def expand_output_pattern(pattern: str, values: Mapping[str, str]) -> str:
    """Replace the fields of a pattern by their values."""

    def value_of(match: re.Match[str]) -> str:
        width, field = match.groups()
        if field == "%" and not width:
            return "%"
        if field not in values:
            known = ", ".join(f"%{name} ({meaning})" for name, meaning in OUTPUT_FIELDS.items())
            raise BadValue(f"{pattern[:64]!r} has the unknown field {match[0]!r}, expected {known} or %%")
        return values[field].zfill(int(width or 0))

    return _FIELD.sub(value_of, pattern)
