"""The parts of a history: slices on which settings are tried, and the later part on which they are reported."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from refold.errors import BadInput
from refold.model import Seconds

MAX_SLICES = 8
MIN_SLICE_JOBS = 50
WARM_UP = 0.25
"""Jobs that are simulated before those that are measured, as a share of these: the cluster is not empty."""

MIN_JOBS = 2 * MIN_SLICE_JOBS


class HistoryPart(NamedTuple):
    """Jobs of a history by number: those from `first` up to `last` are simulated, those from `measured` on measured."""

    first: int
    measured: int
    last: int

    @property
    def simulated(self) -> int:
        """Number of simulated jobs."""
        return self.last - self.first


class Split(NamedTuple):
    """The slices of the tuning part, and the report part, whose measured jobs are submitted after all of theirs."""

    slices: tuple[HistoryPart, ...]
    report: HistoryPart


def split_history(submitted: Sequence[Seconds], report_share: float) -> Split:
    """Split the jobs of a history, which are sorted by submission; the last `report_share` of them are reported."""
    if len(submitted) < MIN_JOBS:
        raise BadInput(f"expected a history of at least {MIN_JOBS} jobs, found {len(submitted)}")
    begin = round(len(submitted) * (1 - report_share))
    while begin < len(submitted) and submitted[begin] <= submitted[begin - 1]:
        begin += 1  # jobs that are submitted at once belong to one part
    if not MIN_SLICE_JOBS <= begin <= len(submitted) - MIN_SLICE_JOBS:
        raise BadInput(
            f"of {len(submitted)} jobs, the first {begin} would be for tuning and the others for the report, expected "
            f"at least {MIN_SLICE_JOBS} each; jobs that are submitted at the same time are not divided"
        )
    count = MAX_SLICES
    while begin // count < MIN_SLICE_JOBS:
        count //= 2
    edges = [begin * number // count for number in range(count + 1)]
    slices = tuple(_part(first, last) for first, last in pairwise(edges))
    return Split(slices, _part(begin, len(submitted)))


def _part(first: int, last: int) -> HistoryPart:
    return HistoryPart(max(0, first - round((last - first) * WARM_UP)), first, last)
