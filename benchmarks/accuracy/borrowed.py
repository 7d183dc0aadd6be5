"""Estimates for a GPU type or a model without samples, corrected by others: `python -m benchmarks.accuracy.borrowed`.

Each GPU type, and each model, is held out in turn. Its estimates by the analytical model are multiplied by the median
ratio of measured to estimated step times that other GPU types (of the same engine, and model if there are any), or
other models (of the same engine and GPU type), have; medians of few rows are shrunk to 1. `--write` writes
benchmarks/accuracy/borrowed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.cases import Vector, measured_seconds, with_step_time
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.no_samples import PARTS, predicted
from benchmarks.accuracy.tables import Case
from benchmarks.result_page import page_parser, publish
from benchmarks.table import markdown

PAGE = Path(__file__).parent / "borrowed.md"
SHRINK_ROWS = 3.0
"""A median over this many rows is shrunk by half."""

Key = Callable[[Case], Hashable]


class Borrowing(NamedTuple):
    """What is held out, and the keys that a row borrows from must share, fine to coarse; `name` is that of a group."""

    what: str
    held_out: Key
    shared: tuple[Key, ...]
    name: Callable[[Case], str]


BORROWING = (
    Borrowing(
        "GPU type",
        lambda case: case.gpu,
        (lambda case: case.engine, lambda case: (case.engine, case.model)),
        lambda case: f"{case.gpu}, {case.engine}",
    ),
    Borrowing(
        "model",
        lambda case: case.model,
        (lambda case: (case.engine, case.gpu),),
        lambda case: f"{case.engine} on {case.gpu}",
    ),
)


def corrections(cases: Sequence[Case], log_ratio: Vector, borrowing: Borrowing) -> Vector:
    """Return the log factor for each case, from rows that do not share what is held out; NaN if there are none."""
    found = np.full(len(cases), np.nan)
    held = [borrowing.held_out(case) for case in cases]
    for shared in borrowing.shared:  # coarse to fine: the finer mean is shrunk to the coarser
        keys = [shared(case) for case in cases]
        for group in set(zip(keys, held, strict=True)):
            rows = [row for row in range(len(cases)) if keys[row] == group[0]]
            others = [row for row in rows if held[row] != group[1]]
            mine = [row for row in rows if held[row] == group[1]]
            if others:
                prior = np.nan_to_num(found[mine[0]])
                own = len(others) / (len(others) + SHRINK_ROWS)
                found[mine] = prior + own * (float(np.median(log_ratio[others])) - prior)
    return found


def rows(cases: Sequence[Case]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table: median and p90 error of groups that can borrow, without and with borrowing."""
    log_ratio = np.log(measured_seconds(cases) / predicted(cases).seconds)
    for borrowing in BORROWING:
        factor = corrections(cases, log_ratio, borrowing)
        known = np.flatnonzero(~np.isnan(factor))
        names = np.array([borrowing.name(case) for case in cases])
        for name in [*dict.fromkeys(names[known].tolist()), "all"]:
            chosen = known if name == "all" else known[names[known] == name]
            before, after = (np.abs(np.exp(-log_ratio[chosen] + by) - 1) for by in (0.0, factor[chosen]))
            cells = [f"{np.quantile(errors, q):.1%}" for q in (0.5, 0.9) for errors in (before, after)]
            yield borrowing.what, name, f"{len(chosen):,}", *cells


INTRODUCTION = """\
Step times of rows whose GPU type, or model, is held out: errors of the analytical model, and with its estimates
corrected by the ratios of measured to estimated times of other GPU types of the same engine (and model), or of other
models of the same engine on the same GPU type (`python -m benchmarks.accuracy.borrowed`). The constants of GPU types
and engines were fitted on some of these rows.

"""


def main() -> None:
    """Print the table; write it with --write."""
    options = page_parser("benchmarks.accuracy.borrowed", __doc__, "benchmarks/accuracy/borrowed.md").parse_args()
    tables = dict.fromkeys(part.table for part in PARTS)
    cases = [case for table in tables for case in with_step_time(read_cases(table))]
    columns = ("held out", "rows of", "number", "median error", "borrowed", "p90", "borrowed")
    publish(options, PAGE, INTRODUCTION + markdown(columns, list(rows(cases))) + "\n")


if __name__ == "__main__":
    main()
