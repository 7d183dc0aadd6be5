"""FIFO compared with AccaSim on three slices."""

from __future__ import annotations

from benchmarks.cases.with_accasim import rows_of
from benchmarks.table import Row


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second of both, and the speed-up."""
    return rows_of("fifo", quick)
