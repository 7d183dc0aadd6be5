"""A journal as the web UI shows it: what is recorded of jobs, runs and nodes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from refold.core import (
    Entry,
    Event,
    GpuDrained,
    Header,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    Scheduler,
)
from refold.errors import BadFile
from refold.model import Allocation, Cluster
from refold.server import read_recording
from refold.server.recording import MAX_PROGRESS_REPORTS, RecordedJob, RecordedNodeChange, Recording
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

TWO_GPUS = make_cluster(2)


def record(path: Path, steps: list[tuple[float, list[Event]]], cluster: Cluster = TWO_GPUS) -> Recording:
    scheduler = Scheduler(cluster, make_policy("fifo"))
    write(path / "j.jsonl", (Header(cluster, "fifo"), [scheduler.step(now, events) for now, events in steps]))
    return read_recording(path / "j.jsonl")


def write(path: Path, *epochs: tuple[Header, list[Entry]]) -> None:
    lines = [line for header, entries in epochs for line in (header, *entries)]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def job_of(recording: Recording, job_id: str) -> RecordedJob:
    (found,) = [job for job in recording.jobs if job.id == job_id]
    return found


def test_a_job_that_waits_runs_and_ends_is_recorded_with_the_times_of_each(tmp_path: Path) -> None:
    recording = record(
        tmp_path,
        [
            (0.0, [JobSubmitted(make_job("a", gpus=2))]),
            (5.0, [RunStarted("a", 1), JobSubmitted(make_job("b", gpus=1, at=5.0, user="ann"))]),
            (50.0, [RunFinished("a", 1)]),
            (60.0, [RunFailed("b", 1, "exit status 3", exit_code=3)]),
        ],
    )
    assert (recording.since, recording.until, recording.entries, recording.policy) == (0.0, 60.0, 4, "fifo")
    first, second = job_of(recording, "a"), job_of(recording, "b")
    assert [(run.start, run.started, run.end, run.ending) for run in first.runs] == [(0.0, 5.0, 50.0, "finished")]
    assert first.runs[0].placement == [(0, [0, 1], 1.0)]
    assert (first.ended, first.outcome, first.exit_code) == (50.0, "finished", 0)
    assert second.waits == [(5.0, "Resources", "0 of 1 nodes fit: 1 has no free GPU")]
    assert (second.user, second.submitted, second.runs[0].start) == ("ann", 5.0, 50.0)
    assert (second.outcome, second.message, second.exit_code) == ("failed", "exit status 3", 3)
    assert [event[:3] for event in second.events] == [
        (5.0, "submitted", 0),
        (50.0, "placed", 1),
        (60.0, "failed", 1),
    ]


def test_holds_progress_and_cancellation_are_recorded(tmp_path: Path) -> None:
    recording = record(
        tmp_path,
        [
            (0.0, [JobSubmitted(make_job("a")), JobHeld("a")]),
            (3.0, [JobReleased("a")]),
            (4.0, [RunProgressed("a", 1, steps=10, loss=2.5, samples_per_second=64.0)]),
            (5.0, [RunProgressed("a", 7, steps=99)]),  # late: there is no such run
            (6.0, [JobCancelled("a")]),
        ],
    )
    job = job_of(recording, "a")
    assert job.holds == [(0.0, "Held"), (3.0, "")]
    assert job.progress == [(4.0, 10, 2.5, 64.0)]
    assert job.runs[0].stop == 6.0
    assert job.ended is None, "its run has not stopped yet"


def test_many_reports_are_thinned_out_and_the_last_is_kept(tmp_path: Path) -> None:
    reports: list[tuple[float, list[Event]]] = [
        (float(step), [RunProgressed("a", 1, steps=step)]) for step in range(1, 3 * MAX_PROGRESS_REPORTS)
    ]
    job = job_of(record(tmp_path, [(0.0, [JobSubmitted(make_job("a"))]), *reports]), "a")
    assert len(job.progress) <= MAX_PROGRESS_REPORTS
    assert job.progress[-1][:2] == (float(len(reports)), len(reports))


def test_nodes_and_gpus_that_go_down_are_recorded(tmp_path: Path) -> None:
    recording = record(
        tmp_path, [(1.0, [NodeLost(0, "no answer")]), (2.0, [NodeReturned(0)]), (3.0, [GpuDrained(0, 1)])]
    )
    assert recording.node_changes == [
        RecordedNodeChange(1.0, 0, False, why="no answer"),
        RecordedNodeChange(2.0, 0, True),
        RecordedNodeChange(3.0, 0, False, 1, drained=True),
    ]
    assert [kind for _, kind, _ in recording.events] == ["node down", "node up", "gpu drained"]


def test_a_job_that_does_not_fit_the_cluster_is_marked(tmp_path: Path) -> None:
    recording = record(tmp_path, [(0.0, [JobSubmitted(make_job("huge", gpus=99)), JobSubmitted(make_job("small"))])])
    assert [(job.id, job.fits) for job in recording.jobs] == [("huge", False), ("small", True)]


def test_epochs_are_one_recording_and_runs_that_the_next_does_not_continue_have_ended(tmp_path: Path) -> None:
    cluster, path = make_cluster(2), tmp_path / "j.jsonl"
    first = Scheduler(cluster, make_policy("fifo"))
    before = [first.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])]
    continued: list[Event] = [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))]
    placement = first.view.runs["a"].allocation.placement
    continued.append(RunAdopted("a", 1, Allocation(placement), 0.0))
    second = Scheduler(cluster, make_policy("fifo"))
    after = [second.step(100.0, continued), second.step(150.0, [RunFinished("a", 1)])]
    write(path, (Header(cluster, "fifo"), before), (Header(cluster, "fifo"), after))
    recording = read_recording(path)
    assert [(run.start, run.end) for run in job_of(recording, "a").runs] == [(0.0, 150.0)]
    assert (job_of(recording, "b").runs[0].end, len(recording.jobs)) == (100.0, 2)


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(BadFile, match="is not a journal"):
        read_recording(tmp_path / "notes.txt")
