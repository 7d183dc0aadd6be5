"""Parse the ranges of settings that `refold tune` varies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.policies import SettingRange

MIN_LOG_RATIO = 10
"""A range of positive numbers is logarithmic if its ends differ by at least this factor."""


def parse_ranges(texts: Sequence[str], policy: str, known: Mapping[str, Any]) -> dict[str, SettingRange]:
    """Parse ranges such as 'gpu_price=1:16' and values such as 'order=arrival,shortest'."""
    from refold.errors import BadInput, UnknownName

    found: dict[str, SettingRange] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise BadInput(f"--range {text}: expected KEY=LOW:HIGH or KEY=A,B,…")
        if key not in known:
            raise UnknownName(f"{policy} setting", key, known)
        found[key] = _parse_range(text, values)
    return found


def _parse_range(text: str, values: str) -> SettingRange:
    from refold.errors import BadInput, BadValue
    from refold.policies import Choices, Range

    low_text, colon, high_text = values.partition(":")
    if not colon:
        return Choices(tuple(map(_parse_value, values.split(","))))
    low, high = _parse_value(low_text), _parse_value(high_text)
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise BadInput(f"--range {text}: expected two numbers or durations, such as 1:16 or 1h:2d")
    try:
        return Range(low, high, log=low > 0 and high >= MIN_LOG_RATIO * low)
    except BadValue as error:
        raise BadInput(f"--range {text}: {error}") from None


def _parse_value(text: str) -> Any:
    """Return a number, a duration in seconds, true or false, or else the text."""
    from refold.errors import BadValue
    from refold.model import parse_duration

    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except BadValue:
        return text
