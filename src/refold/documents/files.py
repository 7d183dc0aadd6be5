"""Text files as plain values, and plain values as structs. What is wrong with one is said in the file's own words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from reprlib import Repr
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from refold.errors import BadFile, BadValue, UnknownName

S = TypeVar("S", bound=msgspec.Struct)

MOST_BYTES = {".json": 2**22, ".yaml": 2**16}
"""Descriptions are never longer than this; files of weights, named by mistake, are."""

LARGEST = 10**15
"""No number of a description is larger than this."""

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "fields and their values",
}
_SHORT = Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: object) -> str:
    """A value as an error shows it: short, whatever it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:
        return "a number too long to print"


def text_of(path: Path) -> str:
    """What a file says."""
    most = MOST_BYTES.get(path.suffix.lower(), MOST_BYTES[".yaml"])
    try:
        if not path.is_file():
            raise BadFile(path, "is not a file")
        if path.stat().st_size > most:
            raise BadFile(path, f"has {path.stat().st_size:,} bytes, expected a description of at most {most:,}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(path, "is not text (UTF-8)") from None


def from_yaml(path: object, text: str) -> object:
    """YAML as plain values. The loader in C would be quicker, but brackets nested deeply enough end the process."""
    return _parsed(path, "YAML", lambda: yaml.load(text, Loader=yaml.SafeLoader))


def from_json(path: object, text: str) -> object:
    """JSON as plain values."""
    return _parsed(path, "JSON", lambda: json.loads(text))


def _parsed(path: object, language: str, parse: Callable[[], object]) -> object:
    try:
        return parse()
    except RecursionError:
        raise BadFile(path, "is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        problem, _, _ = str(error).partition(";")
        raise BadFile(path, f"is not {language}: {' '.join(problem.split())}") from None


def as_struct(path: object, document: object, struct: type[S]) -> S:
    """Plain values as a struct; or which field is wrong, what is there and what would do."""
    if not isinstance(document, dict):
        raise BadFile(path, f"is {shown(document)}, expected fields and their values")
    fields = [field.name for field in msgspec.structs.fields(struct)]
    for field, value in document.items():
        if field not in fields:
            raise BadFile(path, str(UnknownName("field", str(field), fields)))
        if isinstance(value, int | float) and not _within_reason(value):
            raise BadFile(path, f"{field} is {shown(value)}, expected a number up to {LARGEST:.0e}")
    try:
        return msgspec.convert(document, struct)
    except msgspec.ValidationError as error:
        raise BadFile(path, _problem(error, document, struct)) from None


def _within_reason(value: float) -> bool:
    return abs(value) <= LARGEST if isinstance(value, int) else isfinite(value)


def _problem(error: msgspec.ValidationError, document: object, struct: type[msgspec.Struct]) -> str:
    """'Expected `int`, got `str` - at `$.hidden`' as "hidden is '4k', expected a whole number"."""
    problem, _, place = str(error).replace("`", "").partition(" - at ")
    place = place.removeprefix("$").removeprefix(".")
    if isinstance(error.__cause__, BadValue):
        return f"{place}: {problem}" if place else problem
    if missing := re.fullmatch(r"Object missing required field (.+)", problem):
        return f"{place + '.' if place else ''}{missing[1]} is absent"
    if wrong := re.fullmatch(r"Expected (\w+), got \w+", problem):
        return f"{place} is {shown(_value_at(place, document))}, expected {_EXPECTED.get(wrong[1], wrong[1])}"
    if choices := get_args(get_type_hints(struct).get(place)):
        return str(UnknownName(place, str(_value_at(place, document)), choices))
    return f"{place}: {problem}"


def _value_at(place: str, document: Any) -> object:
    """What stands at a place such as 'gpus[3].link.kind'."""
    for field, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        document = document[field] if field else document[int(index)]
    return document
