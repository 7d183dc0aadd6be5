"""docs/live.md: its job list is valid and complete, and its Python example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from live_setups import drive, shell_job

from refold.client.jobspec.reader import read_jobs

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_job_list_is_valid(tmp_path: Path) -> None:
    (text,) = code_blocks("yaml")
    (tmp_path / "jobs.yaml").write_text(text, encoding="utf-8")
    jobs, notes = read_jobs(tmp_path / "jobs.yaml")
    assert ([(job.id, job.submitted) for job in jobs], notes) == ([("prepare", 0.0), ("train", 10.0)], [])


def test_the_replay_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    drive([shell_job("job", "true")], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    (text,) = code_blocks("python")
    exec(compile(text, "live.md", "exec"), {})
    assert capsys.readouterr().out.endswith("entries agree\n")
