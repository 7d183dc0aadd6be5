"""`refold queue` of a journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journals import write_entries
from typer.testing import Result

from refold.cli.inputs import journal_state
from refold.cli.views import screen
from refold.core import Entry, Header
from refold.core.events import JobCancelled, JobSubmitted, RunFinished
from refold.core.orders import StartRun
from refold.model import Allocation, Reason, Share, StartEstimate, Wait
from refold.testing import make_cluster, make_job

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

RUNNING = make_job("running", gpus=3, work=500.0, tenant="vision")
WIDE = make_job("wide", at=10.0, gpus=4, tenant="speech")
NARROW = make_job("narrow", at=20.0, tenant="vision")
HUGE = make_job("huge", at=30.0, gpus=8)

ENTRIES = (
    Entry(0.0, (JobSubmitted(RUNNING),), (StartRun("running", 1, Allocation((Share(0, (0, 1, 2)),))),)),
    Entry(10.0, (JobSubmitted(WIDE),), waits=(Wait("wide", Reason.RESOURCES),)),
    Entry(20.0, (JobSubmitted(NARROW),), waits=(Wait("narrow", Reason.PRIORITY),)),
    Entry(30.0, (JobSubmitted(HUGE),)),
)


def write_journal(path: Path, *entries: Entry, policy: str = "fifo") -> str:
    return write_entries(path, Header(make_cluster(4), policy), entries)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return write_journal(tmp_path / "j.jsonl", *ENTRIES)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_waiting_jobs_are_listed_with_their_waiting_time_and_reason(journal: str, stdout_of: TextOf) -> None:
    assert lines(stdout_of("queue", journal)) == [
        "00:00:30: 3 waiting, 1 running, 1 of 4 GPUs free, policy fifo",
        "job GPUs tenant waiting time reason",
        "1 wide 4 GPUs speech 20 s (Resources: 0 of 1 nodes fit: 1 has fewer than 4 free GPUs)",
        "2 narrow 1 GPU vision 10 s (Priority: 1 job ahead)",
        "3 huge 8 GPUs default 0 s (Infeasible: 0 of 1 nodes fit: 1 has fewer than 8 GPUs in total)",
    ]


def test_the_queue_as_json(journal: str, json_of: JsonOf) -> None:
    document = json_of("queue", journal, "--at", "25s")
    assert document == {
        "journal": journal,
        "policy": "fifo",
        "now": 25.0,
        "free_gpus": 1.0,
        "gpus": 4,
        "waiting": [
            {
                "position": 1,
                "job": "wide",
                "demand": "4 GPUs",
                "gpus": 4.0,
                "tenant": "speech",
                "since": 10.0,
                "waited": 15.0,
                "reason": "Resources",
                "message": "(Resources: 0 of 1 nodes fit: 1 has fewer than 4 free GPUs)",
            },
            {
                "position": 2,
                "job": "narrow",
                "demand": "1 GPU",
                "gpus": 1.0,
                "tenant": "vision",
                "since": 20.0,
                "waited": 5.0,
                "reason": "Priority",
                "message": "(Priority: 1 job ahead)",
            },
        ],
        "notes": [],
    }


def test_start_estimates_are_simulated(journal: str, json_of: JsonOf) -> None:
    document = json_of("queue", journal, "--start", "--futures", "10")
    wide, narrow, huge = document["waiting"]
    assert [one["source"] for one in document["waiting"]] == ["10 futures", "10 futures", ""]
    assert 30.0 <= wide["soonest"] <= wide["expected"] <= wide["latest"]
    assert narrow["expected"] >= wide["expected"]  # fifo allows no overtaking
    assert (huge["expected"], huge["soonest"], huge["latest"]) == (None, None, None)
    assert document["notes"] == [
        "estimates assume no new jobs; jobs submitted later may start first (--arrivals simulates them)"
    ]


def test_new_jobs_can_arrive_in_the_simulated_futures(journal: str, json_of: JsonOf, error_of: TextOf) -> None:
    document = json_of("queue", journal, "--start", "--futures", "3", "--arrivals")
    assert document["notes"] == ["estimates assume that new jobs arrive as in the past"]
    assert "--arrivals needs --start" in error_of("queue", journal, "--arrivals")


START_ESTIMATES = (
    StartEstimate("wide", 500.0, 400.0, 900.0),
    StartEstimate("narrow", 3_600.0, latest=90_000.0),
)


def test_start_estimates_of_the_policy_are_shown_unchanged(tmp_path: Path, stdout_of: TextOf, json_of: JsonOf) -> None:
    path = write_journal(tmp_path / "j.jsonl", *ENTRIES[:3], Entry(30.0, start_estimates=START_ESTIMATES))
    assert lines(stdout_of("queue", path, "--start"))[2:] == [
        "1 wide 4 GPUs speech 20 s 00:08:20 00:06:40 – 00:15:00 policy "
        "(Resources: 0 of 1 nodes fit: 1 has fewer than 4 free GPUs)",
        "2 narrow 1 GPU vision 10 s 01:00:00 – 1 d 01:00:00 policy (Priority: 1 job ahead)",
    ]
    assert [one["source"] for one in json_of("queue", path, "--futures", "3")["waiting"]] == ["3 futures", "3 futures"]


def test_estimates_that_have_passed_are_marked(tmp_path: Path, json_of: JsonOf) -> None:
    path = write_journal(
        tmp_path / "j.jsonl", *ENTRIES[:3], Entry(30.0, start_estimates=START_ESTIMATES), Entry(901.0), Entry(9e4)
    )
    expected = {"500": "policy", "501": "policy, late", "900": "policy, late", "901": "policy, bound passed"}
    for at, source in expected.items():
        waiting = json_of("queue", path, "--start", "--at", at)["waiting"]
        assert [one["source"] for one in waiting] == [source, "policy"]


def test_running_jobs_are_listed_with_their_end_estimate(journal: str, stdout_of: TextOf, json_of: JsonOf) -> None:
    [row] = json_of("queue", journal, "--running")["running"]
    assert (row["job"], row["gpus"], row["ran"], row["placement"]) == ("running", 3.0, 30.0, "n0 (GPUs 0, 1, 2)")
    assert 30.0 <= row["soonest"] <= row["expected"] <= row["latest"]
    assert "Running jobs" in stdout_of("queue", journal, "--running")


def test_limit_shows_the_first_jobs(journal: str, stdout_of: TextOf) -> None:
    assert lines(stdout_of("queue", journal, "--limit", "1"))[-1] == "… and 2 more jobs"


def test_an_empty_queue_has_only_a_title(tmp_path: Path, stdout_of: TextOf) -> None:
    ended = Entry(40.0, (RunFinished("running", 1), JobCancelled("wide"), JobCancelled("narrow")))
    path = write_journal(tmp_path / "j.jsonl", *ENTRIES[:3], ended)
    title = lines(stdout_of("queue", path, "--start"))[0]
    assert title == "00:00:40: 0 waiting, 0 running, 4 of 4 GPUs free, policy fifo"


def test_a_journal_without_entries_has_an_empty_queue(tmp_path: Path, stdout_of: TextOf) -> None:
    path = write_journal(tmp_path / "j.jsonl")
    for more in ([], ["--start"], ["--running"]):
        assert "00:00:00: 0 waiting, 0 running, 4 of 4 GPUs free, policy fifo" in stdout_of("queue", path, *more)


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path, stdout_of: TextOf) -> None:
    path = write_journal(tmp_path / "j.jsonl", *ENTRIES[:2])
    with Path(path).open("a", encoding="utf-8") as file:
        file.write('{"now": 20.0, "events": [{"type": "JobSub')
    assert lines(stdout_of("queue", path, "--start"))[0].startswith("00:00:10: 1 waiting")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1h30m", 5_400.0), ("00:01:30", 90.0), ("1 d 02:00:03", 93_603.0), ("2d 1:30", 178_200.0)],
)
def test_times_are_durations_or_in_the_format_of_tables(text: str, seconds: float) -> None:
    assert journal_state.parse_time(text) == seconds


def test_a_time_outside_the_journal_is_rejected(journal: str, tmp_path: Path, error_of: TextOf) -> None:
    assert error_of("queue", journal, "--at", "2h") == f"error: --at 2h: {journal} covers 00:00:00 to 00:00:30\n"
    later = write_journal(tmp_path / "later.jsonl", Entry(100.0, (JobSubmitted(NARROW),)))
    assert error_of("queue", later, "--at", "5") == f"error: --at 5: {later} covers 00:01:40 to 00:01:40\n"
    empty = write_journal(tmp_path / "empty.jsonl")
    assert error_of("queue", empty, "--at", "0") == f"error: --at 0: {empty} has no entries yet\n"


def test_bad_input_gives_a_one_line_error(journal: str, tmp_path: Path, error_of: TextOf) -> None:
    assert "'yesterday' is not a time; expected a time such as 90s" in error_of("queue", journal, "--at", "yesterday")
    assert "cannot be read" in error_of("queue", str(tmp_path / "absent.jsonl"))
    (tmp_path / "no.jsonl").write_text("hello\n")
    assert "is not a journal" in error_of("queue", str(tmp_path / "no.jsonl"))
    unknown = write_journal(tmp_path / "u.jsonl", *ENTRIES, policy="no-such-policy")
    assert "unknown policy 'no-such-policy'" in error_of("queue", unknown, "--start")
    other = write_journal(tmp_path / "o.jsonl", *ENTRIES, policy="sjf")
    assert "the policy does not repeat the recorded decisions" in error_of("queue", other, "--start")
    assert "--watch cannot be combined with --json" in error_of("queue", journal, "--watch", "--json")
    assert "cannot be combined with --at" in error_of("queue", journal, "--watch", "--at", "1")


def test_now_is_the_last_entry_plus_the_age_of_the_file(journal: str, json_of: JsonOf) -> None:
    written_at = Path(journal).stat().st_mtime
    os.utime(journal, (written_at, written_at - 1_000))
    document = json_of("queue", journal, "--at", "now", "--running")
    assert 1_030.0 <= document["now"] < 2_000.0
    assert document["running"][0]["ran"] == document["now"]
    os.utime(journal, (written_at, written_at + 1_000))  # by a clock that is ahead
    assert json_of("queue", journal, "--at", "now")["now"] == 30.0


def test_the_policy_is_not_needed_to_list_waiting_jobs(tmp_path: Path, stdout_of: TextOf) -> None:
    assert "3 waiting" in stdout_of("queue", write_journal(tmp_path / "u.jsonl", *ENTRIES, policy="no-such-policy"))


def test_watch_refreshes_until_interrupted(
    journal: str, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(screen, "sleep", sleep)
    result = invoke("queue", journal, "--watch")
    assert result.stdout.count("3 waiting") == 2
    assert sleeps == [2.0, 2.0]


def test_the_queue_of_a_simulated_journal_can_be_shown_at_any_time(
    jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    path = str(tmp_path / "las.jsonl.gz")
    stdout_of(
        "simulate", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--policy", "las", "--journal", path
    )
    for at in ("0", "3", "60", "120"):
        document = json_of("queue", path, "--at", at, "--futures", "4", "--running")
        assert all(one["expected"] >= float(at) for one in document["waiting"] + document["running"])


def test_a_journal_of_a_machine_without_gpus_is_about_slots(tmp_path: Path, stdout_of: TextOf) -> None:
    journal = write_entries(tmp_path / "slots.jsonl", Header(make_cluster(4, types="slot"), "fifo"), ENTRIES)
    for words in (("queue", journal, "--running"), ("why", journal, "wide")):
        printed = stdout_of(*words)
        assert "4 slots" in printed
        assert "GPU" not in printed
