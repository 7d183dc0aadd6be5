"""What every reader of traces promises. Subclass it, give it a small file of your format, and run pytest.

class TestMine(TraceContract):
    file = Path("tests/fixtures/mine.csv")
    format = "mine"
    jobs = 3
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

from refold.errors import BadFile, BadInput
from refold.traces import Trace, read_trace, write_trace


class TraceContract:
    """The tests. `file` is a good file of the format that holds `jobs` jobs."""

    file: Path
    format: str
    jobs: int

    def test_the_format_is_recognised_and_every_job_is_read(self) -> None:
        """Nobody has to say what kind of file it is."""
        assert len(read_trace(self.file).jobs) == self.jobs
        assert read_trace(self.file).jobs == read_trace(self.file, format=self.format).jobs

    def test_jobs_are_in_order_with_ids_of_their_own(self) -> None:
        """A simulator can take them as they are."""
        jobs = self._read().jobs
        assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
        assert len({job.id for job in jobs}) == len(jobs)
        assert all(math.isfinite(job.submitted) and job.submitted >= 0 for job in jobs)

    def test_a_compressed_file_is_the_same_trace(self, tmp_path: Path) -> None:
        """`.gz` makes no difference."""
        plain, packed = tmp_path / self.file.name, tmp_path / (self.file.name + ".gz")
        plain.write_bytes(self.file.read_bytes())
        packed.write_bytes(gzip.compress(self.file.read_bytes()))
        assert read_trace(packed, format=self.format).jobs == read_trace(plain, format=self.format).jobs

    def test_it_survives_the_common_columns(self, tmp_path: Path) -> None:
        """`refold trace convert` loses nothing."""
        out = tmp_path / "common.csv"
        write_trace(self._read(), out)
        assert read_trace(out).jobs == self._read().jobs

    def test_a_file_cut_off_anywhere_is_read_or_named(self, tmp_path: Path) -> None:
        """Never a traceback: fewer jobs, or an error that says which file."""
        whole = self.file.read_bytes()
        cut = tmp_path / self.file.name
        for size in range(0, len(whole), max(1, len(whole) // 40)):
            cut.write_bytes(whole[:size])
            try:
                read = read_trace(cut, format=self.format, skip_bad=True)
            except BadInput as error:
                assert cut.name in str(error)
            else:
                assert len(read.jobs) <= self.jobs

    def test_an_empty_file_is_no_trace(self, tmp_path: Path) -> None:
        """It is said so."""
        empty = tmp_path / "empty.csv"
        empty.write_bytes(b"")
        try:
            read_trace(empty, format=self.format)
        except BadFile as error:
            assert "empty.csv" in str(error)
        else:
            raise AssertionError("an empty file was read as a trace")

    def _read(self) -> Trace:
        return read_trace(self.file, format=self.format)
