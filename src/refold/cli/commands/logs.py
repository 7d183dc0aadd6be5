"""`refold logs`: show job output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from refold.cli import JobArgument, connect, format_reason, option, switch
from refold.cli.views import AsJson, Sanitizer, print_json, print_line, screen
from refold.errors import BadInput, NoDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from refold.client import Client
    from refold.client.api import JobStatus, Logs

DEFAULT_LINES = 100
"""Lines shown on a terminal without --lines."""

FIRST_TAIL_BYTES, MAX_TAIL_BYTES = 16 * 1024, 1024 * 1024
"""Bytes from the end that are searched for the last lines: at first, and at most."""

POLL_SECONDS = 0.4
"""Interval at which new output is requested."""

ENDED_STATES = ("finished", "failed", "timed out", "cancelled")

MAX_FAILED_POLLS = 150
"""Consecutive requests that may fail before following ends: about a minute."""


def logs(
    job: JobArgument,
    follow: Annotated[bool, switch("--follow", "Show new output until the job ends.", "-f")] = False,
    run: Annotated[int | None, option("N", "Run number (default: the last).", min=1)] = None,
    instance: Annotated[int | None, option("N", "Instance number (default: 0).", min=0)] = None,
    lines: Annotated[
        int | None,
        option(
            "N", f"Number of last lines (default: {DEFAULT_LINES} on a terminal, else all).", "--lines", "-n", min=0
        ),
    ] = None,
    all_instances: Annotated[
        bool, switch("--all-instances", "Show all instances; lines start with the instance number.")
    ] = False,
    raw: Annotated[
        bool, switch("--raw", "Pass all control sequences to the terminal; only for output that you trust.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show job output; with -f, also new output of this and later runs until the job ends.

    On a terminal, control sequences other than colours are removed (--raw keeps them); files and pipes get the output
    unchanged.

    Examples: refold logs -f train-17 · refold logs train-17 --run 1 > first-run.txt
    """
    if all_instances and instance is not None:
        raise BadInput(f"--all-instances and --instance {instance} exclude each other: leave one of them out")
    if as_json and (follow or all_instances):
        raise BadInput("--json cannot be combined with --follow or --all-instances; use the API instead")
    client, max_lines = connect(), lines if lines is not None else DEFAULT_LINES if sys.stdout.isatty() else None
    if as_json:
        text, chunk = _read_text(client, job, run, instance or 0, max_lines)
        print_json({"job": job, "run": chunk.run, "instance": chunk.instance, "ended": chunk.ended, "text": text})
        return
    if all_instances and follow:
        _wait_for_start(client, job)
    numbers = list(range(client.job(job).instances)) if all_instances else [instance or 0]
    sanitized = sys.stdout.isatty() and not raw
    streams = [
        OutputStream(client, job, run, n, max_lines, f"{n}: " if all_instances else "", sanitized) for n in numbers
    ]
    if follow:
        _follow(client, job, streams, one_run=run is not None)
    for stream in streams:
        stream.finish()


def _wait_for_start(client: Client, job: str) -> None:
    """Wait until the job has started, so that its number of instances is known."""
    printed = False
    while not (status := client.job(job)).runs and status.state not in ENDED_STATES:
        if not printed:
            print_line(_format_not_started(status), err=True)
            printed = True
        screen.sleep(POLL_SECONDS)


def _format_not_started(status: JobStatus) -> str:
    return f"{status.id} has not started yet {format_reason(status)}"


def _read_text(client: Client, job: str, run: int | None, instance: int, lines: int | None) -> tuple[str, Logs]:
    """Return the output so far, or its last lines, and the last chunk read."""
    if lines is not None:
        return _read_last_lines(client, job, run, instance, lines)
    text, chunk = [], client.read_logs(job, run=run, instance=instance)
    while chunk.text:
        text.append(chunk.text)
        chunk = client.read_logs(job, run=chunk.run, instance=instance, offset=chunk.next)
    return "".join(text), chunk


