"""Tables of text that fit the width of the terminal.

Text may come from untrusted files, so control characters are removed before it is printed. Tables are drawn here and
not by rich, whose import takes longer than the rest of `refold queue`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from refold.cli.views.output import output_width, printable, styled

MIN_TEXT_WIDTH = 24
"""Minimum width of a text column, unless its texts are shorter. Longer words are broken only in narrower columns."""

MIN_NARROW_WIDTH = 6
"""Minimum width of a text column beside a name that takes nearly the whole line."""

COLUMN_GAP = 2
"""Characters between two columns."""

Row = TypeVar("Row")


class Column(NamedTuple, Generic[Row]):
    """A column of a table: its title, and the text and style of a row in it. Numbers are aligned to the right.

    Texts of `number` and `whole` columns (such as names) are never wrapped. `optional` columns are left out of a table
    that is wider than a line, those with the highest number first (0: never).
    """

    title: str
    text: Callable[[Row], str]
    number: bool = False
    style: Callable[[Row], str] = lambda _: ""
    whole: bool = False
    optional: int = 0


class Table(NamedTuple):
    """A table to print. `after`: lines below the table. `keys`: the number of first columns that identify a row."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    after: Sequence[str] = ()
    keys: int = 1


def fact_table(title: str, facts: Mapping[str, str], after: Sequence[str] = (), *, numbers: bool = False) -> Table:
    """Return a table of names and their values, without those that are empty."""
    columns: list[Column[tuple[str, str]]] = [
        Column("", lambda fact: fact[0], whole=True),
        Column("", lambda fact: fact[1], number=numbers),
    ]
    return Table(title, columns, [fact for fact in facts.items() if fact[1]], after)


def print_tables(*tables: Table) -> None:
    """Print tables with their titles and the lines below each."""
    width = output_width()
    for table in tables:
        for line in _table_lines(table, width):
            print(line)


def _table_lines(table: Table, width: int) -> Iterator[str]:
    if table.title:
        yield from (styled(line, "bold", sys.stdout) for line in _wrap(printable(table.title), width))
    layout = _Layout(table, width)
    for index, block in enumerate(layout.blocks()):
        if index:
            yield ""
        yield from layout.lines(block)
    for line in (*table.after, *layout.omission_note()):
        # Words that are longer than a line, such as paths, stay whole.
        yield from (styled(part, "dim", sys.stdout) for part in _wrap(printable(line), width, break_words=False))
    yield ""


