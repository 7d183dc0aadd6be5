"""The table of what was measured: for the terminal, for README.md and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["met", "missed", "", "skipped"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what, how much of it (`value`, in words `measured`), the goal and whether it was met."""

    what: str
    measured: str
    value: float | None = None
    goal: str = ""
    verdict: Verdict = ""


def at_least(what: str, value: float, goal: float, measured: str, unit: str = "×") -> Row:
    """A row whose value should not be below the goal."""
    return Row(what, measured, value, f"≥ {goal:g} {unit}", "met" if value >= goal else "missed")


def at_most(what: str, value: float, goal: float, measured: str, unit: str = "×") -> Row:
    """A row whose value should not be above the goal."""
    return Row(what, measured, value, f"≤ {goal:g} {unit}", "met" if value <= goal else "missed")


def skipped(what: str, why: str) -> Row:
    """A row that could not be measured here."""
    return Row(what, why, verdict="skipped")


def as_text(rows: Sequence[Row]) -> str:
    """Aligned columns."""
    cells = [("what", "measured", "goal", ""), *((row.what, row.measured, row.goal, row.verdict) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def as_markdown(rows: Sequence[Row]) -> str:
    """A table for README.md."""
    return markdown(
        ("what", "measured", "goal", ""), [(row.what, row.measured, row.goal, _bold(row.verdict)) for row in rows]
    )


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Any table, in markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict == "missed" else verdict


def as_plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For `--json`."""
    return [asdict(row) for row in rows]
