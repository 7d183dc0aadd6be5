"""`refold whatif`, as it is typed."""

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

Said = Callable[..., str]
Told = Callable[..., Any]

HELD = make_job("held", gpus=6, work=500.0)
WIDE = make_job("wide", at=10.0, gpus=8)


def written(path: Path, policy: str = "fifo-skip", *, wide: bool = True) -> str:
    """Six of eight GPUs are held; perhaps somebody waits for all eight."""
    with JournalFile(path, Header(make_cluster(8), policy)) as file:
        file.write(
            Entry(0.0, (JobSubmitted(HELD),), (StartRun("held", 1, Allocation((Share(0, (0, 1, 2, 3, 4, 5)),))),))
        )
        if wide:
            file.write(Entry(10.0, (JobSubmitted(WIDE),)))
    return str(path)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return written(tmp_path / "j.jsonl")


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("- {name: mine, run: 'true', gpus: 4, work: 100s}\n- {name: other, run: 'true'}\n")
    return str(path)


def test_each_way_is_told_with_its_start_its_end_and_what_it_does_to_others(journal: str, job: str, told: Told) -> None:
    document = told("whatif", journal, job, "--gpus", "2,16", "--futures", "10")
    four, two, sixteen = document["ways"]
    assert [way["way"] for way in document["ways"]] == ["as given: 4 GPU", "2 GPU", "16 GPU"]
    assert four["start"]["soonest"] > 10.0  # it has to wait for the six
    assert four["end"]["at"] - four["start"]["at"] == pytest.approx(100.0)
    assert two["start"] == {"at": 10.0, "soonest": 10.0, "latest": 10.0}  # two are free
    assert two["end"]["at"] == pytest.approx(10.0 + 200.0)  # half as fast
    assert (sixteen["start"], sixteen["end"], sixteen["fits"]) == (None, None, False)
    assert [way["best"] for way in document["ways"]].count(True) == 1
    assert document["notes"][1:] == ["on other GPUs its work is taken to be in proportion to them"]


def test_who_takes_what_another_waits_for_delays_it(journal: str, tmp_path: Path, told: Told) -> None:
    (tmp_path / "long.yaml").write_text("- {name: long, run: 'true', gpus: 1, work: 90d}\n")
    [way] = told("whatif", journal, str(tmp_path / "long.yaml"), "--futures", "5")["ways"]
    assert way["delayed"] == 1
    assert way["others_delayed"] > 86_400.0


def test_a_class_is_another_way_of_each(journal: str, job: str, told: Told) -> None:
    ways = told("whatif", journal, job, "--gpus", "2", "--class", "best-effort", "--futures", "2")["ways"]
    assert [way["way"] for way in ways] == [
        "as given: 4 GPU",
        "2 GPU",
        "as given: 4 GPU, best-effort",
        "2 GPU, best-effort",
    ]


def test_a_table_marks_the_way_that_ends_first(tmp_path: Path, job: str, said: Said) -> None:
    path = written(tmp_path / "j.jsonl", wide=False)
    shown = [" ".join(line.split()) for line in said("whatif", path, job, "--gpus", "2", "--futures", "4").splitlines()]
    assert shown[0] == "mine, if it were submitted at 00:00:00, under fifo-skip; in 4 futures"
    assert shown[3] == "2 GPU 00:00:00 00:00:00 – 00:00:00 00:03:20 * 00:03:20 – 00:03:20 0 s 0"
    assert shown[4] == "* ends first"


def test_another_policy_takes_over(tmp_path: Path, told: Told) -> None:
    (tmp_path / "one.yaml").write_text("[{name: one, run: 'true'}]")
    asked = (written(tmp_path / "j.jsonl", "fifo"), str(tmp_path / "one.yaml"), "--futures", "4")
    [behind] = told("whatif", *asked)["ways"]
    document = told("whatif", *asked, "--policy", "fifo-skip")
    [before] = document["ways"]
    assert document["policy"] == "fifo-skip"
    assert (behind["start"]["at"] > 10.0, before["start"]["at"]) == (True, 10.0)


def test_a_job_that_says_nothing_is_predicted_from_the_history_of_the_journal(
    jobs: Path, tmp_path: Path, said: Said, told: Told
) -> None:
    path = str(tmp_path / "sjf.jsonl")
    said("simulate", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--policy", "sjf", "--journal", path)
    (tmp_path / "one.yaml").write_text("[{name: a, run: 'true', gpus: 2}]")
    [way] = told("whatif", path, str(tmp_path / "one.yaml"), "--at", "120", "--futures", "10")["ways"]
    assert 120.0 <= way["start"]["at"] < way["end"]["soonest"] < way["end"]["latest"]


def test_where_no_way_fits_the_answer_is_no(journal: str, tmp_path: Path, typed: Callable[..., Result]) -> None:
    (tmp_path / "huge.yaml").write_text("[{name: huge, run: 'true', gpus: 64}]")
    result = typed("whatif", journal, str(tmp_path / "huge.yaml"), "--futures", "2")
    assert result.exit_code == 1
    assert "never fits: 0 of 1 nodes fit: 1 × too few GPUs at all" in " ".join(result.stdout.split())


def test_an_empty_journal_is_an_empty_cluster(tmp_path: Path, job: str, told: Told) -> None:
    path = tmp_path / "empty.jsonl"
    with JournalFile(path, Header(make_cluster(8), "fifo")):
        pass
    [way] = told("whatif", str(path), job, "--futures", "2")["ways"]
    assert (way["start"]["at"], way["end"]["at"]) == (0.0, 100.0)


def test_garbage_is_refused_in_one_line(journal: str, job: str, tmp_path: Path, refuses: Said) -> None:
    for gpus in ("x", "", "-1", "1.5", "nan", "inf", "1e99", "4,,8"):
        assert "expected a whole number ≥ 0, or a part of one GPU" in refuses("whatif", journal, job, "--gpus", gpus)
    assert "no class 'gold'" in refuses("whatif", journal, job, "--class", "gold")
    assert "no policy 'fifi'; did you mean 'fifo'?" in refuses("whatif", journal, job, "--policy", "fifi")
    assert "goes from 00:00:00 to 00:00:10" in refuses("whatif", journal, job, "--at", "1h")
    assert "cannot be read" in refuses("whatif", journal, str(tmp_path / "absent.yaml"))
    (tmp_path / "bad.yaml").write_text("- {name: x}\n")
    assert "run is absent" in refuses("whatif", journal, str(tmp_path / "bad.yaml"))
