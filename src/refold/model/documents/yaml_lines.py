"""A YAML parser that returns a tree of `Part`s with line numbers.

The text is untrusted: its size, its depth and its number of parts are limited, counting an alias as a full copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from refold.errors import BadFile, BadLine
from refold.model.documents.parts import Part, Value, shorten

MAX_DIGITS = 100
"""The maximum number of digits of an integer; Python itself rejects more than 4,300."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of a document that is read."""

    max_bytes: int = 2**20
    max_depth: int = 32
    max_parts: int = 20_000


LIMITS = Limits()

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_NULL_TEXTS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*", re.ASCII)
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_SURROGATES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")


def read_text(path: Path, limits: Limits = LIMITS) -> str:
    """Read a text file."""
    try:
        if not path.is_file():
            raise BadFile(path, "is a folder, expected a file" if path.is_dir() else "no such file")
        if path.stat().st_size > limits.max_bytes:
            raise BadFile(path, f"has {path.stat().st_size:,} bytes, expected at most {limits.max_bytes:,}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError:  # not UTF-8, or a NUL in the path
        raise BadFile(path, "is not text (UTF-8)") from None


def load_yaml(text: str, where: str, limits: Limits = LIMITS) -> Part:
    """Parse a text with a single document; `where` is the file name for errors. Empty text has the value None."""
    documents = load_yaml_documents(text, where, limits)
    if len(documents) > 1:
        raise BadLine(where, documents[1].line, "a second document begins, expected one")
    return documents[0] if documents else Part(where, 1, None)


def load_yaml_documents(text: str, where: str, limits: Limits = LIMITS) -> list[Part]:
    """Parse a text with any number of documents, separated by '---'. JSON is YAML but for pairs of `\\u` escapes."""
    if len(text) > limits.max_bytes:
        raise BadFile(where, f"has {len(text):,} characters, expected at most {limits.max_bytes:,}")
    if text.lstrip().startswith(("{", "[")):
        text = _SURROGATES.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)
    language = "JSON" if where.endswith(".json") else "YAML"
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    tree = _Tree(events, where, limits, len(_LINE_BREAK.findall(text)) + 1)
    try:
        return list(tree.documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else tree.line
        raise BadLine(where, line, f"is not {language}: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadLine(where, tree.line, f"is not {language}: {shorten(' '.join(str(error).split()))}") from None


class _Tree:
    """Builds the documents from parser events. The depth is limited, so recursion cannot exhaust the stack."""

    def __init__(self, events: Iterator[Any], where: str, limits: Limits, last_line: int) -> None:
        self.line = 1
        self._events, self._where, self._limits, self._last_line = events, where, limits, last_line
        self._anchors: dict[str, Part | None] = {}
        self._part_count = 0

    def documents(self) -> Iterator[Part]:
        """Yield the documents."""
        for event in iter(self._next, None):
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._part(self._next(), None, "", 0)

    def _next(self) -> Any:
        """Return the next event, None at the end, and note its line."""
        event = next(self._events, None)
        if event is not None and event.start_mark is not None:  # an empty document may begin after the last line
            self.line = min(event.start_mark.line + 1, self._last_line)
        return event

    def _error(self, problem: str) -> BadLine:
        return BadLine(self._where, self.line, problem)

    def _part(self, event: Any, parent: Part | None, key: str | int, depth: int, line: int = 0) -> Part:
        """Return the part that begins with an event. `line`: that of its key, if it has one."""
        line = line or self.line
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), parent, key, depth, line)
        if isinstance(event, yaml.ScalarEvent):
            written = self._checked_unicode(event.value)
            value = self._scalar(event, written)
        else:
            self._check_collection(event, depth + 1)
            written, value = "", {} if isinstance(event, yaml.MappingStartEvent) else []
        self._count_parts(1)
        part = Part(self._where, line, value, written, parent, key)
        if event.anchor:
            self._anchors[event.anchor] = None  # until it is complete: it must not contain itself
        self._add_inner(part, depth + 1)
        if event.anchor:
            self._anchors[event.anchor] = part
        return part

    def _add_inner(self, part: Part, depth: int) -> None:
        """Add what is below a list or a mapping; `depth`: number of levels down to it."""
        if isinstance(part.value, list):
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                part.value.append(self._part(event, part, len(part.value), depth))
        elif isinstance(part.value, dict):
            self._add_entries(part, part.value, depth)

    def _add_entries(self, part: Part, inner: dict[str, Part], depth: int) -> None:
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error("a key is a list, a mapping or an alias, expected text")
            key, line = self._checked_unicode(event.value), self.line
            if key in inner:
                raise self._error(f"duplicate key {shorten(key)!r}")
            inner[key] = self._part(self._next(), part, key, depth, line)
        if _MERGE in inner:
            _merge(part, inner.pop(_MERGE))

    def _scalar(self, event: Any, written: str) -> Value:
        tag = str(event.tag or "!").removeprefix(_TAG)
        if tag not in ("!", "str", "int", "float", "bool", "null"):
            raise self._error(f"the tag {shorten(tag)!r} is not supported")
        if tag == "str" or (tag == "!" and not event.implicit[0]):
            return written
        if _INTEGER.fullmatch(written) and len(written) > MAX_DIGITS:
            raise self._error(f"a number has {len(written):,} digits, expected at most {MAX_DIGITS}")
        return _resolve_scalar(written)

    def _check_collection(self, event: Any, depth: int) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            raise self._error(f"the tag {shorten(event.tag)!r} is not supported")
        self._check_depth(depth)

    def _alias(self, name: str, parent: Part | None, key: str | int, depth: int, line: int) -> Part:
        known = self._anchors.get(name)
        if known is None:
            problem = "contains itself" if name in self._anchors else "has no anchor before it"
            raise self._error(f"the alias {shorten(name)!r} {problem}")
        size, levels = _size_and_depth(known)
        self._count_parts(size)
        self._check_depth(depth + levels)
        return _copy(known, parent, key, line if isinstance(key, str) and parent is not None else known.line)

    def _count_parts(self, more: int) -> None:
        self._part_count += more
        if self._part_count > self._limits.max_parts:
            raise self._error(f"has more than {self._limits.max_parts:,} parts, counting each alias as a copy")

    def _check_depth(self, depth: int) -> None:
        if depth > self._limits.max_depth:
            raise self._error(f"is nested too deeply, expected at most {self._limits.max_depth} levels")

    def _checked_unicode(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._error("has an unpaired surrogate, which is not a character") from None
        return text


def _resolve_scalar(written: str) -> Value:
    """Return the value of an unquoted scalar. Times such as 1:30:00 and dates remain text."""
    if written in _NULL_TEXTS:
        return None
    if written in (written.lower(), written.upper(), written.capitalize()) and written.lower() in _BOOLEANS:
        return _BOOLEANS[written.lower()]
    if _INTEGER.fullmatch(written):
        return int(written.replace("_", ""))
    if _HEXADECIMAL.fullmatch(written):
        return int(written, 16)
    if _NUMBER.fullmatch(written):
        return float(written.replace("_", ""))
    if not_finite := _NOT_FINITE.fullmatch(written):
        return float(not_finite[1] + not_finite[2])
    return written


def _size_and_depth(part: Part) -> tuple[int, int]:
    """Return the number of parts, and the number of nested levels."""
    if not part.is_container:
        return 1, 0
    inner = [
        _size_and_depth(one) for one in (part.fields().values() if isinstance(part.value, dict) else part.entries())
    ]
    return 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)


def _copy(part: Part, parent: Part | None, key: str | int, line: int) -> Part:
    """Return a copy for another place. It has its own path; what is below it has the lines of the original."""
    match part.value:
        case dict():
            copy = replace(part, parent=parent, key=key, line=line, value={})
            copy.fields().update((name, _copy(inner, copy, name, inner.line)) for name, inner in part.value.items())
        case list():
            copy = replace(part, parent=parent, key=key, line=line, value=[])
            copy.entries().extend(_copy(inner, copy, number, inner.line) for number, inner in enumerate(part.value))
        case _:
            copy = replace(part, parent=parent, key=key, line=line)
    return copy


def _merge(into: Part, merged: Part) -> None:
    """Apply a merge key (`<<: *defaults`): add the keys of other mappings that the mapping itself does not have."""
    own = into.fields()
    for mapping in merged.entries() if isinstance(merged.value, list) else [merged]:
        for key, part in mapping.fields(expected="a mapping to merge, or a list of mappings").items():
            if key not in own:
                own[key] = _copy(part, into, key, part.line)
