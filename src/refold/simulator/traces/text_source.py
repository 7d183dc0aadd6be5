"""Read text files, plain or gzipped: tables of cells, JSON entries and calendar times of traces.

No other module of this folder opens a trace file.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from refold.errors import BadFile, BadRow, BadValue
from refold.model import MAX_AMOUNT, Job

_GZIP_MAGIC = b"\x1f\x8b"

D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")

RowParser = Callable[[list[str]], T | None]
"""Returns what a row stands for, or None if the row is to be left out (for example, a job step)."""

RowRepair = Callable[[list[str]], list[str]]
"""Returns a row with the expected number of cells, made from a row with more."""

NO_TIME = frozenset({"", "None", "none", "Unknown", "N/A", "NaN", "nan"})
"""Cell values that mean that the event did not happen."""

_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class TextSource:
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
        return BadRow(self.path, self.line, cell.column, cell.found, cell.expected)


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


def parse_time(text: str, column: str) -> float:
    """Parse '2017-10-07 01:12:09', '2024-05-01T08:00:00' or '1714550400' as seconds since 1970.

    A time without a time zone is taken as UTC; only differences are used.
    """
    try:
        time = datetime.fromisoformat(text.removesuffix(" PST").removesuffix(" PDT"))
    except ValueError:
        if text[:1].isdigit() and "-" not in text:
            return parse_number(text, column)
        raise BadCell(column, text, "a time such as 2017-10-07 01:12:09") from None
    return (time - (_EPOCH if time.tzinfo is None else _EPOCH_UTC)) / _SECOND


def parse_time_or_none(text: str | None, column: str) -> float | None:
    """Parse a time; None if the event did not happen."""
    return None if text is None or text in NO_TIME else parse_time(text, column)


def shift_to_first_submission(jobs: Iterable[Job]) -> tuple[list[Job], list[str]]:
    """Shift the jobs so that the first is submitted at time 0; return them and a note with the original time."""
    jobs = list(jobs)
    if not jobs:
        return jobs, []
    first = min(job.submitted for job in jobs)
    shifted = [msgspec.structs.replace(job, submitted=job.submitted - first) for job in jobs]
    year_2000 = 946684800.0
    when = datetime.fromtimestamp(first, UTC).isoformat(" ", "seconds")[:19] if first > year_2000 else f"{first:g}"
    return shifted, [f"time 0 is the first submission, at {when}"]


def decode_document(source: TextSource, kind: type[D], expected: str) -> D:
    """Decode the whole file; `expected` says what it should be, such as 'a JSON list of jobs'."""
    try:
        return msgspec.json.decode(source.text.encode(), type=kind)
    except msgspec.DecodeError as error:
        raise BadFile(source.path, f"is not {expected}: {error}") from None
    except RecursionError:
        raise BadFile(source.path, "is nested too deeply") from None


def parse_entries(
    source: TextSource, entries: Sequence[msgspec.Raw], kind: type[E], parse: Callable[[E], T | None]
) -> tuple[list[T], list[BadRow]]:
    """Decode and parse the entries of a file. Return the results, without None, and the errors of bad entries."""
    decoder = msgspec.json.Decoder(kind)
    parsed: list[T] = []
    bad_entries: list[BadRow] = []
    for line, entry in _with_lines(source, entries):
        try:
            result = parse(decoder.decode(entry))
        except msgspec.ValidationError as error:
            bad_entries.append(_bad_entry(source, line, entry, error))
        except BadCell as cell:
            bad_entries.append(BadRow(source.path, line, cell.column, cell.found, cell.expected))
        except BadValue as error:
            bad_entries.append(BadRow(source.path, line, "entry", str(error), "a valid job"))
        else:
            parsed += [] if result is None else [result]
    return parsed, bad_entries


def _with_lines(source: TextSource, entries: Sequence[msgspec.Raw]) -> Iterator[tuple[int, bytes]]:
    content = source.text.encode()
    line, start, end = 1, 0, 0
    for raw in entries:
        entry = bytes(raw)
        before, start = start, content.index(entry, end)
        line += content.count(b"\n", before, start)
        end = start + len(entry)
        yield line, entry


def _bad_entry(source: TextSource, line: int, entry: bytes, error: msgspec.ValidationError) -> BadRow:
    """Parse key and expected type from 'Expected `str`, got `int` - at `$.time.start`'."""
    problem, _, json_path = str(error).partition(" - at ")
    keys = re.findall(r"[^.`$]+", json_path)
    expected = re.sub("^Expected |, got .*|`", "", problem)
    missing = re.fullmatch("Object missing required field (.*)", expected)
    if missing:
        return BadRow(source.path, line, ".".join([*keys, missing[1]]), None, "a value")
    return BadRow(source.path, line, ".".join(keys) or "entry", _value_at(entry, keys), expected)


def _value_at(entry: bytes, keys: Sequence[str]) -> object:
    """Return a value by its keys, or the text of the innermost object found, cut to 40 characters."""
    value: Any = msgspec.json.decode(entry)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            break
        value = value[key]
    if isinstance(value, str | int | float | None):
        return value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else text[:40] + "…"
