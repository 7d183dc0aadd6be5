"""`refold queue`: who runs, who waits, why, and when they may start; of the daemon, or at a moment of a journal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from refold.cli import OfTenant, OfUser, daemon, refuse_without
from refold.cli.inputs import NOW, Arrivals, AtMoment, ForecastOptions, FutureSeed, InFutures
from refold.cli.views import AsJson, journal_queue, live_queue, paint_again

LOOK_AGAIN_AFTER = 2.0
"""Seconds between two looks of --watch."""

SHOWN = 50
"""Jobs of the daemon's queue that are listed, where nobody says."""


def queue(
    journal: Annotated[
        Path | None,
        typer.Argument(metavar="JOURNAL", help="Ask this file instead of the daemon; it may still be written."),
    ] = None,
    at: AtMoment = None,
    start: Annotated[bool, typer.Option("--start", help="Say when they may start.")] = False,
    futures: InFutures = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    running: Annotated[
        bool, typer.Option("--running", help="Of a journal: list who runs as well, and when that may end.")
    ] = False,
    tenant: OfTenant = None,
    user: OfUser = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="JOBS", help=f"Only so many, the first ones [of the daemon: {SHOWN}]."),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List who runs and who waits, since when and why; with --start, when they may start.

    The daemon is asked, or a journal, at a moment of it. What the policy has promised is told as it was. To whom it has
    promised nothing, or with --futures to everybody, the policy's own further decisions are told: it goes on from there
    in several futures, in which every job takes as long as was drawn from what is predicted of it. The times are half
    of the futures', and bounds for 5 % and 95 % of them.

    Examples: refold queue · refold queue --start --watch · refold queue out/journal.jsonl --at 2h
    """
    from refold.errors import BadInput

    start = start or futures is not None
    if arrivals and not start:
        raise BadInput("--arrivals needs --start: it is about when jobs may start")
    if watch and as_json:
        raise BadInput("--watch looks again and again, for people: leave --json out")
    if everybody and limit is not None:
        raise BadInput(f"--all and --limit {limit} are two answers to one question: leave one of them out")
    ahead = ForecastOptions(start, futures, arrivals, seed)
    if journal is None:
        refuse_without("JOURNAL", {"--at": at, "--running": running or None}, "the daemon tells who runs now, always")
        of_daemon = live_queue.LiveQueueOptions(ahead, tenant or "", user or "", None if everybody else limit or SHOWN)
        paint = partial(live_queue.show_daemon, daemon(), of_daemon, as_json)
    else:
        if watch and at is not None:
            raise BadInput("--watch looks at the end of the journal, again and again: leave --at out")
        refuse_without("the daemon", {"--tenant": tenant, "--user": user}, "a journal is told whole")
        of_journal = journal_queue.JournalQueueOptions(ahead, running, limit)
        paint = partial(journal_queue.show_journal, journal, NOW if watch else at, of_journal, as_json)
    if watch:
        paint_again(paint, LOOK_AGAIN_AFTER)
    paint()
