"""Measurements as CSV: one line per measured plan, with the columns that `refold profile` writes.

Only `batch` and `step_s` are required; missing degrees are 1, and values that were not measured are empty.
`placement` is the number of GPUs on each node: `8`, `8+8`, or `2+3+3`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from refold.errors import BadFile, BadRow, BadValue, UnknownName
from refold.model import DEGREES, MAX_DEGREE, RECOMPUTE, Plan
from refold.planning.perf import Measurement, Status

SECONDS_COLUMNS = {
    "step_s": "step_seconds",
    "forward_s": "forward_seconds",
    "backward_s": "backward_seconds",
    "optimizer_s": "optimizer_seconds",
}
GIB_COLUMNS = ("memory_gib", "reserved_gib")
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
    *SECONDS_COLUMNS,
    *GIB_COLUMNS,
    "status",
)
REQUIRED_COLUMNS = ("batch", "step_s")

BOOLEAN_TEXTS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
MAX_BYTES = 2**26
"""Maximum size of a file of samples."""


def read_samples(path: str | Path) -> list[Measurement]:
    """Read all measurements of a file; raise an error with the line number for the first invalid line."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadFile(path, f"is larger than {MAX_BYTES // 2**20} MiB, the limit for samples")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames)
            measurements = [_parse_measurement(_Row(path, reader.line_num, cells)) for cells in reader]
    except OSError as cause:
        raise BadFile(path, f"cannot be read: {cause.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(path, "is not text (UTF-8)") from None
    except csv.Error as cause:
        raise BadFile(path, f"is not CSV: {cause}") from None
    if not measurements:
        raise BadFile(path, "has no samples, expected one line per measured plan below the header")
    return measurements


def write_samples(path: str | Path, measurements: Iterable[Measurement]) -> None:
    """Write measurements to a file, atomically."""
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(measurement) for measurement in measurements)
    temporary.replace(path)


def _cells(measurement: Measurement) -> dict[str, object]:
    plan = measurement.plan
    cells: dict[str, object] = {name: getattr(plan, name) for name in (*DEGREES, "zero", "recompute")}
    cells |= {"offload": int(plan.offload), "sequence_parallel": int(plan.sequence_parallel)}
    cells |= {
        "placement": "+".join(map(str, measurement.gpus_on_node)),
        "cpus": f"{measurement.cpus:g}" if measurement.cpus else "",
    }
    cells |= {name: getattr(measurement, name) for name in ("model", "gpu", "batch", "sequence", "status")}
    numbers = {
        column: getattr(measurement, SECONDS_COLUMNS.get(column, column)) for column in (*SECONDS_COLUMNS, *GIB_COLUMNS)
    }
    return cells | {column: "" if number is None else f"{number:.6g}" for column, number in numbers.items()}


def _check_columns(path: Path, columns: Iterable[str] | None) -> None:
    columns = list(columns or ())
    if {"exec_plan", "iter_time_s"} <= set(columns):
        raise BadFile(path, "is Rubick's table of measured steps; docs/results/table4.md shows how to convert it")
    for column in columns:
        if column not in COLUMNS:
            raise BadFile(path, str(UnknownName("column", column, COLUMNS)))
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        raise BadFile(
            path, f"has no column {' and no column '.join(missing)}; columns of samples: {', '.join(COLUMNS)}"
        )


class _Row:
    """One line of the file, with typed access to its cells."""

    def __init__(self, path: Path, line: int, cells: Mapping[str | None, Any]) -> None:
        self.path, self.line = path, line
        if None in cells or None in cells.values():
            raise BadRow(path, line, "the line", f"{len(cells)} cells", "one cell per column")
        self._cells = {str(name): str(text).strip() for name, text in cells.items()}

    def text(self, column: str, default: str = "") -> str:
        return self._cells.get(column, "") or default

    def error(self, column: str, expected: str) -> BadRow:
        return BadRow(self.path, self.line, column, self.text(column), expected)

    def integer(self, column: str, default: int, minimum: int = 1) -> int:
        return int(self._number(column, int, default, minimum, f"a whole number from {minimum} to {MAX_DEGREE}"))

    def number(self, column: str, default: float | None = None) -> float | None:
        """Return a number ≥ 0."""
        text = self.text(column)
        return self._number(column, float, 0.0, 0, "a number ≥ 0") if text else default

    def _number(self, column: str, convert: Callable[[str], Any], default: Any, minimum: int, expected: str) -> Any:
        text = self.text(column)
        if not text:
            return default
        try:
            number = convert(text)
        except ValueError:
            raise self.error(column, expected) from None
        if not (isfinite(number) and minimum <= number <= (MAX_DEGREE if convert is int else 1e12)):
            raise self.error(column, expected)
        return number

    def boolean(self, column: str) -> bool:
        text = self.text(column, "no").lower()
        if text not in BOOLEAN_TEXTS:
            raise self.error(column, "yes or no")
        return BOOLEAN_TEXTS[text]


def _parse_measurement(row: _Row) -> Measurement:
    recompute = row.text("recompute", "none")
    if recompute not in RECOMPUTE:
        raise row.error("recompute", " or ".join(RECOMPUTE))
    status = _parse_status(row)
    batch, seconds = row.integer("batch", 0), row.number("step_s")
    if not batch:
        raise row.error("batch", "samples per step, at least 1")
    if status == "ok" and not seconds:
        raise row.error("step_s", "seconds > 0, or status oom")
    degrees = {name: row.integer(name, 1) for name in DEGREES}
    try:
        plan = Plan(
            zero=row.integer("zero", 0, 0),
            offload=row.boolean("offload"),
            recompute=recompute,
            sequence_parallel=row.boolean("sequence_parallel"),
            **degrees,
        )
        return Measurement(
            model=row.text("model", "model"),
            gpu=row.text("gpu"),
            gpus_on_node=_parse_placement(row, plan.gpus),
            plan=plan,
            batch=batch,
            sequence=row.integer("sequence", 1),
            cpus=row.number("cpus", 0.0) or 0.0,
            status=status,
            **{SECONDS_COLUMNS.get(column, column): row.number(column) for column in (*SECONDS_COLUMNS, *GIB_COLUMNS)},
        )
    except BadValue as cause:
        raise BadFile(row.path, f"line {row.line}: {cause}") from None


def _parse_status(row: _Row) -> Status:
    match row.text("status", "ok"):
        case "ok":
            return "ok"
        case "oom":
            return "oom"
        case _:
            raise row.error("status", "ok or oom")


def _parse_placement(row: _Row, gpus: int) -> tuple[int, ...]:
    text = row.text("placement", str(gpus))
    nodes = text.split("+")
    if not all(node.isdecimal() and 0 < int(node) <= MAX_DEGREE for node in nodes):
        raise row.error("placement", "GPUs on each node, such as 8 or 4+4")
    return tuple(map(int, nodes))
