"""Parts of a document that a person wrote, each of which knows its line and its name, so that errors can say both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeAlias

from refold.errors import BadInput, BadRow, BadValue, UnknownName
from refold.model import Seconds, seconds_from_text

LONGEST_SHOWN = 60
"""Characters of a value or a name that an error repeats."""

Value: TypeAlias = "dict[str, Part] | list[Part] | str | int | float | bool | None"


class BadLine(BadInput):
    """One line of a file is not what it should be."""

    def __init__(self, path: object, line: int, problem: str) -> None:
        super().__init__(f"{path} line {line}: {problem}")
        self.path = str(path)
        self.line = line
        self.problem = problem


class _ValueText(str):
    """What an error says of a value, as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a document: what stands there, in which line of which file, under which key of which other part.

    A scalar is also there as it was `written`: a variable of `010` is to be just that.
    """

    where: str
    line: int
    value: Value
    written: str = ""
    parent: Part | None = field(default=None, repr=False)
    key: str | int = ""

    @property
    def path(self) -> str:
        """Its name, such as `tenants.vision.quota_gpus` or `nodes[2]`; empty for the whole document."""
        names: list[str] = []
        part = self
        while part.parent is not None:
            names.append(f"[{part.key}]" if isinstance(part.key, int) else f".{short(part.key)}")
            part = part.parent
        return "".join(reversed(names)).removeprefix(".")

    @property
    def shown(self) -> str:
        """Its value as an error repeats it."""
        match self.value:
            case dict():
                return "keys and their values"
            case list():
                return "a list"
            case str():
                return repr(short(self.value))
            case None:
                return "empty"
        return short(self.written)

    def wrong(self, expected: str) -> BadRow:
        """The error that says what stands here, and what would be right."""
        return BadRow(self.where, self.line, self.path or "the file", _ValueText(self.shown), expected)

    def refused(self, problem: object) -> BadLine:
        """The error that says what is wrong here in other words."""
        return BadLine(self.where, self.line, f"{self.path}: {problem}" if self.path else str(problem))

    # Reading what stands here.

    def fields(self, known: Collection[str] | None = None, expected: str = "keys and their values") -> dict[str, Part]:
        """Keys and their parts; only `known` keys, if these are given."""
        if not isinstance(self.value, dict):
            raise self.wrong(expected)
        if known is None:
            return self.value
        for key, part in self.value.items():
            if key not in known:
                kind = f"key of {self.path}" if self.path else "key"
                raise BadLine(self.where, part.line, str(UnknownName(kind, short(key), known)))
        return self.value

    def read(self, readers: Mapping[str, Callable[[Part], Any]]) -> dict[str, Any]:
        """Keys and what their readers make of them; a key of which everything is commented out is not there."""
        if self.value is None:
            return {}
        return {key: readers[key](part) for key, part in self.fields(readers).items() if part.value is not None}

    def entries(self, expected: str = "a list") -> list[Part]:
        """The parts of a list."""
        if not isinstance(self.value, list):
            raise self.wrong(expected)
        return self.value

    def text(self, expected: str = "text", most: int = 4096) -> str:
        """Text that is not empty; a number is taken as it was written."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float) or not self.written.strip():
            raise self.wrong(expected)
        if len(self.written) > most:
            raise self.wrong(f"{expected} of at most {most:,} characters")
        return self.written

    def truth(self, expected: str = "true or false") -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong(expected)
        return self.value

    def whole(self, expected: str = "a whole number ≥ 0", least: float = 0, most: float = inf) -> int:
        """A whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not least <= self.value <= most:
            raise self.wrong(expected)
        return self.value

    def number(self, expected: str = "a number ≥ 0", least: float = 0, most: float = 1e300) -> float:
        """A number; neither NaN nor infinite."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not least <= self.value <= most:
            raise self.wrong(expected)
        return float(self.value)

    def seconds(self, expected: str = "how long, such as 90s, 15m or 1h30m", most: Seconds = 1e9) -> Seconds:
        """How long: text as people write it, or a number of seconds."""
        if not isinstance(self.value, str):
            return self.number(expected, most=most)
        try:
            seconds = seconds_from_text(self.value) if len(self.value) <= LONGEST_SHOWN else inf
        except BadValue:
            raise self.wrong(expected) from None
        if seconds > most:
            raise self.wrong(f"{expected}, and not beyond reason")
        return seconds

    def distribution(self) -> Seconds:
        """How long, and longer than not at all."""
        seconds = self.seconds()
        if seconds == 0:
            raise self.wrong("how long, more than 0, such as 15m")
        return seconds

    def one_of(self, names: Collection[str]) -> str:
        """One of some names; `off` and the like are names too, where they are among them."""
        if self.written not in names or isinstance(self.value, dict | list):
            raise self.wrong(f"one of {', '.join(names)}")
        return self.written

    def plain(self) -> Any:
        """All of it as plain values; numbers that are not finite are refused."""
        match self.value:
            case dict():
                return {key: part.plain() for key, part in self.value.items()}
            case list():
                return [part.plain() for part in self.value]
            case float():
                return self.number("a finite number", least=-1e300)
        return self.value


def short(text: str) -> str:
    """Text that is not longer than an error should be."""
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
