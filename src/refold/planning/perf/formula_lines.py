"""Lines of an explanation: names with formulas over the names before them, and their values."""

from __future__ import annotations

import re
from math import ceil, log2

import msgspec

_FUNCTIONS = {"max": max, "min": min, "ceil": ceil, "log2": log2}
_NAME = re.compile(r"[a-z_][a-z_0-9]*")


class FormulaLine(msgspec.Struct, frozen=True):
    """`name` = `formula` = `numbers` = `value`, and its meaning. Inputs have no formula."""

    name: str
    formula: str
    numbers: str
    value: float
    unit: str
    meaning: str


class Section(msgspec.Struct, frozen=True):
    """A group of lines with a title."""

    title: str
    lines: tuple[FormulaLine, ...]


class Lines:
    """The lines added so far, and the value of every name in them."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sections: list[tuple[str, list[FormulaLine]]] = []

    def section(self, title: str) -> None:
        self.sections.append((title, []))

    def given(self, meaning: str = "", unit: str = "", **values: float) -> None:
        """Add inputs: named numbers without a formula."""
        for name, value in values.items():
            self.values[name] = float(value)
            self.sections[-1][1].append(FormulaLine(name, "", "", float(value), unit, meaning))

    def formula(self, name: str, formula: str, unit: str, meaning: str) -> None:
        """Add a number computed by a formula over the previous ones."""
        value = float(eval(formula, {"__builtins__": {}}, {**self.values, **_FUNCTIONS}))
        self.values[name] = value
        self.sections[-1][1].append(FormulaLine(name, formula, self._substitute(formula), value, unit, meaning))

    def _substitute(self, formula: str) -> str:
        def number(word: re.Match[str]) -> str:
            return f"{self.values[word[0]]:.6g}" if word[0] in self.values else word[0]

        return _NAME.sub(number, formula)
