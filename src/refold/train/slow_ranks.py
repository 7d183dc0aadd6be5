"""Which ranks of a training are slower than the others, from what each has measured of its own work. No clock, no I/O.

Ranks wait for each other in every step, so that all steps of a training are equally slow. What a rank does alone is
compared: it loads its part of a batch, and computes where no communication makes it wait.
"""

from __future__ import annotations

from statistics import median

import msgspec

from refold.model import Seconds

FORWARD = "the forward pass"
LOADING = "loading a batch"
PROBE = "a matrix product"
"""Measured where passes of the model include communication: a product of fixed size."""

SLOW = 1.5
"""A rank is slow if a part of its steps takes so many times as long as the median of the others; below that, it is
not slow any more."""

MIN_SHARE = 0.05
"""A part of a step counts if a slow rank loses at least this share of the step with it."""

ROUNDS = 4
"""In how many consecutive rounds of reports a rank must be slow."""


class RankTimes(msgspec.Struct, frozen=True, tag=True):
    """From a rank: the mean time of its last steps, and the shortest time of each part that it does alone."""

    rank: int
    step: Seconds
    parts: dict[str, Seconds]


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that is slower than the others: `part` of its steps takes `ratio` times as long."""

    rank: int
    part: str
    ratio: float

    def __str__(self) -> str:
        return f"rank {self.rank} is slow: {self.part} takes {self.ratio:.1f} × as long as on the other ranks"


class SlowRanks:
    """Compares the reports of the ranks of one generation."""

    def __init__(self) -> None:
        self._ranks = 0
        self._round: dict[int, RankTimes] = {}
        self._counts: dict[int, int] = {}

    def is_complete_with(self, times: RankTimes, ranks: int) -> bool:
        """Note a report; return whether all ranks have sent one. Those of another number of ranks are forgotten."""
        if ranks != self._ranks:
            self._ranks, self._round, self._counts = ranks, {}, {}
        self._round[times.rank] = times
        return len(self._round) >= ranks

    def slowest(self) -> SlowRank | None:
        """Return the slowest rank of this round, if it has been slow for long enough; begin the next round."""
        found = [slow for rank in self._round if (slow := self._compare(rank)) is not None]
        self._round = {}
        self._counts = {slow.rank: self._counts.get(slow.rank, 0) + 1 for slow in found}
        lasting = [slow for slow in found if self._counts[slow.rank] >= ROUNDS]
        return max(lasting, key=lambda slow: slow.ratio, default=None)

    def _compare(self, rank: int) -> SlowRank | None:
        own, others = self._round[rank], [times for other, times in self._round.items() if other != rank]
        ratios = [
            SlowRank(rank, part, seconds / usual)
            for part, seconds in own.parts.items()
            if (known := [times.parts[part] for times in others if part in times.parts])
            and (usual := median(known)) > 0
            and (part == PROBE or seconds - usual >= MIN_SHARE * own.step)
        ]
        slowest = max(ratios, key=lambda slow: slow.ratio, default=None)
        return slowest if slowest is not None and slowest.ratio >= SLOW else None
