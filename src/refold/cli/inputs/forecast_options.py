"""How start estimates are made: shared by `queue` and `whatif`."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

DEFAULT_FUTURES = 40
"""Number of simulated futures without --futures."""

MAX_FUTURES = 10_000

MAX_WAITING_FOR_FUTURES = 1_000
"""With more jobs waiting in the daemon, its policy is simulated only on request."""

MAX_LIVE_SECONDS = 0.5
"""Time for simulating futures of the daemon without --futures. At least one is simulated."""

NO_ARRIVALS_NOTE = "estimates assume no new jobs; jobs submitted later may start first (--arrivals simulates them)"
ARRIVALS_NOTE = "estimates assume that new jobs arrive as in the past"


class ForecastOptions(NamedTuple):
    """Whether to estimate when jobs start, and how.

    `futures`: the number of simulated futures; None: simulate only for jobs without an estimate by the policy.
    """

    enabled: bool = False
    futures: int | None = None
    arrivals: bool = False
    seed: int = 0

    @property
    def future_count(self) -> int:
        return self.futures or DEFAULT_FUTURES

    def time_limit(self, is_live: bool) -> float:
        """Return for how long to simulate, in seconds. A number that was given, and that of a journal, is simulated."""
        return MAX_LIVE_SECONDS if self.futures is None and is_live else inf

    @property
    def note(self) -> str:
        """The assumption about arrivals, to print with the estimates."""
        return ARRIVALS_NOTE if self.arrivals else NO_ARRIVALS_NOTE
