"""A snapshot of the daemon: looking ahead from it, and what other policies would do with the queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import MEMBER, FakeService, Served

from refold.api.roles import Caller
from refold.api.wire import Interval, Submission
from refold.core import Entry, Header
from refold.core.events import JobContinued, JobHeld, JobSubmitted, PastJob, RunAdopted
from refold.core.orders import StartRun
from refold.journal.files import JournalFile
from refold.model import Allocation, Share
from refold.testing import make_cluster, make_job

Said = Callable[..., str]
Told = Callable[..., Any]

CLUSTER = make_cluster(4)
RUNS = make_job("runs-1", gpus=3, group="runs", work=None)
WAITS = make_job("waits-2", at=10.0, gpus=4, group="waits", work=50.0)
SMALL = make_job("small-3", at=20.0, gpus=2, group="small", work=500.0)
HELD = make_job("held-4", at=25.0)
PRESENT = Entry(
    100.0,
    (
        *(PastJob(make_job(f"old-{number}", gpus=3, group="runs", work=None), 200.0) for number in range(5)),
        *(JobSubmitted(job) for job in (RUNS, WAITS, SMALL, HELD)),
        JobContinued("runs-1", 0, 0.0, 0, 0.0),
        RunAdopted("runs-1", 1, Allocation((Share(0, (0, 1, 2)),)), 5.0),
        JobHeld("held-4"),
    ),
)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def snapshot_of(*entries: Entry) -> bytes:
    header = Header(CLUSTER, "fifo", snapshot=True)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *entries))


class WithSnapshot(FakeService):
    """The service of a daemon whose present is known."""

    async def snapshot(self, caller: Caller, *, whole: bool) -> bytes:
        return snapshot_of(PRESENT)


@pytest.fixture
def served(serving: Callable[[type[FakeService]], Served]) -> Served:
    served = serving(WithSnapshot)
    for name in ("runs", "waits", "small"):
        job = served.do(served.service.add, Submission(name, ["true"]))
        served.service.all[job.id] = msgspec.structs.replace(job, start_estimate=None)
    served.do(served.service.start, "runs-1")
    return served


@pytest.fixture
def snapshot(served: Served, tmp_path: Path, said: Said) -> str:
    """As `refold snapshot` writes it."""
    path = str(tmp_path / "now.jsonl")
    assert said("snapshot", "-o", path) == f"snapshot: {path}\n"
    assert Path(path).read_bytes() == snapshot_of(PRESENT)
    return path


def test_to_whom_nothing_was_promised_the_futures_tell_when_it_may_start(served: Served, told: Told) -> None:
    document = told("queue", "--start", "--futures", "10")
    runs, waits, small = document["jobs"]
    assert "by" not in runs
    assert [waits["by"], small["by"]] == ["10 futures", "10 futures"]
    now = document["now"]
    assert now < waits["expected"]["soonest"] <= waits["expected"]["at"] <= waits["expected"]["latest"]
    assert waits["expected"]["at"] - now < 1_000  # it was 200 seconds five times
    assert small["expected"]["at"] >= waits["expected"]["at"]  # nobody overtakes under fifo
    assert document["notes"] == ["in these futures nobody else arrives; who comes later may come first (--arrivals)"]


def test_what_was_promised_is_told_before_what_may_come(served: Served, told: Told) -> None:
    promised = Interval(2e9, 2e9, 2.1e9)
    waits = served.service.all["waits-2"]
    served.service.all["waits-2"] = msgspec.structs.replace(waits, start_estimate=promised)
    assert [job.get("by") for job in told("queue", "--start")["jobs"]] == [None, "promise", "40 futures"]


def test_who_may_not_have_a_snapshot_is_told_what_is_promised(
    served: Served, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TOKEN", MEMBER)
    document = told("queue", "--start")
    assert [job.get("by") for job in document["jobs"]] == [None, "", ""]
    assert document["notes"] == ["only an owner can look ahead: what the policy has promised is told, and nothing else"]


def test_a_job_can_be_asked_about_before_it_is_submitted(served: Served, tmp_path: Path, told: Told) -> None:
    (tmp_path / "job.yaml").write_text("name: mine\ngpus: 1\ntime: {estimate: 100s}\nrun: 'true'\n")
    document = told("whatif", str(tmp_path / "job.yaml"), "--policy", "fifo-skip", "--gpus", "8", "--futures", "4")
    one, eight = document["ways"]
    assert one["start"]["at"] == document["now"]  # one GPU is free
    assert one["end"]["at"] == pytest.approx(document["now"] + 100.0)
    assert (eight["start"], eight["fits"]) == (None, False)
    assert list(served.service.all) == ["runs-1", "waits-2", "small-3"]


def test_a_snapshot_is_asked_like_a_journal(snapshot: str, said: Said, told: Told) -> None:
    assert lines(said("queue", snapshot))[2:] == [
        "1 waits-2 4 GPU default 1 min 30 s (NotLookedAt)",
        "2 small-3 2 GPU default 1 min 20 s (NotLookedAt: 1 job before it)",
    ]
    assert [job["by"] for job in told("queue", snapshot, "--futures", "3")["waiting"]] == ["3 futures", "3 futures"]


def test_policies_are_compared_on_what_is_left_to_do(snapshot: str, tmp_path: Path, told: Told) -> None:
    out = ("--out", str(tmp_path / "out"))
    document = told("compare", snapshot, "--policies", "fifo,sjf", *out)
    fifo, sjf = (run["measures"] for run in document["runs"])
    assert (fifo["jobs"], sjf["jobs"]) == (3, 3)
    left = fifo["makespan"] - 550.0  # of the one that runs, after which the others follow
    assert fifo["waiting"]["mean"] == pytest.approx((0 + left + left + 50) / 3)
    assert sjf["waiting"]["mean"] == pytest.approx((0 + 50 + 50 + left) / 3)  # the shortest goes first
    assert document["notes"] == [
        "who is there at the end of now.jsonl, submitted all at once: 3 jobs",
        "who runs begins anew, with what is left: 1 job",
        "who does not say it lasts as long as is most likely: 1 job",
        "who is held is left out: 1 job",
    ]


def test_what_runs_has_left_what_is_most_likely(snapshot: str) -> None:
    from refold.cli.inputs.backlog import read_queued
    from refold.cli.inputs.workload import TraceReadOptions
    from refold.simulator import Costs

    runs, waits, small = read_queued(snapshot, None, TraceReadOptions(), Costs()).jobs
    assert (waits.work, small.work) == (50.0, 500.0)
    assert runs.work is not None
    assert runs.work == pytest.approx(200.0 - 95.0, abs=60.0)  # it has run for 95 seconds, others did for 200
    assert [job.submitted for job in (runs, waits, small)] == [0.0, 0.0, 0.0]


def test_the_same_jobs_can_be_tried_on_another_cluster(snapshot: str, tmp_path: Path, told: Told) -> None:
    words = ("compare", snapshot, "--cluster", "3x4", "--policies", "fifo", "--out", str(tmp_path / "out"))
    [fifo] = told(*words)["runs"]
    assert fifo["measures"]["waiting"]["most"] == 0.0


def test_replay_asks_the_snapshots_own_policy_and_another(snapshot: str, told: Told, refuses: Said) -> None:
    document = told("replay", snapshot, "--policy", "sjf")
    assert [run["name"] for run in document["runs"]] == ["fifo (simulated)", "sjf (simulated)"]
    assert "is a snapshot, in which nothing was decided" in refuses("replay", snapshot)


def test_a_journal_at_whose_end_nobody_is_has_nothing_to_compare(tmp_path: Path, refuses: Said) -> None:
    path = tmp_path / "j.jsonl"
    with JournalFile(path, Header(CLUSTER, "fifo")) as file:
        file.write(Entry(0.0))
    told = refuses("compare", str(path), "--policies", "fifo", "--out", str(tmp_path / "out"))
    assert "nobody runs or waits at its end" in told
    assert f"refold replay {path} --policy NAME" in told


def test_the_daemons_journal_is_measured_and_drawn(
    served: Served, tmp_path: Path, said: Said, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.jsonl"
    with JournalFile(path, Header(CLUSTER, "fifo")) as file:
        start = StartRun("runs-1", 1, Allocation((Share(0, (0, 1, 2)),)))
        file.write(Entry(5.0, (JobSubmitted(RUNS),), (start,)))

    async def journal(_: Caller) -> Any:
        yield path.read_bytes()

    monkeypatch.setattr(served.service, "journal", journal)
    out = ("-o", str(tmp_path / "out"))
    assert "report: " in said("report", *out)
    assert (tmp_path / "out" / "report.html").exists()
    of_daemon, of_file = told("report", *out), told("report", str(path), *out)
    assert of_daemon["measures"] == of_file["measures"]
    assert (of_daemon["journal"], of_file["journal"]) == ("the daemon's journal", "j.jsonl")
