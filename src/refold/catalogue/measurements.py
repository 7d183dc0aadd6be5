"""Measurements in a CSV file: one line per plan that was run, with the columns that `refold profile` writes.

Only `batch` and `step_s` have to be there; a degree that is left out is 1, and what was not measured stays empty.
`placement` says how many GPUs there were on each node: `8`, `8+8`, or `2+3+3`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from refold.errors import BadFile, BadRow, BadValue, UnknownName
from refold.model import DEGREES, LARGEST_DEGREE, RECOMPUTE, Plan
from refold.perf import Measurement, Status

SECONDS = {
    "step_s": "step_seconds",
    "forward_s": "forward_seconds",
    "backward_s": "backward_seconds",
    "optimizer_s": "optimizer_seconds",
}
GIB = ("memory_gib", "reserved_gib")
COLUMNS = (
    "model",
    "gpu",
    "placement",
    *DEGREES,
    "zero",
    "offload",
    "recompute",
    "sequence_parallel",
    "batch",
    "sequence",
    "cpus",
    *SECONDS,
    *GIB,
    "status",
)
NEEDED = ("batch", "step_s")

YES_OR_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
MOST_BYTES = 2**26
"""No table of samples is longer than this."""


def read_samples(path: str | Path) -> list[Measurement]:
    """All measurements of a file; the first line that cannot be one is refused, with its number."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadFile(path, "is too long for a table of samples")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames)
            found = [_measurement(_Row(path, reader.line_num, cells)) for cells in reader]
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(path, "is not text (UTF-8)") from None
    except csv.Error as error:
        raise BadFile(path, f"is not CSV: {error}") from None
    if not found:
        raise BadFile(path, "has no samples: a line for each plan that was run, below the names of the columns")
    return found


def write_samples(path: str | Path, measurements: Iterable[Measurement]) -> None:
    """The same, written: all of it or nothing."""
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(one) for one in measurements)
    beside.replace(path)


def _cells(one: Measurement) -> dict[str, object]:
    plan = one.plan
    cells: dict[str, object] = {name: getattr(plan, name) for name in (*DEGREES, "zero", "recompute")}
    cells |= {"offload": int(plan.offload), "sequence_parallel": int(plan.sequence_parallel)}
    cells |= {"placement": "+".join(map(str, one.gpus_on_node)), "cpus": f"{one.cpus:g}" if one.cpus else ""}
    cells |= {name: getattr(one, name) for name in ("model", "gpu", "batch", "sequence", "status")}
    numbers = {column: getattr(one, SECONDS.get(column, column)) for column in (*SECONDS, *GIB)}
    return cells | {column: "" if number is None else f"{number:.6g}" for column, number in numbers.items()}


def _check_columns(path: Path, columns: Iterable[str] | None) -> None:
    columns = list(columns or ())
    for column in columns:
        if column not in COLUMNS:
            raise BadFile(path, str(UnknownName("column", column, COLUMNS)))
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise BadFile(path, f"has no column {' and no column '.join(missing)}; samples have {', '.join(COLUMNS)}")


class _Row:
    """One line, and how its cells read."""

    def __init__(self, path: Path, line: int, cells: Mapping[str | None, Any]) -> None:
        self.path, self.line = path, line
        if None in cells or None in cells.values():
            raise BadRow(path, line, "the line", f"{len(cells)} cells", "as many cells as there are columns")
        self._cells = {str(name): str(text).strip() for name, text in cells.items()}

    def text(self, column: str, otherwise: str = "") -> str:
        return self._cells.get(column, "") or otherwise

    def refused(self, column: str, expected: str) -> BadRow:
        return BadRow(self.path, self.line, column, self.text(column), expected)

    def whole(self, column: str, otherwise: int, least: int = 1) -> int:
        """A whole number."""
        return int(self._number(column, int, otherwise, least, f"a whole number from {least} to {LARGEST_DEGREE}"))

    def number(self, column: str, otherwise: float | None = None) -> float | None:
        """A number, not below 0."""
        text = self.text(column)
        return self._number(column, float, 0.0, 0, "a number ≥ 0") if text else otherwise

    def _number(self, column: str, kind: Callable[[str], Any], otherwise: Any, least: int, expected: str) -> Any:
        text = self.text(column)
        if not text:
            return otherwise
        try:
            found = kind(text)
        except ValueError:
            raise self.refused(column, expected) from None
        if not (isfinite(found) and least <= found <= (LARGEST_DEGREE if kind is int else 1e12)):
            raise self.refused(column, expected)
        return found

    def yes(self, column: str) -> bool:
        """Yes or no."""
        text = self.text(column, "no").lower()
        if text not in YES_OR_NO:
            raise self.refused(column, "yes or no")
        return YES_OR_NO[text]


def _measurement(row: _Row) -> Measurement:
    recompute = row.text("recompute", "none")
    if recompute not in RECOMPUTE:
        raise row.refused("recompute", " or ".join(RECOMPUTE))
    status = _status(row)
    batch, seconds = row.whole("batch", 0), row.number("step_s")
    if not batch:
        raise row.refused("batch", "samples of a step, at least 1")
    if status == "ok" and not seconds:
        raise row.refused("step_s", "seconds > 0, or the status oom")
    degrees = {name: row.whole(name, 1) for name in DEGREES}
    try:
        plan = Plan(
            zero=row.whole("zero", 0, 0),
            offload=row.yes("offload"),
            recompute=recompute,
            sequence_parallel=row.yes("sequence_parallel"),
            **degrees,
        )
        return Measurement(
            model=row.text("model", "model"),
            gpu=row.text("gpu"),
            gpus_on_node=_placement(row, plan.gpus),
            plan=plan,
            batch=batch,
            sequence=row.whole("sequence", 1),
            cpus=row.number("cpus", 0.0) or 0.0,
            status=status,
            **{SECONDS.get(column, column): row.number(column) for column in (*SECONDS, *GIB)},
        )
    except BadValue as error:
        raise BadFile(row.path, f"line {row.line}: {error}") from None


def _status(row: _Row) -> Status:
    match row.text("status", "ok"):
        case "ok":
            return "ok"
        case "oom":
            return "oom"
        case _:
            raise row.refused("status", "ok or oom")


def _placement(row: _Row, gpus: int) -> tuple[int, ...]:
    text = row.text("placement", str(gpus))
    nodes = text.split("+")
    if not all(node.isdecimal() and 0 < int(node) <= LARGEST_DEGREE for node in nodes):
        raise row.refused("placement", "GPUs on each node, as in 8 or 4+4")
    return tuple(map(int, nodes))
