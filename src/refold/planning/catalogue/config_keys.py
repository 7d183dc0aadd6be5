"""The values of a Hugging Face config.json, each by one of several keys."""

from __future__ import annotations

from collections.abc import Mapping

from refold.errors import BadLine
from refold.model.documents import Part

MAX_COUNT = 10**12
"""Upper limit of any count in a configuration."""

FFN = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size")
"""Keys of the feed-forward width."""

EXPECTED_CONFIG = "the configuration of a model"


class ConfigKeys:
    """A configuration whose values may have one of several keys; null counts as missing."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._parts = {} if part.value is None else part.fields(expected=EXPECTED_CONFIG)

    def get(self, name: str) -> Part | None:
        """Return a value, or None if it is missing."""
        part = self._parts.get(name)
        return None if part is None or part.value is None else part

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first of the keys that is present, as an integer ≥ 1."""
        for part in filter(None, map(self.get, names)):
            return part.integer(f"a whole number from 1 to {MAX_COUNT:.0e}", 1, MAX_COUNT)
        if default is None:
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise self._part.error(f"{names[0]}{others} is missing, expected a whole number ≥ 1")
        return default

    def amount(self, name: str) -> int:
        """Return an integer ≥ 0; 0 if it is missing."""
        part = self.get(name)
        return 0 if part is None else part.integer(f"a whole number from 0 to {MAX_COUNT:.0e}", 0, MAX_COUNT)

    def flag(self, name: str, default: bool) -> bool:
        part = self.get(name)
        return default if part is None else part.boolean()

    def is_set(self, name: str) -> bool:
        """Return whether a key has a value that is not empty or 0."""
        part = self.get(name)
        return part is not None and bool(part.value)

    def length(self, name: str) -> int:
        """Return the length of a list; 0 if it is missing."""
        part = self.get(name)
        return 0 if part is None else len(part.entries())

    def reject_other(self, name: str, expected: int, reason: str) -> None:
        """Raise an error if a key is set to another number."""
        if self.get(name) is not None and self.count(name) != expected:
            self.reject({name: reason})

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; empty if it is missing."""
        part = self.get(name)
        return [] if part is None else [entry.text() for entry in part.entries()]

    def integers(self, name: str) -> list[int]:
        """Return a list of integers ≥ 0; empty if it is missing."""
        part = self.get(name)
        entries = [] if part is None else part.entries()
        return [entry.integer("a whole number ≥ 0", 0, MAX_COUNT) for entry in entries]

    def error(self, message: str) -> BadLine:
        """Return an error about the configuration as a whole."""
        return self._part.error(message)

    def text(self, name: str) -> str:
        """Return a string; empty if missing."""
        part = self.get(name)
        return "" if part is None else part.text()

    def section(self, name: str) -> ConfigKeys:
        """Return a nested configuration; empty if missing."""
        return ConfigKeys(self._parts.get(name, Part(self._part.where, self._part.line, None)))

    def reject(self, reasons: Mapping[str, str]) -> None:
        """Raise an error if one of these keys is set."""
        for name, reason in reasons.items():
            part = self.get(name)
            if part is not None and part.value:
                raise part.error(f"is not supported ({reason}); write the closest shapes as YAML")
