"""`refold show`: a journal in the web UI."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from journals import start, step, submitted, write_entries

from refold.core import Header, RunFinished
from refold.testing import make_cluster, make_job


@pytest.fixture
def journal(tmp_path: Path) -> str:
    job = make_job("</script><script>alert(1)</script>")
    entries = [step(0.0, submitted(job), start(job.id)), step(60.0, RunFinished(job.id, 1))]
    return write_entries(tmp_path / "journal.jsonl", Header(make_cluster(2), "fifo"), entries)


def test_an_export_is_one_file_that_contains_everything(
    journal: str, tmp_path: Path, stdout_of: Callable[..., str]
) -> None:
    path = tmp_path / "page.html"
    assert stdout_of("show", journal, "--export", str(path)) == (
        f"journal.jsonl: 1 job, policy fifo, 00:00:00 to 00:01:00\npage: {path}\n"
    )
    page = path.read_text()
    assert "<script>alert" not in page
    assert page.count("</script>") == 3  # import map, start, recording
    assert 'src="' not in page
    assert 'href="' not in page.replace('href="data:', "")


def test_an_export_says_as_json_what_it_has_written(
    journal: str, tmp_path: Path, stdout_of: Callable[..., str]
) -> None:
    path = str(tmp_path / "page.html")
    assert json.loads(stdout_of("show", journal, "--export", path, "--json")) == {
        "journal": "journal.jsonl",
        "policy": "fifo",
        "jobs": 1,
        "entries": 2,
        "since": 0.0,
        "until": 60.0,
        "page": path,
    }


@pytest.mark.parametrize(("name", "problem"), [("notes.txt", "is not a journal"), ("missing.jsonl", "cannot be read")])
def test_a_file_that_is_no_journal_is_an_error_in_one_line(
    name: str, problem: str, tmp_path: Path, error_of: Callable[..., str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    error = error_of("show", str(tmp_path / name))
    assert problem in error
    assert "\n" not in error.strip()


def test_a_page_that_cannot_be_written_is_an_error(journal: str, tmp_path: Path, error_of: Callable[..., str]) -> None:
    error = error_of("show", journal, "--export", str(tmp_path / "no" / "page.html"))
    assert "cannot be written: No such file or directory" in error


def test_the_page_is_served_until_the_command_is_interrupted(journal: str) -> None:
    command = [sys.executable, "-m", "refold.cli.app", "show", journal, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            shown = json.loads(process.stdout.readline())
            with urlopen(shown["url"].partition("#")[0]) as answer:
                assert b"recording.json" in answer.read()
        finally:
            process.terminate()
    assert (shown["jobs"], "#open=" in shown["url"]) == (1, True)
