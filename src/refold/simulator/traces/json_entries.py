"""Read the entries of a JSON list one by one, with their line numbers: a bad entry does not spoil the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from refold.errors import BadFile, BadRow, BadValue
from refold.simulator.traces.text_source import BadCell, TextSource

D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")


def decode_document(source: TextSource, kind: type[D], expected: str) -> D:
    """Decode the whole file; `expected` says what it should be, such as 'a JSON list of jobs'."""
    try:
        return msgspec.json.decode(source.text.encode(), type=kind)
    except msgspec.DecodeError as error:
        raise BadFile(source.path, f"is not {expected}: {error}") from None
    except RecursionError:
        raise BadFile(source.path, "is nested too deeply") from None


def parse_entries(
    source: TextSource, entries: Sequence[msgspec.Raw], kind: type[E], parse: Callable[[E], T | None]
) -> tuple[list[T], list[BadRow]]:
    """Decode and parse the entries of a file. Return the results, without None, and the errors of bad entries."""
    decoder = msgspec.json.Decoder(kind)
    parsed: list[T] = []
    bad_entries: list[BadRow] = []
    for line, entry in _with_lines(source, entries):
        try:
            result = parse(decoder.decode(entry))
        except msgspec.ValidationError as error:
            bad_entries.append(_bad_entry(source, line, entry, error))
        except BadCell as cell:
            bad_entries.append(BadRow(source.path, line, cell.column, cell.found, cell.expected))
        except BadValue as error:
            bad_entries.append(BadRow(source.path, line, "entry", str(error), "a valid job"))
        else:
            parsed += [] if result is None else [result]
    return parsed, bad_entries


def _with_lines(source: TextSource, entries: Sequence[msgspec.Raw]) -> Iterator[tuple[int, bytes]]:
    content = source.text.encode()
    line, start, end = 1, 0, 0
    for raw in entries:
        entry = bytes(raw)
        before, start = start, content.index(entry, end)
        line += content.count(b"\n", before, start)
        end = start + len(entry)
        yield line, entry


def _bad_entry(source: TextSource, line: int, entry: bytes, error: msgspec.ValidationError) -> BadRow:
    """Parse key and expected type from 'Expected `str`, got `int` - at `$.time.start`'."""
    problem, _, json_path = str(error).partition(" - at ")
    keys = re.findall(r"[^.`$]+", json_path)
    expected = re.sub("^Expected |, got .*|`", "", problem)
    missing = re.fullmatch("Object missing required field (.*)", expected)
    if missing:
        return BadRow(source.path, line, ".".join([*keys, missing[1]]), None, "a value")
    return BadRow(source.path, line, ".".join(keys) or "entry", _value_at(entry, keys), expected)


def _value_at(entry: bytes, keys: Sequence[str]) -> object:
    """Return a value by its keys, or the text of the innermost object found, cut to 40 characters."""
    value: Any = msgspec.json.decode(entry)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            break
        value = value[key]
    if isinstance(value, str | int | float | None):
        return value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else text[:40] + "…"
