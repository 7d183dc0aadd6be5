"""One way to print: tables for people, JSON for programs; progress on a terminal, and only when it takes long."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
"""The option that every command with output has."""

SHOW_PROGRESS_AFTER = 1.0
"""Seconds of work after which people want to know that something happens."""

WIDE_ENOUGH = 200
"""How wide a table may be that goes to a file or a pipe: nothing there needs to fit a screen."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, how its values read and look, and whether they are numbers (set to the right)."""

    title: str
    text: Callable[[Any], str] = str
    number: bool = False
    style: Callable[[Any], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people. `columns` by the key under which each row holds its value."""

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    after: Sequence[str] = field(default=())


def print_tables(*tables: Table) -> None:
    """Tables for people, with whatever lines belong under each."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False, width=output_width())
    for table in tables:
        if table.title:
            console.print(Text(table.title, "bold"))
        titled = any(column.title for column in table.columns.values())
        drawn = RichTable(box=None, pad_edge=False, show_header=titled)
        for column in table.columns.values():
            drawn.add_column(column.title, justify="right" if column.number else "left", header_style="dim")
        for row in table.rows:
            cells = ((column, row[key]) for key, column in table.columns.items())
            drawn.add_row(*(Text(column.text(value), column.style(value)) for column, value in cells))
        console.print(drawn)
        for line in table.after:
            console.print(Text(line, "dim"))
        console.print()


def output_width() -> int:
    """How many characters a line of output may have."""
    from shutil import get_terminal_size

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return get_terminal_size().columns
    return WIDE_ENOUGH


def print_json(document: object) -> None:
    """The same for programs. Nouns of ours are written as they are; nothing else may be in it."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def bar(share: float, width: int = 24) -> str:
    """A share of 0 to 1 as a bar: '██████▌'."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def percent(share: float) -> str:
    """'12.3 %'."""
    return f"{share * 100:.1f} %"


def count(number: float) -> str:
    """'125,303'; numbers under ten keep one digit after the point."""
    return f"{number:,.1f}" if number < 10 and number != int(number) else f"{number:,.0f}"


class Advance(Protocol):
    """What `progress` hands out: call it when something is done."""

    def __call__(self, amount: float = 1.0) -> None: ...


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Advance]:
    """A bar on stderr, on a terminal, once the work has taken a second; anywhere else, nothing.

    Without a total it only shows that work goes on.
    """
    late = _LateBar(description, total) if sys.stderr.isatty() else None
    try:
        yield late.advance if late else nobody_looks
    finally:
        if late:
            late.close()


def nobody_looks(amount: float = 1.0) -> None:
    """What to call where there is no bar."""


class _LateBar:
    """A progress bar that is drawn only when it is needed, also if the work has nothing to tell until then."""

    def __init__(self, description: str, total: float | None) -> None:
        self._description, self._total = description, total
        self._done = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._closed = False
        self._lock = Lock()
        self._timer = Timer(SHOW_PROGRESS_AFTER, self._draw)
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
            bar = Progress(console=Console(stderr=True), transient=True)
            self._task = bar.add_task(self._description, total=self._total)
            bar.update(self._task, completed=self._done)
            bar.start()
            self._bar = bar

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
        if self._bar is not None:
            self._bar.stop()


def typed_command() -> str:
    """The command as it was typed, for those who want to make the same again."""
    return shlex.join(["refold", *sys.argv[1:]])
