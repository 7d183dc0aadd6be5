"""Typed documents: structs declare keys, types, limits and defaults; msgspec checks them; errors name line and key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from refold.model.documents.parts import MAX_TEXT_CHARS, Part, shorten
from refold.model.documents.yaml_lines import LIMITS, Limits, load_yaml, read_text

T = TypeVar("T")

PartReader: TypeAlias = Callable[[Part], Any]


@dataclass(frozen=True, slots=True)
class ReadBy:
    """In `Annotated[T, ReadBy(function)]`: the value is read by a function of its part of the document."""

    read: PartReader


Duration = Annotated[float, ReadBy(Part.duration)]
"""Seconds, from text such as 1h30m or from a number."""

PositiveDuration = Annotated[float, ReadBy(Part.positive_duration)]


def read(path: Path, kind: type[T], limits: Limits = LIMITS) -> T:
    """Read a YAML or JSON file as a value of a type."""
    return parse(read_text(path, limits), kind, str(path), limits)


def parse(text: str, kind: type[T], name: str, limits: Limits = LIMITS) -> T:
    """Parse a YAML or JSON document as a value of a type; `name` is the name of the file in errors."""
    return convert(load_yaml(text, name, limits), kind)


def convert(part: Part, kind: type[T]) -> T:
    """Convert a part of a document to a type.

    Text is taken as written: `010` and `1e-4` are texts where text is expected. Numbers are finite. A key without a
    value has its default if its type is a struct, a mapping or a list. Errors expect what `Meta(description=…)` says,
    else what the type and its limits say. A struct may have HINTS: what to write instead of names known from elsewhere.
    """
    annotation: Any = kind
    value: T = _reader(annotation)(part)
    return value


@cache
def _reader(kind: Any) -> PartReader:
    """Return the function that converts a part to a type."""
    base, expected = _base(kind), describe(kind)
    custom = _metadata(kind, ReadBy)
    if custom is not None:
        return _checked(custom.read, kind, expected)
    match get_origin(base) or base:
        case union if union in (Union, UnionType):
            return _union_reader(get_args(base), expected)
        case struct if _is_struct(struct):
            return _struct_reader(struct, expected)
        case mapping if mapping in (dict, Mapping):
            return _checked(_mapping_reader(get_args(base), expected), kind, expected)
        case sequence if sequence in (list, tuple):
            return _checked(_sequence_reader(get_args(base), sequence is list, expected), kind, expected)
        case literal if literal is Literal:
            return _checked(lambda part: part.value if part.is_container else part.written, kind, expected)
        case text if text is str:
            meta = _metadata(kind, msgspec.Meta)
            maximum = MAX_TEXT_CHARS if meta is None or meta.max_length is None else meta.max_length
            return _checked(lambda part: part.text(expected, maximum, blank=True), kind, expected)
        case number if number in (int, float):
            return _checked(lambda part: part.finite(expected), kind, expected)
    return _checked(Part.to_plain, kind, expected)


def _checked(read_part: PartReader, kind: Any, expected: str) -> PartReader:
    """Return a reader that has msgspec check the value."""

    def read_checked(part: Part) -> Any:
        try:
            return msgspec.convert(read_part(part), kind)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ValueError):  # raised by the struct itself
                raise part.error(error.__cause__) from None
            raise part.unexpected(expected) from None

    return read_checked


def _struct_reader(struct: type[msgspec.Struct], expected: str) -> PartReader:
    hints = get_type_hints(struct, include_extras=True)
    fields = msgspec.structs.fields(struct)
    kinds = {field.encode_name: hints[field.name] for field in fields}
    required = {field.encode_name for field in fields if field.required}
    may_be_empty = {key for key, kind in kinds.items() if key not in required and _is_section(kind)}

    def read_values(part: Part) -> dict[str, Any]:
        parts = {} if part.value is None else part.fields(kinds, expected, getattr(struct, "HINTS", {}))
        if missing := [key for key in kinds if key in required and key not in parts]:
            raise part.error(f"{missing[0]} is missing, expected {describe(kinds[missing[0]])}")
        given = {key: inner for key, inner in parts.items() if inner.value is not None or key not in may_be_empty}
        return {key: _reader(kinds[key])(inner) for key, inner in given.items()}

    return _checked(read_values, struct, expected)


def _mapping_reader(kinds: tuple[Any, ...], expected: str) -> PartReader:
    key_kind, value_kind = kinds

    def read_entry(key: str, part: Part) -> tuple[Any, Any]:
        try:
            return msgspec.convert(key, key_kind), _reader(value_kind)(part)
        except msgspec.ValidationError:
            raise part.error(f"the key is {shorten(key)!r}, expected {describe(key_kind)}") from None

    return lambda part: dict(read_entry(key, inner) for key, inner in part.fields(expected=expected).items())


def _sequence_reader(kinds: tuple[Any, ...], is_list: bool, expected: str) -> PartReader:
    if is_list or kinds[-1] is Ellipsis:
        return lambda part: [_reader(kinds[0])(inner) for inner in part.entries(expected)]

    def read_tuple(part: Part) -> list[Any]:
        if len(part.entries(expected)) != len(kinds):
            raise part.unexpected(expected)
        return [_reader(kind)(inner) for kind, inner in zip(kinds, part.entries(), strict=True)]

    return read_tuple


def _union_reader(members: tuple[Any, ...], expected: str) -> PartReader:
    def read_member(part: Part) -> Any:
        chosen = next((member for member in members if _suits(part, member)), None)
        if chosen is None:
            raise part.unexpected(expected)
        return _reader(chosen)(part)

    return read_member


def _suits(part: Part, kind: Any) -> bool:
    """Whether a part has the form of a type, so that a member of a union can be chosen."""
    value, origin = part.value, get_origin(_base(kind)) or _base(kind)
    if origin in (dict, Mapping) or _is_struct(origin):
        return isinstance(value, dict)
    if origin in (list, tuple):
        return isinstance(value, list)
    if origin in (NoneType, bool):
        return isinstance(value, origin)
    if origin in (int, float) and _metadata(kind, ReadBy) is None:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is Literal:
        return not part.is_container and part.written in get_args(_base(kind))
    return value is not None and not part.is_container


def _base(kind: Any) -> Any:
    """Return the type without its annotations."""
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _metadata(kind: Any, wanted: type[T]) -> T | None:
    return next((extra for extra in getattr(kind, "__metadata__", ()) if isinstance(extra, wanted)), None)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_section(kind: Any) -> bool:
    """Whether the values of a type are structs, mappings or lists."""
    origin = get_origin(_base(kind)) or _base(kind)
    if origin in (Union, UnionType):
        return any(_is_section(member) for member in get_args(_base(kind)))
    return _is_struct(origin) or origin in (dict, Mapping, list, tuple)


# What errors expect.


@cache
def describe(kind: Any) -> str:
    """Describe what a type accepts: 'a whole number ≥ 0'."""
    meta, base = _metadata(kind, msgspec.Meta), _base(kind)
    if meta is not None and meta.description:
        return meta.description
    origin = get_origin(base) or base
    if origin in (Union, UnionType):
        return " or ".join(describe(member) for member in get_args(base) if member is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(base)))}"
    if origin is tuple and get_args(base)[-1] is not Ellipsis:
        return f"a list of {len(get_args(base))}"
    name = "keys and their values" if _is_struct(origin) else _NAMES.get(origin, "a value")
    return name if meta is None else name + _describe_limits(meta)


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "keys and their values",
    Mapping: "keys and their values",
}


def _describe_limits(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:,} to {meta.le:,}"
    relations = ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
    limits = [f" {relation} {limit:,}" for relation, limit in relations if limit is not None]
    if meta.max_length is not None:
        limits.append(f" of length ≤ {meta.max_length:,}")
    return " and".join(limits)
