"""One way to print: tables for people, JSON for programs; progress on a terminal, and only when it takes long.

What is printed may come from anybody's file, so nothing in it reaches a terminal but what can be printed.
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
"""The option that every command with output has."""

SHOW_PROGRESS_AFTER = 1.0
"""Seconds of work after which people want to know that something happens."""

WIDE_ENOUGH = 200
"""How wide a table may be that goes to a file or a pipe: nothing there needs to fit a screen."""


NEVER_CUT = 10_000
"""How wide rich may think the output is: how wide columns are is known here."""

READABLE = 24
"""How many characters a text has on a line at least, if it has so many."""

GAP = 2
"""Characters between two columns."""

ERROR = typer.colors.RED


def printable(text: str) -> str:
    """The text on one line and without what a terminal would obey: spaces of all kinds are spaces, the rest is �."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one.isspace() else "�" for one in text)


def say(text: str = "", *, err: bool = False, fg: str | None = None) -> None:
    """One line for people."""
    typer.secho(printable(text), fg=fg, err=err)


def tell(notes: Sequence[str]) -> None:
    """What a person should know before believing the results; on stderr."""
    for note in notes:
        say(f"note: {note}", err=True)


def plural(number: int, noun: str) -> str:
    """'1 job', '1,500 jobs'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, how its values read and look, and whether they are numbers (set to the right).

    Numbers are never broken, nor is what is `whole`, such as a name.
    """

    title: str
    text: Callable[[Any], str] = str
    number: bool = False
    style: Callable[[Any], str] = lambda _: ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people. `columns` by the key under which each row holds its value; the first says what a row is."""

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    after: Sequence[str] = field(default=())


def print_tables(*tables: Table) -> None:
    """Tables for people, with whatever lines belong under each."""
    from rich.console import Console
    from rich.text import Text

    width = output_width()
    console = Console(highlight=False, width=NEVER_CUT)
    for table in tables:
        if table.title:
            console.print(Text(printable(table.title), "bold"))
        laid_out = _Layout(table)
        for place, block in enumerate(laid_out.blocks(width)):
            if place:
                console.print()
            console.print(laid_out.drawn(block, width))
        for line in table.after:
            console.print(Text(printable(line), "dim"))
        console.print()


class _Layout:
    """How wide the columns of a table get, and which of them stand side by side."""

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._texts = {
            key: [printable(column.text(row[key])) for row in table.rows] for key, column in table.columns.items()
        }
        self._styles = {key: [column.style(row[key]) for row in table.rows] for key, column in table.columns.items()}
        self._least = {key: self._least_width(key) for key in table.columns}
        self._most = {key: max(_longest(self._texts[key]), len(column.title)) for key, column in table.columns.items()}

    def _least_width(self, key: str) -> int:
        """Titles are broken between words if need be, and so are texts, but not numbers and names."""
        column, texts = self._columns[key], self._texts[key]
        title = _longest(column.title.split())
        if column.number or column.whole:
            return max(title, _longest(texts))
        return max(title, _longest(word for text in texts for word in text.split()), min(_longest(texts), READABLE))

    def blocks(self, width: int) -> list[list[str]]:
        """The columns in order, parted where a line has no room for more; each part begins with the first column."""
        first, *others = self._columns
        blocks, used = [[first]], self._least[first]
        for key in others:
            if len(blocks[-1]) > 1 and used + GAP + self._least[key] > width:
                blocks.append([first])
                used = self._least[first]
            blocks[-1].append(key)
            used += GAP + self._least[key]
        return blocks

    def drawn(self, block: Sequence[str], width: int) -> RichTable:
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
        """What each would like to have, if there is room; else what it needs, and texts share what is left."""
        left = width - GAP * (len(block) - 1) - sum(self._least[key] for key in block)
        widths = {key: self._least[key] for key in block}
        for key in sorted(block, key=lambda key: self._most[key] - self._least[key]):
            more = min(self._most[key] - self._least[key], max(0, left))
            widths[key] += more
            left -= more
        return widths


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(text) for text in texts), default=0)


def output_width() -> int:
    """How many characters a line of output may have."""
    from shutil import get_terminal_size

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return get_terminal_size().columns
    return WIDE_ENOUGH


_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON may have as they are, and terminals obey."""


def print_json(document: object) -> None:
    """The same for programs. Nouns of ours are written as they are; nothing else may be in it."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    print(text.translate(_ESCAPED))


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
