"""The page about running real jobs, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from live_setups import drive, shell_job

from refold.jobspec.jobs_file import KEYS, read_jobs

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_list_of_jobs_can_be_read_and_names_every_key(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "jobs.yaml").write_text(text, encoding="utf-8")
    assert [job.id for job in read_jobs(tmp_path / "jobs.yaml")] == ["train"]
    assert all(f"{key}: " in text for key in KEYS)


def test_a_journal_is_replayed_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    drive([shell_job("job", "true")], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("python")
    exec(compile(text, "live.md", "exec"), {})
    assert capsys.readouterr().out.endswith("entries agree\n")
