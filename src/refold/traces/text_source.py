"""Text from files, plain or gzipped, and tables from text. The only place in this room that opens a trace."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refold.errors import BadFile, BadRow, BadValue
from refold.model import LARGEST, Job

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TextSource:
    """A file that was read: where it came from and its text."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The file's name without its endings: 'jobs_philly' of 'traces/jobs_philly.csv.gz'."""
        return self.path.name.removesuffix(".gz").rsplit(".", 1)[0] or self.path.name

    @property
    def first_line(self) -> str:
        """The first line that is not blank, which is where most formats say what they are."""
        return next((line.strip() for line in self.text[:65536].splitlines() if line.strip()), "")


def open_source(path: Path) -> TextSource:
    """The text of a file, unpacked when it is gzipped, whatever it is called."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadFile(path, "no such file") from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from None
    text = _decoded(path, _unpacked(path, content))
    if not text.strip():
        raise BadFile(path, "is empty")
    return TextSource(path, text)


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(path, f"is a damaged gzip file: {error}") from None


def _decoded(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not text: byte {error.start + 1} is not UTF-8") from None
    if "\0" in text[:65536]:
        raise BadFile(path, "is not text: it holds zero bytes")
    return text


class BadCell(Exception):
    """One cell is not what was expected. The loop over rows, which knows the line, makes a BadRow of it."""

    def __init__(self, column: str, found: object, expected: str) -> None:
        super().__init__(column, found, expected)
        self.column, self.found, self.expected = column, found, expected


def number(text: str, column: str) -> float:
    """A finite number ≥ 0 that is not absurdly large."""
    try:
        value = float(text)
    except ValueError:
        raise BadCell(column, text, "a number ≥ 0") from None
    if not 0.0 <= value <= LARGEST:
        raise BadCell(column, text, f"a number from 0 to {LARGEST}")
    return value


def number_or_none(text: str, column: str) -> float | None:
    """The same, and None where the source does not say."""
    return number(text, column) if text else None


def whole(text: str, column: str) -> int:
    """A whole number ≥ 0; '8' and '8.0' are the same."""
    value = number(text, column)
    if value != int(value):
        raise BadCell(column, text, "a whole number ≥ 0")
    return int(value)


def type_list(text: str) -> tuple[str, ...]:
    """'V100|A100' as a demand holds it: ('A100', 'V100')."""
    return tuple(sorted({name for name in text.split("|") if name})) if text else ()


class TextTable:
    """Rows of cells under named columns."""

    def __init__(
        self,
        source: TextSource,
        *,
        delimiter: str = ",",
        columns: Sequence[str] | None = None,
        quoted: bool = True,
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
        """Where a column stands; a file without it is refused."""
        if column not in self.columns:
            raise BadFile(self.path, f"has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns.index(column)

    def index_or_none(self, column: str) -> int | None:
        """Where a column stands, if it is there."""
        return self.columns.index(column) if column in self.columns else None

    def rows(self) -> Iterator[list[str]]:
        """Every row that is not blank; `line` tells where it was."""
        return (row for row in self._reader if row)

    @property
    def line(self) -> int:
        """The line that was read last, counted from 1."""
        return self._reader.line_num

    def bad(self, wrong: BadCell) -> BadRow:
        """A wrong cell of the row that was read last."""
        return BadRow(self.path, self.line, wrong.column, wrong.found, wrong.expected)


JobOfRow = Callable[[list[str]], Job | None]
"""What a reader knows: the job in a row, or None when the row holds none (a step of a job, say)."""


def jobs_of_rows(table: TextTable, job_of_row: JobOfRow, *, skip_bad: bool) -> tuple[list[Job], list[BadRow]]:
    """The jobs of a table. The first bad row is raised, or all of them are kept beside the jobs."""
    jobs: list[Job] = []
    left_out: list[BadRow] = []
    width = len(table.columns)
    rows = table.rows()
    while True:
        try:
            for row in rows:
                if len(row) != width:
                    raise BadCell("row", f"{len(row)} cells", f"{width} cells")
                job = job_of_row(row)
                if job is not None:
                    jobs.append(job)
            return jobs, left_out
        except BadCell as wrong:
            bad = table.bad(wrong)
        except BadValue as error:
            bad = table.bad(BadCell("row", str(error), "a job that can be built"))
        except csv.Error as error:
            bad = table.bad(BadCell("row", str(error), "a row of cells"))
            rows = table.rows()
        if not skip_bad:
            raise bad from None
        left_out.append(bad)