class _Layout:
    """The layout of a table: the columns that are shown, and blocks of columns if these are wider than a line.

    Columns are given by their indices.
    """

    def __init__(self, table: Table, width: int) -> None:
        self._columns = table.columns
        self._width = width
        self._texts = [[printable(column.text(row)) for row in table.rows] for column in table.columns]
        self._styles = [[column.style(row) for row in table.rows] for column in table.columns]
        self._min_widths = [_min_width(*one) for one in zip(table.columns, self._texts, strict=True)]
        self._max_widths = [
            _longest([*texts, column.title]) for column, texts in zip(table.columns, self._texts, strict=True)
        ]
        self._shown = self._choose_columns()
        self._keys = [index for index in self._shown if index < table.keys]

    def _choose_columns(self) -> list[int]:
        """Return the columns that fit the line width together, or all that are not optional."""
        shown = list(range(len(self._columns)))
        optional = sorted((index for index in shown if self._columns[index].optional), key=self._order_of_omission)
        omitted: list[int] = []
        while optional and self._total_width(shown) > self._width:
            omitted.append(optional.pop())
            shown.remove(omitted[-1])
        for index in reversed(omitted):  # a wide column may have made room for narrower ones
            if self._total_width([*shown, index]) <= self._width:
                shown.append(index)
        return sorted(shown)

    def _order_of_omission(self, index: int) -> tuple[int, int]:
        return self._columns[index].optional, index

    def _total_width(self, indices: Sequence[int]) -> int:
        return sum(self._min_widths[index] for index in indices) + COLUMN_GAP * (len(indices) - 1)

    def omission_note(self) -> list[str]:
        """Return a line that names the columns that are not shown."""
        omitted = [column.title for index, column in enumerate(self._columns) if index not in self._shown]
        return [f"not shown, for lack of space: {', '.join(filter(None, omitted))}"] if any(omitted) else []

    def blocks(self) -> list[list[int]]:
        """Split the columns into blocks that fit the line width; each block repeats the key columns."""
        blocks = [[*self._keys]]
        for index in self._shown[len(self._keys) :]:
            if len(blocks[-1]) > len(self._keys) and self._total_width([*blocks[-1], index]) > self._width:
                blocks.append([*self._keys])
            blocks[-1].append(index)
        return blocks

    def lines(self, block: Sequence[int]) -> Iterator[str]:
        """Draw a block of columns: a line of titles, and one or more lines for each row."""
        widths = self._widths(block)
        if any(column.title for column in self._columns):
            titles = [(self._columns[index].title, "dim") for index in block]
            yield from self._row_lines(block, widths, titles)
        for row in range(len(self._texts[0])):
            yield from self._row_lines(
                block, widths, [(self._texts[index][row], self._styles[index][row]) for index in block]
            )

    def _row_lines(
        self, block: Sequence[int], widths: Sequence[int], cells: Sequence[tuple[str, str]]
    ) -> Iterator[str]:
        wrapped = [_wrap(text, width) for (text, _), width in zip(cells, widths, strict=True)]
        for line in range(max(map(len, wrapped))):
            parts: list[str] = []
            for index, width, lines, (_, style) in zip(block, widths, wrapped, cells, strict=True):
                text = (lines[line] if line < len(lines) else "").rstrip()
                padding = " " * (width - cell_width(text))
                cell = styled(text, style, sys.stdout)
                parts.append(padding + cell if self._columns[index].number else cell + padding)
            yield (" " * COLUMN_GAP).join(parts)

    def _widths(self, block: Sequence[int]) -> list[int]:
        """Return the column widths: first the minimum of each, then the rest to columns that need the least more."""
        widths = {index: self._min_widths[index] for index in block}
        missing = {index: self._max_widths[index] - self._min_widths[index] for index in block}
        remaining = self._width - self._total_width(block)
        for index in sorted(block, key=missing.__getitem__):
            extra = min(missing[index], max(0, remaining))
            widths[index] += extra
            remaining -= extra
        last = block[-1]
        if remaining < 0 and not (self._columns[last].number or self._columns[last].whole):
            widths[last] = max(min(widths[last], MIN_NARROW_WIDTH), widths[last] + remaining)
        return [widths[index] for index in block]


def _min_width(column: Column[Any], texts: Sequence[str]) -> int:
    """Return the minimum width of a column: titles and texts may be wrapped, numbers and names not."""
    title = _longest(column.title.split())
    longest = _longest(texts)
    return max(title, longest if column.number or column.whole else min(longest, MIN_TEXT_WIDTH))


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_width, texts), default=0)


def cell_width(text: str) -> int:
    """Return the number of terminal cells that a printable text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _wrap(text: str, width: int, *, break_words: bool = True) -> list[str]:
    """Break a text into lines between words, or inside words that are longer than a line."""
    if cell_width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_width(joined) <= width:
            lines[-1] = joined
            continue
        lines.append(word)
        while break_words and cell_width(lines[-1]) > width:
            fitting = _fitting_chars(lines[-1], width)
            lines[-1:] = [lines[-1][:fitting], lines[-1][fitting:]]
    return [line for line in lines if line] or [""]


def _fitting_chars(text: str, width: int) -> int:
    """Return how many characters of a text fit a width; at least one."""
    used = 0
    for index, char in enumerate(text):
        used += cell_width(char)
        if used > width:
            return max(1, index)
    return len(text)
