"""`refold attach`: follow a job until it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import JobArgument, connect, format_placement, format_reason, option, switch
from refold.cli.commands.logs import ENDED_STATES, POLL_SECONDS, OutputStream, format_end
from refold.cli.views import print_line, screen

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import JobStatus

DEFAULT_LINES = 20
"""Earlier lines of output that are shown."""

State = tuple[str, int]
"""State and number of runs of a job: what is shown again only when it has changed."""

RUNNING_STATES = ("running", "stopping")

UNKNOWN_EXIT_CODE = 1
"""Exit status for a job that ended without one: it was cancelled, or could not be started."""


def attach(
    job: JobArgument,
    lines: Annotated[int, option("N", "Number of earlier lines of output.", "--lines", "-n", min=0)] = DEFAULT_LINES,
    raw: Annotated[
        bool, switch("--raw", "Pass all control sequences to the terminal; only for output that you trust.")
    ] = False,
) -> None:
    """Follow a job until it ends: its output, and when it waits, starts, is requeued and ends.

    Exits with the exit status of the job, and with 1 if it has none. Ctrl-C detaches; the job continues. Changes of
    state are printed to standard error.

    Example: refold attach train-17
    """
    client = connect()
    status = client.job(job)
    try:
        status = _follow(client, status, lines, sanitized=sys.stdout.isatty() and not raw)
    except KeyboardInterrupt:
        print_line(f"\ndetached; {status.id} continues", err=True)
        raise
    raise typer.Exit(exit_code(status))


def exit_code(status: JobStatus) -> int:
    """Return the exit code of an ended job, or 1 if it has none."""
    return UNKNOWN_EXIT_CODE if status.exit_code is None else status.exit_code


def _follow(client: Client, status: JobStatus, lines: int, sanitized: bool) -> JobStatus:
    """Copy output and print changes of state until the job has ended; return its last status."""
    shown = None
    if status.state not in ENDED_STATES:
        shown = _print_state(status)
    stream = OutputStream(client, status.id, None, 0, lines, "", sanitized)
    try:
        return _copy_until_end(client, status.id, stream, shown)
    finally:
        stream.finish()


def _copy_until_end(client: Client, job: str, stream: OutputStream, shown: State | None) -> JobStatus:
    while True:
        if stream.poll():
            continue
        status = client.job(job)
        if stream.chunk.ended and status.runs > stream.chunk.run:
            stream.switch_to(stream.chunk.run + 1)
            continue
        is_copied = stream.chunk.ended or not status.runs
        if (is_copied or status.state in RUNNING_STATES) and (status.state, status.runs) != shown:
            shown = _print_state(status)
        if status.state in ENDED_STATES and is_copied:
            return status
        screen.sleep(POLL_SECONDS)


def _print_state(status: JobStatus) -> State:
    """Print 'train-17: waiting (Resources: …)', 'train-17: run 2 is running on n0 (GPU 1)', 'train-17: finished'."""
    if status.state in ENDED_STATES:
        text = format_end(status)
    elif status.state in RUNNING_STATES:
        text = f"run {status.runs} is {status.state} on {format_placement(status.placement)}"
    else:
        text = f"{status.state} {format_reason(status)}".rstrip()
    print_line(f"{status.id}: {text}", err=True)
    return status.state, status.runs
