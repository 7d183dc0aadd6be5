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
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar

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


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table: its title, and the text and style of a row in it. Numbers are aligned to the right.

    Texts of `number` and `whole` columns (such as names) are never wrapped.
    """

    title: str
    text: Callable[[Row], str]
    number: bool = False
    style: Callable[[Row], str] = lambda _: ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print; the first column identifies the row. `after`: lines below the table."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    after: Sequence[str] = field(default=())


def fact_table(title: str, facts: Mapping[str, str], after: Sequence[str] = (), *, numbers: bool = False) -> Table:
    """Return a table of names and their values, without those that are empty."""
    columns: list[Column[tuple[str, str]]] = [
        Column("", lambda fact: fact[0], whole=True),
        Column("", lambda fact: fact[1], number=numbers),
    ]
    return Table(title, columns, [fact for fact in facts.items() if fact[1]], after)


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
    """The layout of a table: column widths, and blocks of columns if the table is wider than a line.

    Columns are given by their indices.
    """

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._texts = [[printable(column.text(row)) for row in table.rows] for column in table.columns]
        self._styles = [[column.style(row) for row in table.rows] for column in table.columns]
        self._min_widths = [_min_width(*one) for one in zip(table.columns, self._texts, strict=True)]
        self._max_widths = [
            _longest([*texts, column.title]) for column, texts in zip(table.columns, self._texts, strict=True)
        ]

    def blocks(self, width: int) -> list[list[int]]:
        """Split the columns into blocks that fit the line width; each block repeats the first column."""
        blocks, used = [[0]], self._min_widths[0]
        for index, min_width in enumerate(self._min_widths[1:], start=1):
            if len(blocks[-1]) > 1 and used + COLUMN_GAP + min_width > width:
                blocks.append([0])
                used = self._min_widths[0]
            blocks[-1].append(index)
            used += COLUMN_GAP + min_width
        return blocks

    def draw(self, block: Sequence[int], width: int) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(box=None, pad_edge=False, show_header=any(column.title for column in self._columns))
        for index, characters in self._widths(block, width).items():
            column = self._columns[index]
            drawn.add_column(
                column.title, justify="right" if column.number else "left", header_style="dim", width=characters
            )
        for cells in zip(*(zip(self._texts[index], self._styles[index], strict=True) for index in block), strict=True):
            drawn.add_row(*(Text(text, style) for text, style in cells))
        return drawn

    def _widths(self, block: Sequence[int], width: int) -> dict[int, int]:
        """Return the column widths: first the minimum of each, then the rest to columns that need the least more."""
        widths = {index: self._min_widths[index] for index in block}
        missing = {index: self._max_widths[index] - self._min_widths[index] for index in block}
        remaining = width - COLUMN_GAP * (len(block) - 1) - sum(widths.values())
        for index in sorted(block, key=missing.__getitem__):
            extra = min(missing[index], max(0, remaining))
            widths[index] += extra
            remaining -= extra
        return widths


def _min_width(column: Column[Any], texts: Sequence[str]) -> int:
    """Return the minimum width of a column: titles and texts may be wrapped at spaces, numbers and names not."""
    title = _longest(column.title.split())
    if column.number or column.whole:
        return max(title, _longest(texts))
    return max(title, _longest(word for text in texts for word in text.split()), min(_longest(texts), MIN_TEXT_WIDTH))


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
