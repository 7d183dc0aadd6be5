"""The trace contract passes a correct reader, and fails broken ones in the cases that their defects concern."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from contract_outcomes import Outcomes, run_contract

from refold.errors import BadRow
from refold.model import Job
from refold.simulator.traces import Trace
from refold.simulator.traces.formats import FORMATS, Format
from refold.simulator.traces.text_source import TextSource
from refold.simulator.traces.trace import make_trace
from refold.testing import TraceContract, make_job

TEXT = "# lines\nb 30 2\na 10 1\nc 50 8\n"
"""A trace of three jobs: id, submission time and GPUs."""

Reader = Callable[[TextSource, bool], Trace]


def parse(source: TextSource, skip_bad: bool) -> tuple[list[Job], list[BadRow]]:
    jobs: list[Job] = []
    bad: list[BadRow] = []
    for number, line in enumerate(source.text.splitlines()[1:], start=2):
        name, *numbers = line.split(" ")
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            jobs.append(make_job(name, at=float(numbers[0]), gpus=int(numbers[1])))
        else:
            bad.append(BadRow(source.path, number, "row", line, "a name and two numbers"))
    if bad and not skip_bad:
        raise bad[0]
    return jobs, bad


def read_well(source: TextSource, skip_bad: bool) -> Trace:
    jobs, bad = parse(source, skip_bad)
    return make_trace(source.name, jobs, skipped_rows=bad)


def read_unsorted(source: TextSource, skip_bad: bool) -> Trace:
    return Trace(source.name, tuple(parse(source, skip_bad)[0]))


def read_all_as_one_id(source: TextSource, skip_bad: bool) -> Trace:
    jobs, _ = parse(source, skip_bad)
    same = [make_job("same", at=job.submitted) for job in jobs]
    return Trace(source.name, tuple(sorted(same, key=lambda job: job.submitted)))


def read_the_file_again(source: TextSource, skip_bad: bool) -> Trace:
    """Ignores that the text was decompressed."""
    return read_well(TextSource(source.path, source.path.read_text()), skip_bad)


def read_a_type_that_cannot_be_written(source: TextSource, skip_bad: bool) -> Trace:
    jobs, _ = parse(source, skip_bad)
    return make_trace(source.name, [make_job(job.id, at=job.submitted, types=["A100|V100"]) for job in jobs])


def read_without_checks(source: TextSource, skip_bad: bool) -> Trace:
    rows = [line.split(" ") for line in source.text.splitlines()[1:]]
    return make_trace(source.name, [make_job(name, at=float(at), gpus=int(gpus)) for name, at, gpus in rows])


def read_without_the_file_name(source: TextSource, skip_bad: bool) -> Trace:
    jobs, bad = parse(source, skip_bad=True)
    if bad:
        raise BadRow("", bad[0].line, "row", bad[0].found, "a name and two numbers")
    return make_trace(source.name, jobs)


def run_suite(
    monkeypatch: pytest.MonkeyPatch, folder: Path, read: Reader, first_line: str = "# lines", count: int = 3
) -> Outcomes:
    """Run the contract for a format of our own, whose reader is `read`."""

    def read_source(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
        return read(source, skip_bad)

    module = SimpleNamespace(recognises=lambda line: line == first_line, read=read_source)
    monkeypatch.setitem(sys.modules, "reader_of_lines", module)
    monkeypatch.setitem(FORMATS, "lines", Format("reader_of_lines", "one job per line"))

    class Contract(TraceContract):
        file, format, jobs = folder / "jobs.txt", "lines", count

    Contract.file.write_text(TEXT)
    return run_contract(Contract(), folder)


def test_a_correct_reader_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcomes = run_suite(monkeypatch, tmp_path, read_well)
    assert (outcomes.failed, outcomes.skipped, len(outcomes.passed)) == ({}, {}, 6)


@pytest.mark.parametrize(
    ("read", "failing", "message"),
    [
        (read_the_file_again, "test_a_gzipped_file_gives_the_same_trace", "UnicodeDecodeError"),
        (
            read_a_type_that_cannot_be_written,
            "test_conversion_to_the_common_format_keeps_all_jobs",
            "At index 0 diff: Job(",
        ),
        (read_without_checks, "test_a_truncated_file_is_read_or_rejected", "ValueError: not enough values"),
        (
            read_without_the_file_name,
            "test_a_truncated_file_is_read_or_rejected",
            "assert 'jobs.txt' in \" line 2: row is",
        ),
    ],
)
def test_a_broken_reader_fails_the_case_of_its_defect(
    read: Reader, failing: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = run_suite(monkeypatch, tmp_path, read).failed
    assert list(failed) == [failing]
    assert message in failed[failing]


@pytest.mark.parametrize(
    ("read", "message"), [(read_unsorted, "[30.0, 10.0, 50.0] == [10.0, 30.0, 50.0]"), (read_all_as_one_id, "1 == 3")]
)
def test_unsorted_jobs_and_equal_ids_fail_the_cases_that_compare_jobs(
    read: Reader, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = run_suite(monkeypatch, tmp_path, read).failed
    assert set(failed) == {
        "test_conversion_to_the_common_format_keeps_all_jobs",
        "test_jobs_are_sorted_by_submission_and_have_unique_ids",
    }
    assert message in failed["test_jobs_are_sorted_by_submission_and_have_unique_ids"]


def test_a_format_that_is_not_recognised_fails_its_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = run_suite(monkeypatch, tmp_path, read_well, first_line="# other").failed
    assert list(failed) == ["test_the_format_is_recognised_and_every_job_is_read"]
    assert "unknown format: the file begins with '# lines'" in min(failed.values())


def test_a_job_that_is_not_read_fails_the_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = run_suite(monkeypatch, tmp_path, read_well, count=4).failed
    assert list(failed) == ["test_the_format_is_recognised_and_every_job_is_read"]
    assert "3 == 4" in min(failed.values())


def test_a_reader_that_invents_jobs_fails_when_its_file_is_truncated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(source: TextSource, skip_bad: bool) -> Trace:
        return make_trace(source.name, [make_job(str(number)) for number in range(3 if source.text == TEXT else 9)])

    failed = run_suite(monkeypatch, tmp_path, read).failed
    assert list(failed) == ["test_a_truncated_file_is_read_or_rejected"]
    assert "9 <= 3" in min(failed.values())


def test_an_empty_file_that_is_accepted_fails_its_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("refold.simulator.traces.formats.open_source", lambda path: TextSource(path, path.read_text()))
    failed = run_suite(monkeypatch, tmp_path, read_well).failed
    assert failed["test_an_empty_file_is_rejected"] == "AssertionError: an empty file was read as a trace"
