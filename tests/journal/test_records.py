"""What a record says about a job and its runs."""

from __future__ import annotations

import pytest

from refold.core import RunFailed, RunStopped
from refold.journal.records import Ending, JobRecord, RecordState, RunRecord
from refold.model import Allocation, RunUsage, Share
from refold.testing import make_job

GPU = Allocation((Share(0, (0,)),))


def make_run(start: float = 10.0, end: float | None = None, report: RunStopped | RunFailed | None = None) -> RunRecord:
    return RunRecord(3, GPU, start, end=end, end_report=report)


def test_usage_adds_cpu_time_over_runs_and_keeps_the_highest_memory() -> None:
    record = JobRecord(make_job("a"))
    found = []
    for usage in (RunUsage(None, None), RunUsage(5.0, 300), RunUsage(7.0, 200), RunUsage(None, 400)):
        record.note_usage(usage)
        found.append((record.cpu_seconds, record.peak_memory_mib))
    assert found == [(None, None), (5.0, 300), (12.0, 300), (12.0, 400)]


def test_the_current_run_is_the_last_one_until_it_ends() -> None:
    waiting, running = JobRecord(make_job("a")), JobRecord(make_job("a"), last=make_run())
    ended = JobRecord(make_job("a"), last=make_run(end=25.0), earlier_run_time=100.0)
    assert [record.run for record in (waiting, running, ended)] == [0, 3, 0]
    assert [record.last_run_ended for record in (waiting, running, ended)] == [None, None, 25.0]
    assert [record.run_time for record in (waiting, running, ended)] == [0.0, 0.0, 115.0]


def test_a_run_that_the_scheduler_has_lost_is_stopped_and_its_job_waits() -> None:
    record = JobRecord(make_job("a"), "running", make_run())
    record.lose_run(30.0)
    assert record.last is not None
    assert (record.state, record.last.end, record.last.ending) == ("waiting", 30.0, Ending.STOPPED)
    ended = JobRecord(make_job("a"), "finished", make_run(end=25.0))
    ended.lose_run(30.0)
    assert (ended.state, ended.last_run_ended) == ("finished", 25.0)


@pytest.mark.parametrize(
    ("state", "report", "reason", "message", "exit_code", "duration"),
    [
        ("finished", None, None, "", 0, 15.0),
        ("failed", RunFailed("a", 3, "out of memory", exit_code=137), None, "out of memory", 137, 15.0),
        ("failed", RunFailed("a", 3, "node lost"), None, "node lost", None, 15.0),
        ("cancelled", RunStopped("a", 3), None, "", None, None),
        ("cancelled", RunStopped("a", 3), "dependency 'b' failed", "dependency 'b' failed", None, None),
        ("cancelled", RunFailed("a", 3, "killed", exit_code=9), "", "", None, None),
        ("timed out", RunStopped("a", 3), "beyond its time limit", "beyond its time limit", None, None),
    ],
)
def test_how_a_job_ended(
    state: RecordState,
    report: RunStopped | RunFailed | None,
    reason: str | None,
    message: str,
    exit_code: int | None,
    duration: float | None,
) -> None:
    record = JobRecord(make_job("a"), state, make_run(end=25.0, report=report), end_reason=reason)
    assert (record.message, record.exit_code, record.known_duration) == (message, exit_code, duration)
