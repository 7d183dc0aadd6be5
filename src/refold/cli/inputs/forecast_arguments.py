"""Options of `queue` and `whatif` for times of a journal and simulated futures."""

from __future__ import annotations

from typing import Annotated

from refold.cli import option, switch
from refold.cli.inputs.forecast_options import DEFAULT_FUTURES, MAX_FUTURES

AtTime = Annotated[
    str | None, option("TIME", "Time in the journal, such as 2d3h or 02:30:00, or 'now' (default: end).", "--at")
]
FutureCount = Annotated[
    int | None,
    option("N", f"Number of simulated futures (default: {DEFAULT_FUTURES}).", "--futures", min=1, max=MAX_FUTURES),
]
Arrivals = Annotated[bool, switch("--arrivals", "Simulate new jobs that arrive as in the past (default: no new jobs).")]
FutureSeed = Annotated[int, option("N", "Random seed of the futures.", "--seed", min=0, max=2**62)]
