"""Options of `queue` and `whatif` for times of a journal and simulated futures."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.inputs.forecast_options import DEFAULT_FUTURES, MAX_FUTURES

AtTime = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="Time in the journal, such as 2d3h or 02:30:00, or 'now' (default: end)."
    ),
]
FutureCount = Annotated[
    int | None,
    typer.Option(
        "--futures",
        min=1,
        max=MAX_FUTURES,
        metavar="N",
        help=f"Number of simulated futures (default: {DEFAULT_FUTURES}).",
    ),
]
Arrivals = Annotated[
    bool, typer.Option("--arrivals", help="Simulate new jobs that arrive as in the past (default: no new jobs).")
]
FutureSeed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**62, help="Random seed of the futures.")]
