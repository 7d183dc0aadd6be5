"""The contract suite for trace readers. Subclass it with a small file of your format, and run pytest:

class TestMyFormat(TraceContract):
    file = Path("tests/fixtures/my-jobs.csv")
    format = "my-format"
    jobs = 3
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

from refold.errors import BadFile, BadInput
from refold.simulator.traces import Trace, read_trace, write_trace


class TraceContract:
    """Tests that every trace reader must pass. `file` is a valid file of the format with `jobs` jobs."""

    file: Path
    format: str
    jobs: int

    def test_the_format_is_recognised_and_every_job_is_read(self) -> None:
        """The format need not be given."""
        assert len(read_trace(self.file).jobs) == self.jobs
        assert read_trace(self.file).jobs == read_trace(self.file, format=self.format).jobs

    def test_jobs_are_sorted_by_submission_and_have_unique_ids(self) -> None:
        """The simulator requires it."""
        jobs = self._read().jobs
        assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
        assert len({job.id for job in jobs}) == len(jobs)
        assert all(math.isfinite(job.submitted) and job.submitted >= 0 for job in jobs)

    def test_a_gzipped_file_gives_the_same_trace(self, tmp_path: Path) -> None:
        """Compression does not change the jobs."""
        plain, compressed = tmp_path / self.file.name, tmp_path / (self.file.name + ".gz")
        plain.write_bytes(self.file.read_bytes())
        compressed.write_bytes(gzip.compress(self.file.read_bytes()))
        assert read_trace(compressed, format=self.format).jobs == read_trace(plain, format=self.format).jobs

    def test_conversion_to_the_common_format_keeps_all_jobs(self, tmp_path: Path) -> None:
        """Reading the output of `refold trace convert` gives the same jobs."""
        out = tmp_path / "common.csv"
        write_trace(self._read(), out)
        assert read_trace(out).jobs == self._read().jobs

    def test_a_truncated_file_is_read_or_rejected(self, tmp_path: Path) -> None:
        """A truncated file gives fewer jobs or an error that names the file, never another exception."""
        content = self.file.read_bytes()
        truncated = tmp_path / self.file.name
        for size in range(0, len(content), max(1, len(content) // 40)):
            truncated.write_bytes(content[:size])
            try:
                trace = read_trace(truncated, format=self.format, skip_bad=True)
            except BadInput as error:
                assert truncated.name in str(error)
            else:
                assert len(trace.jobs) <= self.jobs

    def test_an_empty_file_is_rejected(self, tmp_path: Path) -> None:
        """The error names the file."""
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
