"""The parts of a YAML document. Each part knows its line and its path, so that errors can name both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from types import MappingProxyType
from typing import Any, TypeAlias

from refold.errors import BadLine, BadRow, BadValue, UnknownName
from refold.model import Seconds, format_duration, parse_duration

MAX_NUMBER = 10**15
"""The largest absolute value of a number."""

MAX_TEXT_CHARS = 4096
"""The default limit of the length of a text."""

MAX_QUOTED_CHARS = 60
"""The maximum number of characters of a value or name that an error message quotes."""

Value: TypeAlias = "dict[str, Part] | list[Part] | str | int | float | bool | None"


class _ValueText(str):
    """Text that `BadRow` prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One value of a document, with its file (`where`), its line, and its key in the enclosing part.

    `written` is the original text of a scalar: an environment variable set to `010` must stay `010`.
    """

    where: str
    line: int
    value: Value
    written: str = ""
    parent: Part | None = field(default=None, repr=False)
    key: str | int = ""

    @property
    def path(self) -> str:
        """The path from the root, such as `tenants.vision.quota_gpus` or `nodes[2]`; empty for the root."""
        names: list[str] = []
        part = self
        while part.parent is not None:
            names.append(f"[{part.key}]" if isinstance(part.key, int) else f".{shorten(part.key)}")
            part = part.parent
        return "".join(reversed(names)).removeprefix(".")

    @property
    def value_text(self) -> str:
        """The value as an error message shows it."""
        match self.value:
            case dict():
                return "keys and their values"
            case list():
                return "a list"
            case str():
                return repr(shorten(self.value))
            case None:
                return "empty"
        return shorten(self.written)

    def unexpected(self, expected: str) -> BadRow:
        """Return the error '<path> is <value>, expected <expected>'."""
        return BadRow(self.where, self.line, self.path or "the file", _ValueText(self.value_text), expected)

    def error(self, problem: object) -> BadLine:
        """Return the error '<path>: <problem>'."""
        return BadLine(self.where, self.line, f"{self.path}: {problem}" if self.path else str(problem))

    # Typed access to the value. Each method raises `unexpected(expected)` if the value is of another type or range.

    def fields(
        self,
        known: Collection[str] | None = None,
        expected: str = "keys and their values",
        hints: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Part]:
        """Return the parts of a mapping by key; if `known` is given, reject other keys.

        `hints`: for names that users expect from elsewhere, what to write instead.
        """
        if not isinstance(self.value, dict):
            raise self.unexpected(expected)
        if known is None:
            return self.value
        for key, part in self.value.items():
            if key not in known:
                unknown = (
                    f"unknown field {key!r}; use {hints[key]}"
                    if key in hints
                    else UnknownName("field", shorten(key), known)
                )
                raise BadLine(self.where, part.line, f"{self.path}: {unknown}" if self.path else str(unknown))
        return self.value

    def has(self, key: str) -> bool:
        """Whether this is a mapping in which a key has a value."""
        return isinstance(self.value, dict) and key in self.value and self.value[key].value is not None

    def at(self, *keys: str | int) -> Part:
        """Return the part at a path, or the last one on the way that exists, so that errors can be located."""
        part = self
        for key in keys:
            if isinstance(part.value, dict) and key in part.value:
                part = part.value[str(key)]
            elif isinstance(part.value, list) and isinstance(key, int):
                part = part.value[key]
        return part

    def entries(self, expected: str = "a list") -> list[Part]:
        """Return the parts of a list."""
        if not isinstance(self.value, list):
            raise self.unexpected(expected)
        return self.value

    @property
    def is_container(self) -> bool:
        """Whether the value is a mapping or a list."""
        return isinstance(self.value, dict | list)

    def text(self, expected: str = "text", maximum: int = MAX_TEXT_CHARS, blank: bool = False) -> str:
        """Return text of at most `maximum` characters, not blank unless `blank`; a number is returned as written."""
        if isinstance(self.value, bool):
            raise self.unexpected(f"{expected}; quote it")
        if not isinstance(self.value, str | int | float) or not (blank or self.written.strip()):
            raise self.unexpected(expected)
        if len(self.written) > maximum:
            raise self.unexpected(f"{expected} of at most {maximum:,} characters")
        return self.written

    def boolean(self, expected: str = "true or false") -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self.unexpected(expected)
        return self.value

    def integer(self, expected: str = "a whole number ≥ 0", minimum: float = 0, maximum: float = inf) -> int:
        """Return an integer within the bounds."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.unexpected(expected)
        return value

    def number(self, expected: str = "a number ≥ 0", minimum: float = 0, maximum: float = 1e300) -> float:
        """Return a finite number within the bounds."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise self.unexpected(expected)
        return float(value)

    def finite(self, expected: str = "a number") -> Value:
        """Return the value; a number must be finite and not absurdly large."""
        value = self.value
        if isinstance(value, float) and isnan(value):
            raise self.unexpected(expected)
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise self.unexpected(f"{expected}, at most {MAX_NUMBER:.0e}")
        return value

    def duration(self, expected: str = "a duration such as 90s, 15m or 1h30m", maximum: Seconds = 1e9) -> Seconds:
        """Return a duration in seconds, from text such as 1h30m or from a number of seconds."""
        if not isinstance(self.value, str):
            return self.number(expected, maximum=maximum)
        try:
            seconds = parse_duration(self.value) if len(self.value) <= MAX_QUOTED_CHARS else inf
        except BadValue:
            raise self.unexpected(expected) from None
        if seconds > maximum:
            raise self.unexpected(f"{expected}, at most {format_duration(maximum)}")
        return seconds

    def positive_duration(self, maximum: Seconds = 1e9) -> Seconds:
        """Return a duration greater than 0, in seconds."""
        seconds = self.duration(maximum=maximum)
        if seconds == 0:
            raise self.unexpected("a duration greater than 0, such as 15m")
        return seconds

    def quantity(self, parse: Callable[[str], float], expected: str) -> float:
        """Return text parsed by a function, which raises ValueError if it is invalid."""
        try:
            return parse(self.text(expected))
        except ValueError:
            raise self.unexpected(expected) from None

    def one_of(self, names: Collection[str]) -> str:
        """Return the value as written, which must be one of `names`: `off` is the name 'off' here, not a boolean."""
        if self.written not in names or isinstance(self.value, dict | list):
            raise self.unexpected(f"one of {', '.join(names)}")
        return self.written

    def to_plain(self) -> Any:
        """Return the whole part as plain Python values; numbers that are not finite are rejected."""
        match self.value:
            case dict():
                return {key: part.to_plain() for key, part in self.value.items()}
            case list():
                return [part.to_plain() for part in self.value]
            case float():
                return self.number("a finite number", minimum=-1e300)
        return self.value


def shorten(text: str) -> str:
    """Cut text to the length that an error message may quote."""
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "…"
