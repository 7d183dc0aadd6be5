"""Output of commands: tables for people, JSON for programs, progress bars on a terminal for long operations.

Text may come from untrusted files, so control characters are removed before it is printed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table as RichTable

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
"""The --json option of all commands with output."""

PROGRESS_DELAY_SECONDS = 1.0
"""Duration of an operation after which its progress bar is shown."""

PIPE_WIDTH = 200
"""Line width of tables that are written to a file or a pipe."""

CONSOLE_WIDTH = 10_000
"""Line width passed to rich, so that it never wraps: column widths are computed here."""

MIN_TEXT_WIDTH = 24
"""Minimum width of a text column, unless its texts are shorter."""

COLUMN_GAP = 2
"""Characters between two columns."""

ERROR_COLOUR = typer.colors.RED


def printable(text: str) -> str:
    """Return the text on one line: white space becomes spaces, other control characters become �."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)


def print_line(text: str = "", *, err: bool = False, fg: str | None = None) -> None:
    """Print one line without control characters."""
    typer.secho(printable(text), fg=fg, err=err)


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on the results, such as assumptions and skipped rows, to stderr."""
    for note in notes:
        print_line(f"note: {note}", err=True)


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: '1 job', '1,500 jobs'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, and the text and style of its values. Numbers are aligned to the right.

    Values of `number` and `whole` columns (such as names) are never wrapped.
    """

    title: str
    text: Callable[[Any], str] = str
    number: bool = False
    style: Callable[[Any], str] = lambda _: ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print. `columns` are keyed as the values of the rows; the first column identifies the row.

    `after`: lines below the table.
    """

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    after: Sequence[str] = field(default=())


def print_tables(*tables: Table) -> None:
    """Print tables with their titles and the lines below each."""
    from textwrap import wrap

    from rich.console import Console
    from rich.text import Text

    width = output_width()
    console = Console(highlight=False, width=CONSOLE_WIDTH)
    for table in tables:
        if table.title:
            console.print(Text(printable(table.title), "bold"))
        layout = _Layout(table)
        for index, block in enumerate(layout.blocks(width)):
            if index:
                console.print()
            console.print(layout.draw(block, width))
        for line in table.after:
            # Words that are longer than a line, such as paths, stay whole.
            for part in wrap(printable(line), width, break_long_words=False, break_on_hyphens=False) or [""]:
                console.print(Text(part, "dim"))
        console.print()


class _Layout:
    """The layout of a table: column widths, and blocks of columns if the table is wider than a line."""

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._texts = {
            key: [printable(column.text(row[key])) for row in table.rows] for key, column in table.columns.items()
        }
        self._styles = {key: [column.style(row[key]) for row in table.rows] for key, column in table.columns.items()}
        self._min_widths = {key: self._min_width(key) for key in table.columns}
        self._max_widths = {key: _longest([*self._texts[key], column.title]) for key, column in table.columns.items()}

    def _min_width(self, key: str) -> int:
        """Return the minimum width of a column: titles and texts may be wrapped at spaces, numbers and names not."""
        column, texts = self._columns[key], self._texts[key]
        title = _longest(column.title.split())
        if column.number or column.whole:
            return max(title, _longest(texts))
        return max(
            title, _longest(word for text in texts for word in text.split()), min(_longest(texts), MIN_TEXT_WIDTH)
        )

    def blocks(self, width: int) -> list[list[str]]:
        """Split the columns into blocks that fit the line width; each block repeats the first column."""
        first, *others = self._columns
        blocks, used = [[first]], self._min_widths[first]
        for key in others:
            if len(blocks[-1]) > 1 and used + COLUMN_GAP + self._min_widths[key] > width:
                blocks.append([first])
                used = self._min_widths[first]
            blocks[-1].append(key)
            used += COLUMN_GAP + self._min_widths[key]
        return blocks

    def draw(self, block: Sequence[str], width: int) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        titled = any(self._columns[key].title for key in self._columns)
        drawn = RichTable(box=None, pad_edge=False, show_header=titled)
        for key, characters in self._widths(block, width).items():
            column = self._columns[key]
            drawn.add_column(
                column.title, justify="right" if column.number else "left", header_style="dim", width=characters
            )
        for cells in zip(*([*zip(self._texts[key], self._styles[key], strict=True)] for key in block), strict=True):
            drawn.add_row(*(Text(text, style) for text, style in cells))
        return drawn

    def _widths(self, block: Sequence[str], width: int) -> dict[str, int]:
        """Return the column widths: first the minimum of each, then the rest to columns that need the least more."""
        remaining = width - COLUMN_GAP * (len(block) - 1) - sum(self._min_widths[key] for key in block)
        widths = {key: self._min_widths[key] for key in block}
        for key in sorted(block, key=lambda key: self._max_widths[key] - self._min_widths[key]):
            extra = min(self._max_widths[key] - self._min_widths[key], max(0, remaining))
            widths[key] += extra
            remaining -= extra
        return widths


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(text) for text in texts), default=0)


def output_width() -> int:
    """Return the line width of the output."""
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
