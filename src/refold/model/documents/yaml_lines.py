"""A YAML parser that returns a tree of `Part`s with line numbers.

The text is untrusted: its size, its depth and its number of parts are limited, counting an alias as a full copy.
"""

from __future__ import annotations

import json
import re
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
    tree = _Tree(where, limits)
    language = "JSON" if where.endswith(".json") else "YAML"
    line, last_line = 1, len(_LINE_BREAK.findall(text)) + 1
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if event.start_mark is not None:  # an empty document may begin after the last line
                line = min(event.start_mark.line + 1, last_line)
            tree.add(event, line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadLine(
            where, mark.line + 1 if mark else line, f"is not {language}: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadLine(where, line, f"is not {language}: {shorten(' '.join(str(error).split()))}") from None
    return tree.documents


@dataclass(slots=True)
class _OpenPart:
    """A list or mapping that is not complete yet: its anchor, and the key (with its line) that has no value yet."""

    part: Part
    anchor: str | None
    key: str | None = None
    line: int = 0


class _Tree:
    """Builds the documents from parser events, without recursion: deep nesting must not exhaust the stack."""

    def __init__(self, where: str, limits: Limits) -> None:
        self.documents: list[Part] = []
        self._limits = limits
        self._where = where
        self._open: list[_OpenPart] = []
        self._anchors: dict[str, Part | None] = {}
        self._part_count = 0

    def add(self, event: Any, line: int) -> None:
        """Process the next parser event."""
        match event:
            case yaml.DocumentStartEvent():
                self._anchors.clear()
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.ScalarEvent() | yaml.AliasEvent() | yaml.CollectionStartEvent():
                if self._expects_key():
                    self._add_key(event, line)
                else:
                    self._add_value(event, line)

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].part.value, dict) and self._open[-1].key is None

    def _add_key(self, event: Any, line: int) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise BadLine(self._where, line, "a key is a list, a mapping or an alias, expected text")
        holder = self._open[-1]
        if event.value in holder.part.fields():
            raise BadLine(self._where, line, f"duplicate key {shorten(event.value)!r}")
        holder.key, holder.line = self._check_unicode(event.value, line), line

    def _add_value(self, event: Any, line: int) -> None:
        match event:
            case yaml.ScalarEvent():
                written = self._check_unicode(event.value, line)
                self._append(self._scalar(event, written, line), line, written, event.anchor)
            case yaml.AliasEvent():
                self._add_alias(str(event.anchor), line)
            case _:
                self._open_collection(event, line)

    def _scalar(self, event: Any, written: str, line: int) -> Value:
        tag = str(event.tag or "!").removeprefix(_TAG)
        if tag not in ("!", "str", "int", "float", "bool", "null"):
            raise BadLine(self._where, line, f"the tag {shorten(tag)!r} is not supported")
        if tag == "str" or (tag == "!" and not event.implicit[0]):
            return written
        if _INTEGER.fullmatch(written) and len(written) > MAX_DIGITS:
            raise BadLine(self._where, line, f"a number has {len(written):,} digits, expected at most {MAX_DIGITS}")
        return _resolve_scalar(written)

    def _open_collection(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            raise BadLine(self._where, line, f"the tag {shorten(event.tag)!r} is not supported")
        self._check_depth(len(self._open) + 1, line)
        part = self._append({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        if event.anchor:
            self._anchors[event.anchor] = None
        self._open.append(_OpenPart(part, event.anchor))

    def _close(self) -> None:
        closed = self._open.pop()
        if isinstance(closed.part.value, dict) and _MERGE in closed.part.value:
            _merge(closed.part, closed.part.value.pop(_MERGE))
        if closed.anchor:
            self._anchors[closed.anchor] = closed.part

    def _add_alias(self, name: str, line: int) -> None:
        known = self._anchors.get(name)
        if known is None:
            problem = "contains itself" if name in self._anchors else "has no anchor before it"
            raise BadLine(self._where, line, f"the alias {shorten(name)!r} {problem}")
        size, depth = _size_and_depth(known)
        self._count_parts(size - 1, line)
        self._check_depth(len(self._open) + depth, line)
        _copy_children(self._append(_empty_copy(known), known.line, known.written), known)

    def _append(self, value: Value, line: int, written: str = "", anchor: str | None = None) -> Part:
        """Add a part to the innermost open collection. A value in a mapping gets the line of its key."""
        self._count_parts(1, line)
        holder = self._open[-1] if self._open else None
        if holder is None:
            part = Part(self._where, line, value, written)
            self.documents.append(part)
        elif isinstance(holder.part.value, list):
            part = Part(self._where, line, value, written, holder.part, len(holder.part.value))
            holder.part.value.append(part)
        else:
            assert holder.key is not None
            part = Part(self._where, holder.line, value, written, holder.part, holder.key)
            holder.part.fields()[holder.key] = part
            holder.key = None
        if anchor:
            self._anchors[anchor] = part
        return part

    def _count_parts(self, more: int, line: int) -> None:
        self._part_count += more
        if self._part_count > self._limits.max_parts:
            raise BadLine(
                self._where, line, f"has more than {self._limits.max_parts:,} parts, counting each alias as a copy"
            )

    def _check_depth(self, depth: int, line: int) -> None:
        if depth > self._limits.max_depth:
            raise BadLine(self._where, line, f"is nested too deeply, expected at most {self._limits.max_depth} levels")

    def _check_unicode(self, text: str, line: int) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadLine(self._where, line, "has an unpaired surrogate, which is not a character") from None
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


def _children(part: Part) -> list[Part]:
    if isinstance(part.value, dict):
        return list(part.value.values())
    return part.value if isinstance(part.value, list) else []


def _size_and_depth(part: Part) -> tuple[int, int]:
    """Return the number of parts, and the number of nested levels."""
    size, depth, level = 0, 0, [part]
    while level:
        size += len(level)
        depth += any(isinstance(node.value, dict | list) for node in level)
        level = [inner for node in level for inner in _children(node)]
    return size, depth


def _empty_copy(part: Part) -> Value:
    return {} if isinstance(part.value, dict) else [] if isinstance(part.value, list) else part.value


def _copy_children(part: Part, source: Part) -> None:
    """Copy what is below `source` to `part`. The copies have their own path, and the line of the original."""
    if isinstance(part.value, list):
        part.value.extend(_copy_part(part, inner) for inner in source.entries())
    elif isinstance(part.value, dict):
        part.value.update((key, _copy_part(part, inner)) for key, inner in source.fields().items())


def _copy_part(holder: Part, inner: Part) -> Part:
    copy = replace(inner, parent=holder, value=_empty_copy(inner))
    _copy_children(copy, inner)
    return copy


def _merge(into: Part, merged: Part) -> None:
    """Apply a merge key (`<<: *defaults`): add the keys of other mappings that the mapping itself does not have."""
    own = into.fields()
    for mapping in merged.entries() if isinstance(merged.value, list) else [merged]:
        for key, part in mapping.fields(expected="a mapping to merge, or a list of mappings").items():
            if key not in own:
                own[key] = _copy_part(into, part)