def _read_last_lines(client: Client, job: str, run: int | None, instance: int, lines: int) -> tuple[str, Logs]:
    size, previous_length = FIRST_TAIL_BYTES, -1
    while True:
        chunk = client.read_logs(job, run=run, instance=instance, offset=-size)
        found = chunk.text.splitlines(keepends=True)
        if len(found) > lines or size >= MAX_TAIL_BYTES or len(chunk.text) == previous_length:
            return "".join(found[len(found) - min(lines, len(found)) :]), chunk
        size, previous_length = size * 8, len(chunk.text)


class OutputStream:
    """Copies the output of one instance to stdout. `chunk`: the last chunk read."""

    def __init__(
        self, client: Client, job: str, run: int | None, instance: int, lines: int | None, prefix: str, sanitized: bool
    ) -> None:
        self._client, self._job, self._instance, self._prefix = client, job, instance, prefix
        self._sanitizer = Sanitizer() if sanitized else None
        self._incomplete_line = ""
        self._attempts_left = MAX_FAILED_POLLS
        text, self.chunk = _read_text(client, job, run, instance, lines)
        self._write(text)

    def poll(self) -> bool:
        """Copy new output and return whether there was any. Retry for a while if the daemon does not answer."""
        last = self.chunk
        try:
            self.chunk = self._client.read_logs(
                self._job, run=last.run or None, instance=self._instance, offset=last.next if last.run else 0
            )
        except NoDaemon:
            self._attempts_left -= 1
            if not self._attempts_left:
                raise
            return False
        self._attempts_left = MAX_FAILED_POLLS
        self._write(self.chunk.text)
        return bool(self.chunk.text)

    def switch_to(self, run: int) -> None:
        """Continue with another run, from its beginning."""
        self.chunk = self._client.read_logs(self._job, run=run, instance=self._instance)
        self._write(self.chunk.text)

    def _write(self, text: str) -> None:
        if self._sanitizer is not None:
            text = self._sanitizer.clean(text)
        if not self._prefix:
            sys.stdout.write(text)
        else:
            *lines, self._incomplete_line = (self._incomplete_line + text).split("\n")
            sys.stdout.writelines(f"{self._prefix}{line}\n" for line in lines)
        sys.stdout.flush()

    def finish(self) -> None:
        """Write an incomplete last line and reset colours."""
        if self._incomplete_line:
            sys.stdout.write(f"{self._prefix}{self._incomplete_line}\n")
        if self._sanitizer is not None:
            sys.stdout.write(self._sanitizer.end)
        sys.stdout.flush()


def _follow(client: Client, job: str, streams: list[OutputStream], one_run: bool) -> None:
    for status in _copy_until_end(client, job, streams, one_run):
        if not streams[0].chunk.run:
            print_line(_format_not_started(status), err=True)
        elif one_run or status.state in ENDED_STATES:
            print_line(f"{status.id} {format_end(status)}", err=True)
        else:
            print_line(f"{status.id}: run {streams[0].chunk.run} has ended {format_reason(status)}", err=True)


def _copy_until_end(client: Client, job: str, streams: list[OutputStream], one_run: bool) -> Iterator[JobStatus]:
    """Copy new output until the job, or the one run, ends; yield the job's status before and after each run."""
    reported_run = -1
    while True:
        new_output = [stream.poll() for stream in streams]
        chunk = streams[0].chunk
        if not any(new_output) and (chunk.ended or not chunk.run):
            status = client.job(job)
            if not one_run and status.runs > chunk.run > 0:
                for stream in streams:
                    stream.switch_to(chunk.run + 1)
                continue
            ended = status.state in ENDED_STATES or (one_run and chunk.ended)
            if ended or reported_run != chunk.run:
                reported_run = chunk.run
                yield status
            if ended:
                return
        if not any(new_output):
            screen.sleep(POLL_SECONDS)


def format_end(status: JobStatus) -> str:
    """Format how a job, or its last run, ended: 'finished', 'failed: exit 1'."""
    state = "stopped" if status.state not in ENDED_STATES else status.state
    return f"{state}: {status.message}" if status.message else state
