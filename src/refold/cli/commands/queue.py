"""`refold queue`: show jobs, why they wait and when they may start; of the daemon, or at a time of a journal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from refold.cli import TenantFilter, UserFilter, argument, make_client, option, require_option, switch
from refold.cli.inputs import NOW, Arrivals, AtTime, ForecastOptions, FutureCount, FutureSeed
from refold.cli.views import DEFAULT_LIMIT, AsJson, refresh_screen
from refold.errors import BadInput

REFRESH_SECONDS = 2.0
"""Refresh interval of --watch."""


def queue(
    journal: Annotated[Path | None, argument("JOURNAL", "Read this journal instead of asking the daemon.")] = None,
    at: AtTime = None,
    start: Annotated[bool, switch("--start", "Show when jobs may start.")] = False,
    futures: FutureCount = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    running: Annotated[
        bool, switch("--running", "With JOURNAL: show running jobs as well, and when they may end.")
    ] = False,
    tenant: TenantFilter = None,
    user: UserFilter = None,
    limit: Annotated[
        int | None, option("JOBS", f"Maximum number of jobs (default: {DEFAULT_LIMIT}; in a journal all).", min=1)
    ] = None,
    show_all: Annotated[bool, switch("--all", "Show all jobs.")] = False,
    watch: Annotated[bool, switch("--watch", "Refresh every two seconds until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show jobs, why they wait and when they may start (--start); of the daemon, or at a time of a journal.

    Start estimates are those of the daemon, or of the journal. If there are none, or with --futures, the policy is
    simulated in several futures, each with random run times drawn from their predicted distributions. The estimate is
    the median of the futures, the range their 5th to 95th percentile.

    Examples: refold queue · refold queue --start --watch · refold queue out/journal.jsonl --at 2h
    """
    start = start or futures is not None
    if arrivals and not start:
        raise BadInput("--arrivals needs --start: it applies to start estimates")
    if watch and as_json:
        raise BadInput("--watch cannot be combined with --json")
    if show_all and limit is not None:
        raise BadInput(f"--all and --limit {limit} exclude each other: leave one of them out")
    forecast = ForecastOptions(start, futures, arrivals, seed)
    if journal is None:
        from refold.cli.views import live_queue

        require_option(
            "JOURNAL", {"--at": at, "--running": running or None}, "the daemon's queue is always the current one"
        )
        max_jobs = None if show_all else limit or DEFAULT_LIMIT
        live_options = live_queue.LiveQueueOptions(forecast, tenant or "", user or "", max_jobs)
        paint = partial(live_queue.print_live_queue, make_client(), live_options, as_json)
    else:
        from refold.cli.views import journal_queue

        if watch and at is not None:
            raise BadInput("--watch shows the end of the journal and cannot be combined with --at")
        require_option("the daemon", {"--tenant": tenant, "--user": user}, "journals are shown unfiltered")
        journal_options = journal_queue.JournalQueueOptions(forecast, running, limit)
        paint = partial(journal_queue.print_journal_queue, journal, NOW if watch else at, journal_options, as_json)
    if watch:
        refresh_screen(paint, REFRESH_SECONDS)
    paint()
