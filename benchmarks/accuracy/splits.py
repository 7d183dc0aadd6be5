"""Errors on recipes when other models and systems are fitted on: `python -m benchmarks.accuracy.splits`.

The constants for low precision, Blackwell and mixtures of experts are fitted anew, to random halves of the models and
systems, and to all models but one; the errors are those of what was left out. `--write` writes
benchmarks/accuracy/splits.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.calibrate import FITS, Fitted, fit
from benchmarks.accuracy.cases import Batch, measured_seconds
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import run_report
from benchmarks.accuracy.tables import Case
from benchmarks.table import markdown

HALVES = 6
TABLES = ("megatron_bridge", "dgx_cloud_h100")


class Group(NamedTuple):
    """A model on a system; Llama 3 and 3.1 of a size are the same model."""

    model: str
    gpu: str


class Split(NamedTuple):
    """Groups that are left out, and how to call them."""

    name: str
    held_out: frozenset[Group]


def _group(case: Case) -> Group:
    return Group(case.model.name.replace("3.1", "3"), case.gpu)


def splits(cases: list[Case]) -> Iterator[Split]:
    """Yield random halves, and each model."""
    groups = sorted({_group(case) for case in cases})
    random = Random(1)
    for number in range(HALVES):
        yield Split(f"random half {number + 1}", frozenset(random.sample(groups, len(groups) // 2)))
    for model in sorted({group.model for group in groups}):
        yield Split(f"all of {model}", frozenset(group for group in groups if group.model == model))


def _row(split: Split, cases: list[Case]) -> tuple[str, ...]:
    recipes = next(one for one in FITS if one.tables == TABLES)
    found = fit(recipes, Fitted({}, {}), lambda case: _group(case) not in split.held_out)
    errors = np.abs(Batch(cases).predict(found.gpu, found.engine).seconds / measured_seconds(cases) - 1)
    cells = [split.name]
    for has_experts in (False, True):
        chosen = [_group(case) in split.held_out and (case.model.experts > 1) == has_experts for case in cases]
        left_out = errors[np.array(chosen)]
        cells += [f"{np.median(left_out):.1%}", f"{np.quantile(left_out, 0.9):.1%}"] if len(left_out) else ["", ""]
    return tuple(cell.replace("%", " %") for cell in cells)


def report() -> str:
    """Return the table in Markdown."""
    cases = [case for table in TABLES for case in read_cases(table)]
    header = ("left out", "dense: median error", "p90", "experts: median error", "p90")
    return markdown(header, [_row(split, cases) for split in splits(cases)])


def main() -> None:
    """Print the table; write it with --write."""
    run_report(report, "splits", __doc__)


if __name__ == "__main__":
    main()
