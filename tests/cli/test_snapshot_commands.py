"""Snapshots of the daemon: start estimates, what-if, and comparison of policies on the current queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import MEMBER, FakeServer, FakeService

from refold.client.api.queries import Caller, SnapshotQuery
from refold.client.api.submissions import Submission
from refold.client.api.wire import TimeEstimate
from refold.core import Entry, Header
from refold.core.events import JobContinued, JobHeld, JobSubmitted, PastJob, RunAdopted, RunFinished
from refold.core.orders import StartRun
from refold.journal.files import JournalFile
from refold.model import Allocation, Share
from refold.testing import make_cluster, make_job

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

CLUSTER = make_cluster(4)
RUNNING = make_job("running-1", gpus=3, group="running", work=None)
WAITING = make_job("waiting-2", at=10.0, gpus=4, group="waiting", work=50.0)
SMALL = make_job("small-3", at=20.0, gpus=2, group="small", work=500.0)
HELD = make_job("held-4", at=25.0)
SNAPSHOT_ENTRY = Entry(
    100.0,
    (
        *(PastJob(make_job(f"old-{number}", gpus=3, group="running", work=None), 200.0) for number in range(5)),
        *(JobSubmitted(job) for job in (RUNNING, WAITING, SMALL, HELD)),
        JobContinued("running-1", 0, 0.0, 0, 0.0),
        RunAdopted("running-1", 1, Allocation((Share(0, (0, 1, 2)),)), 5.0),
        JobHeld("held-4"),
    ),
)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def snapshot_of(*entries: Entry) -> bytes:
    header = Header(CLUSTER, "fifo", snapshot=True)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *entries))


class WithSnapshot(FakeService):
    """A service with a fixed snapshot."""

    async def snapshot(self, caller: Caller, query: SnapshotQuery) -> bytes:
        return snapshot_of(SNAPSHOT_ENTRY)


@pytest.fixture
def served(start_server: Callable[[type[FakeService]], FakeServer]) -> FakeServer:
    served = start_server(WithSnapshot)
    for name in ("running", "waiting", "small"):
        job = served.call(served.service.add, Submission(name, ["true"]))
        served.service.jobs_by_id[job.id] = msgspec.structs.replace(job, start_estimate=None)
    served.call(served.service.start, "running-1")
    return served


@pytest.fixture
def snapshot(served: FakeServer, tmp_path: Path, stdout_of: TextOf) -> str:
    """A file written by `refold snapshot`."""
    path = str(tmp_path / "now.jsonl")
    assert stdout_of("snapshot", "-o", path) == f"snapshot: {path}\n"
    assert Path(path).read_bytes() == snapshot_of(SNAPSHOT_ENTRY)
    return path


def test_jobs_without_a_start_estimate_are_simulated(served: FakeServer, json_of: JsonOf) -> None:
    document = json_of("queue", "--start", "--futures", "10")
    running, waiting, small = document["jobs"]
    assert "source" not in running
    assert [waiting["source"], small["source"]] == ["10 futures", "10 futures"]
    now = document["now"]
    assert now < waiting["expected"]["soonest"] <= waiting["expected"]["at"] <= waiting["expected"]["latest"]
    assert waiting["expected"]["at"] - now < 1_000  # five earlier jobs ran for 200 seconds
    assert small["expected"]["at"] >= waiting["expected"]["at"]  # fifo allows no overtaking
    assert document["notes"] == [
        "estimates assume no new jobs; jobs submitted later may start first (--arrivals simulates them)"
    ]


def test_the_policys_start_estimate_is_preferred_to_a_simulated_one(
    served: FakeServer, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.cli.inputs.journal_state.stop_after", lambda _: lambda: False)  # on a slow machine, too
    estimate = TimeEstimate(2e9, 2e9, 2.1e9)
    waiting = served.service.jobs_by_id["waiting-2"]
    served.service.jobs_by_id["waiting-2"] = msgspec.structs.replace(waiting, start_estimate=estimate)
    assert [job.get("source") for job in json_of("queue", "--start")["jobs"]] == [None, "policy", "40 futures"]


def test_without_the_owner_role_only_the_policys_estimates_are_shown(
    served: FakeServer, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TOKEN", MEMBER)
    document = json_of("queue", "--start")
    assert [job.get("source") for job in document["jobs"]] == [None, "", ""]
    assert document["notes"] == [
        "only start estimates of the policy are shown: simulating futures requires the owner role"
    ]


def test_a_job_can_be_estimated_before_it_is_submitted(served: FakeServer, tmp_path: Path, json_of: JsonOf) -> None:
    (tmp_path / "job.yaml").write_text("name: mine\ngpus: 1\nestimate: 100s\nrun: 'true'\n")
    document = json_of("whatif", str(tmp_path / "job.yaml"), "--policy", "fifo-skip", "--gpus", "8", "--futures", "4")
    one, eight = document["variants"]
    assert one["start"]["at"] == document["now"]  # one GPU is free
    assert one["end"]["at"] == pytest.approx(document["now"] + 100.0)
    assert (eight["start"], eight["fits"]) == (None, False)
    assert list(served.service.jobs_by_id) == ["running-1", "waiting-2", "small-3"]


def test_queue_reads_a_snapshot_like_a_journal(snapshot: str, stdout_of: TextOf, json_of: JsonOf) -> None:
    assert lines(stdout_of("queue", snapshot))[2:] == [
        "1 waiting-2 4 GPUs default 1 min 30 s (NotConsidered)",
        "2 small-3 2 GPUs default 1 min 20 s (NotConsidered: 1 job ahead)",
        "3 held-4 1 GPU default 1 min 15 s (Held)",
    ]
    rows = json_of("queue", snapshot, "--futures", "3")["waiting"]
    assert [row["source"] for row in rows] == ["3 futures", "3 futures", ""]


def test_policies_are_compared_on_the_jobs_of_a_snapshot(snapshot: str, tmp_path: Path, json_of: JsonOf) -> None:
    out = ("--out", str(tmp_path / "out"))
    document = json_of("compare", snapshot, "--policies", "fifo,sjf", *out)
    fifo, sjf = (run["measures"] for run in document["runs"])
    assert (fifo["jobs"], sjf["jobs"]) == (3, 3)
    remaining = fifo["makespan"] - 550.0  # of the running job, before the others
    assert fifo["waiting"]["mean"] == pytest.approx((0 + remaining + remaining + 50) / 3)
    assert sjf["waiting"]["mean"] == pytest.approx((0 + 50 + 50 + remaining) / 3)  # the shortest job first
    assert document["notes"] == [
        "jobs running or waiting at the end of now.jsonl, all submitted at time 0: 3",
        "running jobs restarted with their remaining work: 1",
        "jobs of unknown run time simulated with the predicted median: 1",
        "held jobs skipped: 1",
    ]


def test_a_running_job_of_unknown_run_time_gets_the_predicted_remaining_work(snapshot: str) -> None:
    from refold.cli.experiment_options import TraceOptions
    from refold.cli.inputs.workload_reader import read_backlog
    from refold.simulator import Costs

    running, waiting, small = read_backlog(snapshot, None, TraceOptions(), Costs()).jobs
    assert (waiting.work, small.work) == (50.0, 500.0)
    assert running.work is not None
    assert running.work == pytest.approx(200.0 - 95.0, abs=60.0)  # it has run for 95 seconds, earlier jobs for 200
    assert [job.submitted for job in (running, waiting, small)] == [0.0, 0.0, 0.0]


def test_the_jobs_of_a_snapshot_can_be_simulated_on_another_cluster(
    snapshot: str, tmp_path: Path, json_of: JsonOf
) -> None:
    words = ("compare", snapshot, "--cluster", "3x4", "--policies", "fifo", "--out", str(tmp_path / "out"))
    [fifo] = json_of(*words)["runs"]
    assert fifo["measures"]["waiting"]["max"] == 0.0


def test_replay_simulates_the_snapshots_own_policy_and_another(
    snapshot: str, json_of: JsonOf, error_of: TextOf
) -> None:
    document = json_of("replay", snapshot, "--policy", "sjf")
    assert [run["name"] for run in document["runs"]] == ["fifo (simulated)", "sjf (simulated)"]
    assert "is a snapshot, which has no decisions to replay" in error_of("replay", snapshot)


def test_a_journal_that_ends_with_no_jobs_cannot_be_compared(tmp_path: Path, error_of: TextOf) -> None:
    path = tmp_path / "j.jsonl"
    with JournalFile(path, Header(CLUSTER, "fifo")) as file:
        file.write(Entry(0.0))
    message = error_of("compare", str(path), "--policies", "fifo", "--out", str(tmp_path / "out"))
    assert "the journal ends with no running or waiting jobs" in message
    assert f"refold replay {path} --policy NAME" in message


def test_a_report_of_the_daemons_journal_is_written(
    served: FakeServer, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.jsonl"
    with JournalFile(path, Header(CLUSTER, "fifo")) as file:
        start = StartRun("running-1", 1, Allocation((Share(0, (0, 1, 2)),)))
        file.write(Entry(5.0, (JobSubmitted(RUNNING),), (start,)))

    async def journal(_: Caller) -> Any:
        yield path.read_bytes()

    monkeypatch.setattr(served.service, "journal", journal)
    out = ("-o", str(tmp_path / "out"))
    assert "report: " in stdout_of("report", *out)
    assert (tmp_path / "out" / "report.html").exists()
    of_daemon, of_file = json_of("report", *out), json_of("report", str(path), *out)
    assert of_daemon["measures"] == of_file["measures"]
    assert (of_daemon["journal"], of_file["journal"]) == ("the daemon's journal", "j.jsonl")


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., str]:
    """Write a journal of one job that has ended, under `refold` with some settings, and return its path."""

    def write(**policy_settings: object) -> str:
        path = tmp_path / "ended.jsonl"
        with JournalFile(path, Header(CLUSTER, "refold", policy_settings)) as file:
            start = StartRun("running-1", 1, Allocation((Share(0, (0, 1, 2)),)))
            file.write(Entry(5.0, (JobSubmitted(RUNNING),), (start,)))
            file.write(Entry(65.0, (RunFinished("running-1", 1),)))
        return str(path)

    return write


def test_a_report_shows_what_preemption_costs_and_brings(
    ended: Callable[..., str], tmp_path: Path, json_of: JsonOf
) -> None:
    outlook = json_of("report", ended(), "-o", str(tmp_path / "out"))["preemption"]
    assert (outlook["policy"], outlook["jobs"], outlook["never"]["mean_wait"]) == ("refold", 1, 0.0)
    assert "Costs and benefits of preemption" in (tmp_path / "out" / "report.html").read_text()


def test_jobs_under_a_policy_with_settings_of_another_version_are_reported(
    ended: Callable[..., str], tmp_path: Path, json_of: JsonOf
) -> None:
    found = json_of("report", ended(starvation_seconds=86_400), "-o", str(tmp_path / "out"))
    assert (found["measures"]["outcomes"]["finished"], found["preemption"]) == (1, None)
    assert "is not simulated: refold has no setting 'starvation_seconds' any more" in found["notes"][0]
