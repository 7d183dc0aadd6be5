"""`refold logs`: what a job prints, so far and as it comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import AnyJob, daemon, reason_text
from refold.cli.views import AsJson, Sanitizer, print_json, say, screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from refold.api import JobStatus, Logs
    from refold.client import Client

LAST_LINES = 100
"""Lines that a terminal is shown, where nobody says."""

FIRST_LOOK, LARGEST_LOOK = 16 * 1024, 1024 * 1024
"""Bytes from the end in which the last lines are looked for: at first, and at most."""

LOOK_AGAIN_AFTER = 0.4
"""Seconds between two looks for more output."""

OVER = ("finished", "failed", "cancelled")

MOST_LOOKS_IN_VAIN = 150
"""How often in a row a daemon may not answer: a minute, if it is not there at all."""


def logs(
    job: AnyJob,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is to come, until it is over.")
    ] = False,
    run: Annotated[int | None, typer.Option("--run", min=1, help="Of this run [the last].")] = None,
    instance: Annotated[int | None, typer.Option("--instance", min=0, help="Of this instance [0].")] = None,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", min=0, help=f"Only the last so many [on a terminal {LAST_LINES}, else all]."),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all-instances", help="Of all instances, each line with the number of its own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a job has printed; with -f, also what it will, through all its runs until it is over.

    In a file or a pipe it is as it was printed. On a terminal colours are kept, and what would do more is left out.

    Examples: refold logs -f train-17 · refold logs train-17 --run 1 > first-run.txt
    """
    from refold.errors import BadInput

    if everybody and instance is not None:
        raise BadInput(f"--all-instances and --instance {instance} are two answers to one question: leave one out")
    if as_json and (follow or everybody):
        raise BadInput("--json is one document: leave --follow and --all-instances out, or ask the API")
    client, wanted = daemon(), lines if lines is not None else LAST_LINES if sys.stdout.isatty() else None
    if as_json:
        text, piece = _text_so_far(client, job, run, instance or 0, wanted)
        print_json({"job": job, "run": piece.run, "instance": piece.instance, "over": piece.over, "text": text})
        return
    if everybody and follow:
        _wait_for_start(client, job)
    numbers = list(range(client.job(job).instances)) if everybody else [instance or 0]
    streams = [_Stream(client, job, run, number, wanted, f"{number}: " if everybody else "") for number in numbers]
    if follow:
        _follow(client, job, streams, of_one_run=run is not None)
    for stream in streams:
        stream.finish()


def _wait_for_start(client: Client, job: str) -> None:
    """Until it is known how many instances there are."""
    told = False
    while not (status := client.job(job)).runs and status.state not in OVER:
        if not told:
            say(_not_yet_text(status), err=True)
            told = True
        screen.sleep(LOOK_AGAIN_AFTER)


def _not_yet_text(status: JobStatus) -> str:
    return f"{status.id} has not started yet {reason_text(status)}"


def _text_so_far(client: Client, job: str, run: int | None, instance: int, lines: int | None) -> tuple[str, Logs]:
    """All of it, or its last lines; and the piece that it ends with."""
    if lines is not None:
        return _last_lines(client, job, run, instance, lines)
    text, piece = [], client.piece_of_logs(job, run=run, instance=instance)
    while piece.text:
        text.append(piece.text)
        piece = client.piece_of_logs(job, run=piece.run, instance=instance, offset=piece.next)
    return "".join(text), piece


def _last_lines(client: Client, job: str, run: int | None, instance: int, lines: int) -> tuple[str, Logs]:
    look, before = FIRST_LOOK, -1
    while True:
        piece = client.piece_of_logs(job, run=run, instance=instance, offset=-look)
        found = piece.text.splitlines(keepends=True)
        if len(found) > lines or look >= LARGEST_LOOK or len(piece.text) == before:
            return "".join(found[len(found) - min(lines, len(found)) :]), piece
        look, before = look * 8, len(piece.text)


class _Stream:
    """The output of one instance, on its way to stdout."""

    def __init__(
        self, client: Client, job: str, run: int | None, instance: int, lines: int | None, before: str
    ) -> None:
        self._client, self._job, self._instance, self._before = client, job, instance, before
        self._harmless = Sanitizer() if sys.stdout.isatty() else None
        self._begun = ""
        self._patience = MOST_LOOKS_IN_VAIN
        text, self.piece = _text_so_far(client, job, run, instance, lines)
        self._write(text)

    def look(self) -> bool:
        """Whether there was more. A daemon that does not answer is expected back, for a while."""
        from refold.errors import NoDaemon

        now = self.piece
        try:
            self.piece = self._client.piece_of_logs(
                self._job, run=now.run or None, instance=self._instance, offset=now.next if now.run else 0
            )
        except NoDaemon:
            self._patience -= 1
            if not self._patience:
                raise
            return False
        self._patience = MOST_LOOKS_IN_VAIN
        self._write(self.piece.text)
        return bool(self.piece.text)

    def go_on_with(self, run: int) -> None:
        """From the beginning of another run."""
        self.piece = self._client.piece_of_logs(self._job, run=run, instance=self._instance)
        self._write(self.piece.text)

    def _write(self, text: str) -> None:
        if self._harmless is not None:
            text = self._harmless.of(text)
        if not self._before:
            sys.stdout.write(text)
        else:
            *whole, self._begun = (self._begun + text).split("\n")
            sys.stdout.writelines(f"{self._before}{line}\n" for line in whole)
        sys.stdout.flush()

    def finish(self) -> None:
        """Whatever had no end of its own."""
        if self._begun:
            sys.stdout.write(f"{self._before}{self._begun}\n")
        if self._harmless is not None:
            sys.stdout.write(self._harmless.end)
        sys.stdout.flush()


def _follow(client: Client, job: str, streams: list[_Stream], of_one_run: bool) -> None:
    for status in _until_over(client, job, streams, of_one_run):
        if not streams[0].piece.run:
            say(_not_yet_text(status), err=True)
        elif of_one_run or status.state in OVER:
            say(f"{status.id} {_end_text(status)}", err=True)
        else:
            say(f"{status.id}: run {streams[0].piece.run} has ended {reason_text(status)}", err=True)


def _until_over(client: Client, job: str, streams: list[_Stream], of_one_run: bool) -> Iterator[JobStatus]:
    """Write what comes. How the job stands is handed out when a run has not begun, has ended, and at the end."""
    told = -1
    while True:
        more = [stream.look() for stream in streams]
        piece = streams[0].piece
        if not any(more) and (piece.over or not piece.run):
            status = client.job(job)
            if not of_one_run and status.runs > piece.run > 0:
                for stream in streams:
                    stream.go_on_with(piece.run + 1)
                continue
            over = status.state in OVER or (of_one_run and piece.over)
            if over or told != piece.run:
                told = piece.run
                yield status
            if over:
                return
        if not any(more):
            screen.sleep(LOOK_AGAIN_AFTER)


def _end_text(status: JobStatus) -> str:
    told = "is stopped" if status.state not in OVER else status.state
    return f"{told}: {status.why}" if status.why else told
