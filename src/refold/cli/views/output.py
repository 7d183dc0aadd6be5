"""Output of commands: lines for people, JSON for programs, progress bars on a terminal for long operations.

Text may come from untrusted files, so control characters are removed before it is printed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Timer
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


PROGRESS_DELAY_SECONDS = 1.0
"""Duration of an operation after which its progress bar is shown."""

PIPE_WIDTH = 200
"""Line width of tables that are written to a file or a pipe."""

ERROR_COLOUR = "red"

_STYLE_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""SGR parameters of terminals."""


def printable(text: str) -> str:
    """Return the text on one line: white space becomes spaces, other control characters become �."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)


def print_line(text: str = "", *, err: bool = False, fg: str | None = None) -> None:
    """Print one line without control characters; on a terminal in a colour."""
    stream = sys.stderr if err else sys.stdout
    print(styled(printable(text), fg or "", stream), file=stream, flush=True)


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style such as 'bold red', if it is written to a terminal with colours."""
    codes = ";".join(str(_STYLE_CODES[word]) for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text and _has_colours(stream) else text


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_paragraph(text: str) -> None:
    """Print a text, wrapped to the line width."""
    from textwrap import wrap

    for line in wrap(text, output_width(), break_long_words=False):
        print_line(line)


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on the results, such as assumptions and skipped rows, to stderr."""
    for note in notes:
        print_line(f"note: {note}", err=True)


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: '1 job', '1,500 jobs'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_OF_SLOTS = ContextVar("of_slots", default=False)
_GPU = re.compile(r"(?<![-\w.])GPU(?=s?(?![-\w.]))")
"""The word GPU or GPUs, unless it is part of a name."""


def call_slots(of_slots: bool) -> None:
    """Choose what `resource_text` calls the resources of a cluster: slots if it shares CPU slots, else GPUs."""
    _OF_SLOTS.set(of_slots)


def resource_text(text: str) -> str:
    """Return a text about GPUs, with the word of the cluster: '2 slots' for '2 GPUs'."""
    return _GPU.sub("slot", text) if _OF_SLOTS.get() else text


def output_width() -> int:
    from shutil import get_terminal_size

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return get_terminal_size().columns
    return PIPE_WIDTH


_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that are valid in JSON strings but interpreted by terminals."""


def print_json(document: object) -> None:
    """Print a document of plain values, structs and dataclasses as indented JSON."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    print(text.translate(_ESCAPED))


def draw_bar(share: float, width: int = 24) -> str:
    """Draw a share from 0 to 1 as a bar: '██████▌'."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def format_percent(share: float) -> str:
    """Format a share as '12.3 %'."""
    return f"{share * 100:.1f} %"


def format_number(number: float) -> str:
    """Format '125,303'; non-integers below ten have one decimal."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"


class Advance(Protocol):
    """The function that `progress` yields: call it to advance the bar."""

    def __call__(self, amount: float = 1.0) -> None: ...


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Advance]:
    """Show a progress bar if stderr is a terminal and the operation takes longer than a second.

    Without a total the bar shows only activity.
    """
    delayed = _DelayedBar(description, total) if sys.stderr.isatty() else None
    try:
        yield delayed.advance if delayed else ignore_progress
    finally:
        if delayed:
            delayed.close()


def ignore_progress(amount: float = 1.0) -> None:
    """Do nothing: stands for `Advance` without a bar."""


class _DelayedBar:
    """A progress bar that a timer draws after a delay, whether or not the operation has advanced by then."""

    def __init__(self, description: str, total: float | None) -> None:
        self._description, self._total = description, total
        self._done = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._closed = False
        self._lock = Lock()
        self._timer = Timer(PROGRESS_DELAY_SECONDS, self._draw)
        self._timer.daemon = True
        self._timer.start()

    def advance(self, amount: float = 1.0) -> None:
        self._done += amount
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        with self._lock:
            if self._closed:
                return
            drawn = Progress(console=Console(stderr=True), transient=True)
            self._task = drawn.add_task(self._description, total=self._total)
            drawn.update(self._task, completed=self._done)
            drawn.start()
            self._bar = drawn

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
        if self._bar is not None:
            self._bar.stop()


def current_command_line() -> str:
    """Return the command line of this process, to be shown in reports."""
    return shlex.join(["refold", *sys.argv[1:]])


# Make the output of a job safe for a terminal: colours are passed through, other control sequences removed.

_SEQUENCE = re.compile(
    r"""
    (?P<colours>\x1b\[[0-9;:]{0,64}m)
    | \x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]                # CSI: cursor movement, screen erasure, terminal queries
    | \x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)  # OSC and similar: titles, clipboard, links
    | \x1b[ -/]*[0-~]?
    | [\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]
    """,
    re.VERBOSE,
)
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?)?\Z")
_RESET = "\x1b[0m"


class Sanitizer:
    """Sanitises output chunk by chunk; a control sequence may begin in one chunk and end in the next."""

    def __init__(self) -> None:
        self._incomplete = ""
        self._coloured = False

    def clean(self, text: str) -> str:
        """Return the next chunk without control sequences other than colours."""
        text = self._incomplete + text
        incomplete = _INCOMPLETE.search(text)
        self._incomplete = incomplete[0] if incomplete else ""
        complete = text[: len(text) - len(self._incomplete)]
        return _SEQUENCE.sub(self._keep_colours, complete)

    def _keep_colours(self, match: re.Match[str]) -> str:
        self._coloured = self._coloured or match["colours"] is not None
        return match["colours"] or ""

    @property
    def end(self) -> str:
        """The sequence that resets colours; empty if none were written."""
        return _RESET if self._coloured else ""
