"""Read small text files as plain values, and convert plain values to structs, with errors in terms of the file."""

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

MAX_DESCRIPTION_BYTES = {".json": 2**22, ".yaml": 2**16}
"""The size limit of a description, by suffix, so that a weights file passed by mistake is rejected."""

MAX_NUMBER = 10**15
"""The largest absolute value of an integer in a description."""

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "fields and their values",
}
_SHORT_REPR = Repr()
_SHORT_REPR.maxlevel = 2
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 60


def format_value(value: object) -> str:
    """Format a value for an error message, shortened if necessary."""
    try:
        return _SHORT_REPR.repr(value)
    except ValueError:
        return "a number too long to print"


def read_description(path: Path) -> str:
    """Read the text of a description file, up to the size limit of its suffix (default: that of YAML)."""
    limit = MAX_DESCRIPTION_BYTES.get(path.suffix.lower(), MAX_DESCRIPTION_BYTES[".yaml"])
    try:
        if not path.is_file():
            raise BadFile(path, "is not a file")
        if path.stat().st_size > limit:
            raise BadFile(path, f"has {path.stat().st_size:,} bytes, expected a description of at most {limit:,}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(path, "is not text (UTF-8)") from None


def parse_yaml(path: object, text: str) -> object:
    """Parse YAML into plain values.

    The Python loader is used although the C loader is faster: deeply nested brackets crash the process in C.
    """
    return _parse(path, "YAML", lambda: yaml.load(text, Loader=yaml.SafeLoader))


def parse_json(path: object, text: str) -> object:
    """Parse JSON into plain values."""
    return _parse(path, "JSON", lambda: json.loads(text))


def _parse(path: object, language: str, parse: Callable[[], object]) -> object:
    try:
        return parse()
    except RecursionError:
        raise BadFile(path, "is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        problem, _, _ = str(error).partition(";")
        raise BadFile(path, f"is not {language}: {' '.join(problem.split())}") from None


def as_struct(path: object, document: object, struct: type[S]) -> S:
    """Convert plain values to a struct, or raise BadFile with the field, its value and what is expected."""
    if not isinstance(document, dict):
        raise BadFile(path, f"is {format_value(document)}, expected fields and their values")
    fields = [field.name for field in msgspec.structs.fields(struct)]
    for field, value in document.items():
        if field not in fields:
            raise BadFile(path, str(UnknownName("field", str(field), fields)))
        if isinstance(value, int | float) and not _is_in_range(value):
            raise BadFile(path, f"{field} is {format_value(value)}, expected a number up to {MAX_NUMBER:.0e}")
    try:
        return msgspec.convert(document, struct)
    except msgspec.ValidationError as error:
        raise BadFile(path, _problem_text(error, document, struct)) from None


def _is_in_range(value: float) -> bool:
    return abs(value) <= MAX_NUMBER if isinstance(value, int) else isfinite(value)


def _problem_text(error: msgspec.ValidationError, document: object, struct: type[msgspec.Struct]) -> str:
    """Reword an msgspec error such as "Expected `int`, got `str` - at `$.hidden`" in terms of the document."""
    problem, _, field = str(error).replace("`", "").partition(" - at ")
    field = field.removeprefix("$").removeprefix(".")
    if isinstance(error.__cause__, BadValue):
        return f"{field}: {problem}" if field else problem
    if missing := re.fullmatch(r"Object missing required field (.+)", problem):
        return f"{field + '.' if field else ''}{missing[1]} is missing"
    if wrong := re.fullmatch(r"Expected (\w+), got \w+", problem):
        return f"{field} is {format_value(_value_at(field, document))}, expected {_EXPECTED.get(wrong[1], wrong[1])}"
    if choices := get_args(get_type_hints(struct).get(field)):
        return str(UnknownName(field, str(_value_at(field, document)), choices))
    return f"{field}: {problem}"


def _value_at(path: str, document: Any) -> object:
    """Return the value at a path such as 'gpus[3].link.kind'."""
    for field, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        document = document[field] if field else document[int(index)]
    return document
