"""`refold whatif`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.core import Entry, Header
from refold.core.events import JobSubmitted
from refold.core.orders import StartRun
from refold.journal.files import JournalFile
from refold.model import Allocation, Share
from refold.testing import make_cluster, make_job

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

RUNNING = make_job("running", gpus=6, work=500.0)
WIDE = make_job("wide", at=10.0, gpus=8)


def write_journal(path: Path, policy: str = "fifo-skip", *, wide: bool = True) -> str:
    """Write a journal in which a job runs on six of eight GPUs and, if `wide`, another waits for all eight."""
    start = StartRun("running", 1, Allocation((Share(0, (0, 1, 2, 3, 4, 5)),)))
    with JournalFile(path, Header(make_cluster(8), policy)) as file:
        file.write(Entry(0.0, (JobSubmitted(RUNNING),), (start,)))
        if wide:
            file.write(Entry(10.0, (JobSubmitted(WIDE),)))
    return str(path)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return write_journal(tmp_path / "j.jsonl")


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("- {name: mine, run: 'true', gpus: 4, estimate: 100s}\n- {name: other, run: 'true'}\n")
    return str(path)


def test_each_variant_has_a_start_an_end_and_the_delay_of_others(journal: str, job: str, json_of: JsonOf) -> None:
    document = json_of("whatif", journal, job, "--gpus", "2,16", "--futures", "10")
    four, two, sixteen = document["variants"]
    assert [one["variant"] for one in document["variants"]] == ["as given: 4 GPUs", "2 GPUs", "16 GPUs"]
    assert four["start"]["soonest"] > 10.0  # after the running job
    assert four["end"]["at"] - four["start"]["at"] == pytest.approx(100.0)
    assert two["start"] == {"at": 10.0, "soonest": 10.0, "latest": 10.0}  # two are free
    assert two["end"]["at"] == pytest.approx(10.0 + 200.0)  # half as fast
    assert (sixteen["start"], sixteen["end"], sixteen["fits"]) == (None, None, False)
    assert [one["best"] for one in document["variants"]].count(True) == 1
    assert document["notes"][1:] == ["run time is assumed to be inversely proportional to the number of GPUs"]


def test_a_job_that_takes_gpus_from_a_waiting_job_delays_it(journal: str, tmp_path: Path, json_of: JsonOf) -> None:
    (tmp_path / "long.yaml").write_text("- {name: long, run: 'true', gpus: 1, estimate: 90d}\n")
    [only] = json_of("whatif", journal, str(tmp_path / "long.yaml"), "--futures", "5")["variants"]
    assert only["delayed_jobs"] == 1
    assert only["mean_delay_of_others"] > 86_400.0


def test_a_job_class_doubles_the_variants(journal: str, job: str, json_of: JsonOf) -> None:
    words = ("whatif", journal, job, "--gpus", "2", "--class", "best-effort", "--futures", "2")
    assert [one["variant"] for one in json_of(*words)["variants"]] == [
        "as given: 4 GPUs",
        "2 GPUs",
        "as given: 4 GPUs, best-effort",
        "2 GPUs, best-effort",
    ]


def test_a_table_marks_the_variant_that_ends_first(tmp_path: Path, job: str, stdout_of: TextOf) -> None:
    path = write_journal(tmp_path / "j.jsonl", wide=False)
    shown = [
        " ".join(line.split()) for line in stdout_of("whatif", path, job, "--gpus", "2", "--futures", "4").splitlines()
    ]
    assert shown[0] == "mine, submitted at 00:00:00, policy fifo-skip, 4 simulated futures"
    assert shown[3] == "2 GPUs 00:00:00 00:00:00 – 00:00:00 00:03:20 * 00:03:20 – 00:03:20 0 s 0"
    assert shown[4] == "* earliest end"


def test_another_policy_takes_over(tmp_path: Path, json_of: JsonOf) -> None:
    (tmp_path / "one.yaml").write_text("[{name: one, run: 'true'}]")
    words = (write_journal(tmp_path / "j.jsonl", "fifo"), str(tmp_path / "one.yaml"), "--futures", "4")
    [under_fifo] = json_of("whatif", *words)["variants"]
    document = json_of("whatif", *words, "--policy", "fifo-skip")
    [under_fifo_skip] = document["variants"]
    assert document["policy"] == "fifo-skip"
    assert (under_fifo["start"]["at"] > 10.0, under_fifo_skip["start"]["at"]) == (True, 10.0)


def test_unknown_run_times_are_predicted_from_the_history_of_the_journal(
    jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    path = str(tmp_path / "sjf.jsonl")
    stdout_of(
        "simulate", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--policy", "sjf", "--journal", path
    )
    (tmp_path / "one.yaml").write_text("[{name: a, run: 'true', gpus: 2}]")
    [only] = json_of("whatif", path, str(tmp_path / "one.yaml"), "--at", "120", "--futures", "10")["variants"]
    assert 120.0 <= only["start"]["at"] < only["end"]["soonest"] < only["end"]["latest"]


def test_if_no_variant_fits_the_status_is_1(journal: str, tmp_path: Path, invoke: Callable[..., Result]) -> None:
    (tmp_path / "huge.yaml").write_text("[{name: huge, run: 'true', gpus: 64}]")
    result = invoke("whatif", journal, str(tmp_path / "huge.yaml"), "--futures", "2")
    assert result.exit_code == 1
    assert "infeasible: 0 of 1 nodes fit: 1 has fewer than 64 GPUs in total" in " ".join(result.stdout.split())


def test_an_empty_journal_is_an_empty_cluster(tmp_path: Path, job: str, json_of: JsonOf) -> None:
    path = tmp_path / "empty.jsonl"
    with JournalFile(path, Header(make_cluster(8), "fifo")):
        pass
    [only] = json_of("whatif", str(path), job, "--futures", "2")["variants"]
    assert (only["start"]["at"], only["end"]["at"]) == (0.0, 100.0)


def test_bad_input_gives_a_one_line_error(journal: str, job: str, tmp_path: Path, error_of: TextOf) -> None:
    for gpus in ("x", "", "-1", "1.5", "nan", "inf", "1e99", "4,,8"):
        assert "expected a whole number ≥ 0, or a fraction of one GPU" in error_of(
            "whatif", journal, job, "--gpus", gpus
        )
    assert "unknown job class 'gold'" in error_of("whatif", journal, job, "--class", "gold")
    assert "unknown policy 'fifi'; did you mean 'fifo'?" in error_of("whatif", journal, job, "--policy", "fifi")
    assert "covers 00:00:00 to 00:00:10" in error_of("whatif", journal, job, "--at", "1h")
    assert "absent.yaml: no such file" in error_of("whatif", journal, str(tmp_path / "absent.yaml"))
    (tmp_path / "bad.yaml").write_text("- {name: x}\n")
    assert "run is missing" in error_of("whatif", journal, str(tmp_path / "bad.yaml"))
