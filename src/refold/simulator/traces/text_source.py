"""Read text files, plain or gzipped, and tables of cells. No other module of this folder opens a trace file."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from refold.errors import BadFile, BadRow, BadValue
from refold.model import MAX_AMOUNT

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TextSource:
    """The path and the text of a file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The file name without its suffixes: 'jobs_philly' for 'traces/jobs_philly.csv.gz'."""
        return self.path.name.removesuffix(".gz").rsplit(".", 1)[0] or self.path.name

    @property
    def first_line(self) -> str:
        """The first line that is not blank, by which most formats can be recognised."""
        return next((line.strip() for line in self.text[:65536].splitlines() if line.strip()), "")


def open_source(path: Path) -> TextSource:
    """Read a text file; gzipped content is detected and decompressed, regardless of the file name."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadFile(path, "no such file") from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from None
    text = _decode(path, _decompress(path, content))
    if not text.strip():
        raise BadFile(path, "is empty")
    return TextSource(path, text)


def _decompress(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(path, f"is a damaged gzip file: {error}") from None


def _decode(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not text: byte {error.start + 1} is not UTF-8") from None
    if "\0" in text[:65536]:
        raise BadFile(path, "is not text: it contains zero bytes")
    return text


class BadCell(Exception):
    """A cell has an unexpected value. The loop over rows, which knows the line number, converts it to a BadRow."""

    def __init__(self, column: str, found: object, expected: str) -> None:
        super().__init__(column, found, expected)
        self.column, self.found, self.expected = column, found, expected


def parse_number(text: str, column: str) -> float:
    """Parse a number from 0 to MAX_AMOUNT."""
    try:
        value = float(text)
    except ValueError:
        raise BadCell(column, text, "a number ≥ 0") from None
    if not 0.0 <= value <= MAX_AMOUNT:
        raise BadCell(column, text, f"a number from 0 to {MAX_AMOUNT}")
    return value


def parse_number_or_none(text: str, column: str) -> float | None:
    """Parse a number; None if the cell is empty."""
    return parse_number(text, column) if text else None


def parse_whole(text: str, column: str) -> int:
    """Parse a whole number ≥ 0; '8' and '8.0' are the same."""
    value = parse_number(text, column)
    if value != int(value):
        raise BadCell(column, text, "a whole number ≥ 0")
    return int(value)


def parse_gpu_types(text: str) -> tuple[str, ...]:
    """Parse 'V100|A100' as the sorted tuple ('A100', 'V100')."""
    return tuple(sorted({name for name in text.split("|") if name})) if text else ()


class TextTable:
    """A table of text cells with named columns."""

    def __init__(
        self, source: TextSource, *, delimiter: str = ",", columns: Sequence[str] | None = None, quoted: bool = True
    ) -> None:
        self.path = source.path
        lines = io.StringIO(source.text, newline="")
        if quoted:
            self._reader = csv.reader(lines, delimiter=delimiter)
        else:
            self._reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
        self.columns = list(columns) if columns else self._header()

    def _header(self) -> list[str]:
        try:
            for row in self._reader:
                if row:
                    return [cell.strip() for cell in row]
        except csv.Error as error:
            raise BadFile(self.path, f"is not a table: {error}") from None
        return []

    def index(self, column: str) -> int:
        """Return the index of a column; raise BadFile if the file does not have it."""
        if column not in self.columns:
            raise BadFile(self.path, f"has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns.index(column)

    def index_or_none(self, column: str) -> int | None:
        """Return the index of a column, or None if the file does not have it."""
        return self.columns.index(column) if column in self.columns else None

    def rows(self) -> Iterator[list[str]]:
        """Iterate over the rows that are not blank; `line` is the line number of the current row."""
        return (row for row in self._reader if row)

    @property
    def line(self) -> int:
        """The number of the last line read, counted from 1."""
        return self._reader.line_num

    def bad_row(self, cell: BadCell) -> BadRow:
        """Return the error for a bad cell of the current row."""
        return BadRow(self.path, self.line, cell.column, cell.found, cell.expected)


T = TypeVar("T")

RowParser = Callable[[list[str]], T | None]
"""Returns what a row stands for, or None if the row is to be left out (for example, a job step)."""

RowRepair = Callable[[list[str]], list[str]]
"""Returns a row with the expected number of cells, made from a row with more."""


def _no_repair(row: list[str]) -> list[str]:
    return row


def parse_rows(
    table: TextTable, parse_row: RowParser[T], *, skip_bad: bool, repair: RowRepair = _no_repair
) -> tuple[list[T], list[BadRow]]:
    """Parse all rows of a table. Return the results and the bad rows; without `skip_bad`, raise the first bad row."""
    parsed: list[T] = []
    skipped_rows: list[BadRow] = []
    width = len(table.columns)
    rows = table.rows()
    while True:
        try:
            for cells in rows:
                row = repair(cells) if len(cells) > width else cells
                if len(row) != width:
                    raise BadCell("row", f"{len(row)} cells", f"{width} cells")
                result = parse_row(row)
                if result is not None:
                    parsed.append(result)
            return parsed, skipped_rows
        except BadCell as cell:
            bad = table.bad_row(cell)
        except BadValue as error:
            bad = table.bad_row(BadCell("row", str(error), "a valid job"))
        except csv.Error as error:
            bad = table.bad_row(BadCell("row", str(error), "a valid CSV row"))
            rows = table.rows()
        if not skip_bad:
            raise bad from None
        skipped_rows.append(bad)


def int_if_whole(value: float) -> int | float:
    """Return whole numbers as int, to be written without '.0'."""
    return int(value) if value == int(value) else value
