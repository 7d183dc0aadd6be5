"""Tables of measurements and goals, as text, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["met", "missed", "", "skipped"]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: its name, the value (`measured` is the formatted text), the goal, and whether it was met."""

    what: str
    measured: str
    value: float | None = None
    goal: str = ""
    verdict: Verdict = ""


def at_least(what: str, value: float, goal: float, measured: str, unit: str = "×") -> Row:
    """Return a row whose goal is a minimum."""
    return Row(what, measured, value, f"≥ {goal:g} {unit}", "met" if value >= goal else "missed")


def at_most(what: str, value: float, goal: float, measured: str, unit: str = "×") -> Row:
    """Return a row whose goal is a maximum."""
    return Row(what, measured, value, f"≤ {goal:g} {unit}", "met" if value <= goal else "missed")


def skipped(what: str, why: str) -> Row:
    """Return a row for a measurement that could not be made, with the reason."""
    return Row(what, why, verdict="skipped")


def as_text(rows: Sequence[Row]) -> str:
    """Format rows as aligned text columns."""
    cells = [("what", "measured", "goal", ""), *((row.what, row.measured, row.goal, row.verdict) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def as_markdown(rows: Sequence[Row]) -> str:
    """Format rows as a Markdown table."""
    return markdown(
        ("what", "measured", "goal", ""), [(row.what, row.measured, row.goal, _bold(row.verdict)) for row in rows]
    )


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format any table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict == "missed" else verdict


def as_plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as dictionaries for JSON output."""
    return [asdict(row) for row in rows]
