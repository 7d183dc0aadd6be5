"""YAML that people write, as a tree in which every part knows its line and its name.

The text is not trusted: its size and depth are bounded, and so are its parts, aliases counted where they are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from refold.documents.parts import BadLine, Part, Value, short
from refold.errors import BadFile

MOST_BYTES = 2**20
DEEPEST = 32
MOST_PARTS = 20_000
MOST_DIGITS = 100
"""Of a whole number: Python itself refuses to read some thousands."""

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_NOTHING = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*", re.ASCII)
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")


def read_text(path: Path) -> str:
    """What a file of text says, if it is not too long."""
    try:
        if not path.is_file():
            raise BadFile(path, "is a folder, expected a file" if path.is_dir() else "no such file")
        if path.stat().st_size > MOST_BYTES:
            raise BadFile(path, f"has {path.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError:  # no UTF-8, or a NUL in the path
        raise BadFile(path, "is not text (UTF-8)") from None


def load(text: str, where: str) -> Part:
    """The one document of a text; `where` is the name of the file in errors. An empty text has the value None."""
    documents = load_all(text, where)
    if len(documents) > 1:
        raise BadLine(where, documents[1].line, "a second document begins, expected one")
    return documents[0] if documents else Part(where, 1, None)


def load_all(text: str, where: str) -> list[Part]:
    """The documents of a text, which '---' stands between."""
    if len(text) > MOST_BYTES:
        raise BadFile(where, f"has {len(text):,} characters, expected at most {MOST_BYTES:,}")
    tree = _Tree(where)
    line = 1
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            line = event.start_mark.line + 1
            tree.take(event, line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadLine(
            where, mark.line + 1 if mark else line, f"is not YAML: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadLine(where, line, f"is not YAML: {short(' '.join(str(error).split()))}") from None
    return tree.documents


@dataclass(slots=True)
class _Open:
    """A list or mapping that has begun: what it was anchored as, and the key that waits for its value."""

    part: Part
    anchor: str | None
    key: str | None = None
    line: int = 0


class _Tree:
    """Documents as they grow, event by event: nothing here calls itself as often as the text is nested."""

    def __init__(self, where: str) -> None:
        self.documents: list[Part] = []
        self._where = where
        self._open: list[_Open] = []
        self._anchored: dict[str, Part | None] = {}
        self._parts = 0

    def take(self, event: Any, line: int) -> None:
        """The next thing that stands in the text."""
        match event:
            case yaml.DocumentStartEvent():
                self._anchored.clear()
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.ScalarEvent() | yaml.AliasEvent() | yaml.CollectionStartEvent():
                if self._wants_key():
                    self._take_key(event, line)
                else:
                    self._take_value(event, line)

    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].part.value, dict) and self._open[-1].key is None

    def _take_key(self, event: Any, line: int) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise BadLine(self._where, line, "a key is a list, a mapping or an alias, expected text")
        holder = self._open[-1]
        if event.value in holder.part.fields():
            raise BadLine(self._where, line, f"the key {short(event.value)!r} is there twice, expected each once")
        holder.key, holder.line = self._sound(event.value, line), line

    def _take_value(self, event: Any, line: int) -> None:
        match event:
            case yaml.ScalarEvent():
                written = self._sound(event.value, line)
                self._put(self._scalar(event, written, line), line, written, event.anchor)
            case yaml.AliasEvent():
                self._alias(str(event.anchor), line)
            case _:
                self._begin(event, line)

    def _scalar(self, event: Any, written: str, line: int) -> Value:
        tag = str(event.tag or "!").removeprefix(_TAG)
        if tag not in ("!", "str", "int", "float", "bool", "null"):
            raise BadLine(self._where, line, f"the tag {short(tag)!r} is not understood")
        if tag == "str" or (tag == "!" and not event.implicit[0]):
            return written
        if _WHOLE.fullmatch(written) and len(written) > MOST_DIGITS:
            raise BadLine(self._where, line, f"a number has {len(written):,} digits, expected at most {MOST_DIGITS}")
        return _resolved(written)

    def _begin(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            raise BadLine(self._where, line, f"the tag {short(event.tag)!r} is not understood")
        self._refuse_depth(len(self._open) + 1, line)
        part = self._put({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        if event.anchor:
            self._anchored[event.anchor] = None
        self._open.append(_Open(part, event.anchor))

    def _end(self) -> None:
        over = self._open.pop()
        if isinstance(over.part.value, dict) and _MERGE in over.part.value:
            _merge(over.part, over.part.value.pop(_MERGE))
        if over.anchor:
            self._anchored[over.anchor] = over.part

    def _alias(self, name: str, line: int) -> None:
        known = self._anchored.get(name)
        if known is None:
            problem = "holds itself" if name in self._anchored else "names nothing before it"
            raise BadLine(self._where, line, f"the alias {short(name)!r} {problem}")
        size, height = _extent(known)
        self._count(size - 1, line)
        self._refuse_depth(len(self._open) + height, line)
        _fill(self._put(_emptied(known), known.line, known.written), known)

    def _put(self, value: Value, line: int, written: str = "", anchor: str | None = None) -> Part:
        """A part into what holds it. What has a key is found where the key is."""
        self._count(1, line)
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
            self._anchored[anchor] = part
        return part

    def _count(self, more: int, line: int) -> None:
        self._parts += more
        if self._parts > MOST_PARTS:
            raise BadLine(self._where, line, f"has more than {MOST_PARTS:,} parts, aliases counted where they are used")

    def _refuse_depth(self, depth: int, line: int) -> None:
        if depth > DEEPEST:
            raise BadLine(self._where, line, f"is nested too deeply, expected at most {DEEPEST} levels")

    def _sound(self, text: str, line: int) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadLine(self._where, line, "has half of a surrogate pair, which is no character") from None
        return text


def _resolved(written: str) -> Value:
    """What plain text stands for. A time such as 1:30:00 stays text, and so does a date."""
    if written in _NOTHING:
        return None
    if written in (written.lower(), written.upper(), written.capitalize()) and written.lower() in _TRUTHS:
        return _TRUTHS[written.lower()]
    if _WHOLE.fullmatch(written):
        return int(written.replace("_", ""))
    if _HEXADECIMAL.fullmatch(written):
        return int(written, 16)
    if _NUMBER.fullmatch(written):
        return float(written.replace("_", ""))
    if not_finite := _NOT_FINITE.fullmatch(written):
        return float(not_finite[1] + not_finite[2])
    return written


def _inside(part: Part) -> list[Part]:
    if isinstance(part.value, dict):
        return list(part.value.values())
    return part.value if isinstance(part.value, list) else []


def _extent(part: Part) -> tuple[int, int]:
    """How many parts it is, and how many levels."""
    size, height, level = 0, 0, [part]
    while level:
        size += len(level)
        height += any(isinstance(one.value, dict | list) for one in level)
        level = [inner for one in level for inner in _inside(one)]
    return size, height


def _emptied(part: Part) -> Value:
    return {} if isinstance(part.value, dict) else [] if isinstance(part.value, list) else part.value


def _fill(part: Part, source: Part) -> None:
    """What an alias repeats is told by its name there, and by the line where it was written."""
    if isinstance(part.value, list):
        part.value.extend(_under(part, inner) for inner in source.entries())
    elif isinstance(part.value, dict):
        part.value.update((key, _under(part, inner)) for key, inner in source.fields().items())


def _under(holder: Part, inner: Part) -> Part:
    copy = replace(inner, parent=holder, value=_emptied(inner))
    _fill(copy, inner)
    return copy


def _merge(into: Part, merged: Part) -> None:
    """`<<: *usual`: keys of another mapping, where there are none of one's own."""
    own = into.fields()
    for mapping in merged.entries() if isinstance(merged.value, list) else [merged]:
        for key, part in mapping.fields(expected="a mapping to merge, or a list of such").items():
            if key not in own:
                own[key] = _under(into, part)
