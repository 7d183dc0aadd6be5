"""`refold submit`, as it is typed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import FakeService, Served
from typer.testing import Result

from refold.api.roles import Caller
from refold.api.wire import JobStatus, Submission
from refold.model import Plan

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]


class Kept(FakeService):
    """Keeps what was submitted, as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Submission] = []

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        self.submitted.append(msgspec.structs.replace(submission, request=""))
        return await super().submit(caller, submission)


@pytest.fixture
def served(serving: Callable[[type[FakeService]], Served]) -> Served:
    return serving(Kept)


@pytest.fixture
def submitted(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    """What the daemon was asked for, from a folder with a job in it."""
    (tmp_path / "job.yaml").write_text("name: train\ngpus: 4\nnum_nodes: 2\nenvs: {SEED: 3}\nrun: python train.py\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(served.service, Kept)
    return served.service.submitted


def test_a_command_after_two_dashes_is_a_job_and_its_id_is_printed(
    submitted: list[Submission], tmp_path: Path, said: Said
) -> None:
    assert said("submit", "--gpus", "2", "--", "python", "train.py", "--gpus", "8", "--", "-x") == "train-1\n"
    command = ["python", "train.py", "--gpus", "8", "--", "-x"]
    assert submitted == [Submission("train", command, gpus=2, folder=str(tmp_path))]


def test_a_file_is_submitted_as_it_says(submitted: list[Submission], tmp_path: Path, said: Said) -> None:
    assert said("submit", "job.yaml") == "train-1\n"
    [job] = submitted
    assert (job.name, job.instances, job.gpus, job.environment) == ("train", 2, 2, {"SEED": "3"})
    assert job.folder == str(tmp_path)


CHANGES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--name", "other"), {"name": "other"}),
    (("--gpus", "8"), {"gpus": 4}),
    (("--gpus", "2..8"), {"gpus": 1, "gpu_range": (2, 8)}),
    (("--gpus", "0.5"), {"gpus": 1, "gpu_share": 0.5}),
    (("--gpus", "3", "--instances", "3"), {"gpus": 1, "instances": 3}),
    (("--gpus", "H100:2"), {"gpus": 1, "gpu_types": ["H100"]}),
    (("--gpu-type", "A100, H100"), {"gpu_types": ["A100", "H100"]}),
    (("--instances", "3"), {"instances": 3}),
    (("--cpus", "1.5", "--memory", "32"), {"cpus": 1.5, "memory_gib": 32.0}),
    (("--memory", "512MB"), {"memory_gib": 0.5}),
    (("--tenant", "vision", "--class", "best-effort"), {"tenant": "vision", "job_class": "best-effort"}),
    (("--priority", "-3"), {"priority": -3}),
    (("--time", "1h30m", "--estimate", "20m"), {"time_limit": 5400.0, "estimate": 1200.0}),
    (("--steps", "1000", "--plan", "auto"), {"steps": 1000, "plan": "auto"}),
    (("--plan", "tp2"), {"plan": Plan(data=2, tensor=2)}),
    (("--plan", "off"), {}),
    (("--env", "A=b=c", "--env", "SEED="), {"environment": {"SEED": "", "A": "b=c"}}),
    (("--secret", "A_TOKEN"), {"secrets": {"A_TOKEN": "hush"}}),
    (("--workdir", "/"), {"folder": "/"}),
    (("--retries", "2", "--after", "train-1"), {"retries": 2, "after": ["train-1"]}),
    (("--notify", "json://x", "--hold"), {"notify": ["json://x"], "hold": True}),
]


@pytest.mark.parametrize(("options", "fields"), CHANGES, ids=[" ".join(options) for options, _ in CHANGES])
def test_options_come_before_what_the_file_says(
    options: tuple[str, ...],
    fields: dict[str, Any],
    submitted: list[Submission],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_TOKEN", "hush")
    said("submit", "job.yaml")
    said("submit", "job.yaml", *options)
    plain, changed = submitted
    assert changed == msgspec.structs.replace(plain, **fields)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "what is to be submitted?"),
        (("job.yaml", "--", "true"), "what is to be submitted?"),
        (("--",), "what is to be submitted?"),
        (("absent.yaml",), "absent.yaml"),
        (("job.yaml", "--gpus", "many"), "--gpus many: expected a number such as 8"),
        (("job.yaml", "--gpus", ""), "--gpus : expected a number"),
        (("job.yaml", "--gpus", "3"), "--gpus 3: expected GPUs in all that 2 instances have equally many of"),
        (("job.yaml", "--gpus", "nan"), "nan"),
        (("job.yaml", "--gpus", "-1"), "--gpus -1: expected"),
        (("job.yaml", "--memory", "lots"), "--memory lots: expected memory"),
        (("job.yaml", "--time", "soon"), "--time soon: expected how long"),
        (("job.yaml", "--estimate", "inf"), "--estimate inf: expected how long"),
        (("job.yaml", "--class", "best"), "no class 'best'"),
        (("job.yaml", "--plan", "xp3"), "'xp3' is not a plan"),
        (("job.yaml", "--env", "A"), "--env A: expected NAME=VALUE"),
        (("job.yaml", "--env", "1A=2"), "'1A' is not a name for a variable"),
        (("job.yaml", "--secret", "NOT_THERE"), "the environment has no such variable"),
        (("job.yaml", "--name", "a b"), "name is 'a b'"),
        (("job.yaml", "--priority", "99999999999"), "priority"),
        (("job.yaml", "--retries", "5000"), "--retries"),
    ],
)
def test_what_cannot_be_submitted_is_told_in_one_line(
    words: tuple[str, ...], told: str, submitted: list[Submission], refuses: Said
) -> None:
    assert told in refuses("submit", *words)
    assert submitted == []


def test_notes_on_what_is_not_honoured_go_to_stderr(submitted: list[Submission], tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --partition=long\n#SBATCH --array=0-2\nhostname\n")
    result = typed("submit", "a.sbatch")
    assert result.exit_code == 0
    assert result.stdout.split() == ["a-1", "a-2", "a-3"]
    assert "note: a.sbatch line 2" in result.stderr
    assert [job.environment["SLURM_ARRAY_TASK_ID"] for job in submitted] == ["0", "1", "2"]


def test_a_dry_run_tells_what_would_become_of_it(
    submitted: list[Submission], served: Served, said: Said, told: Told
) -> None:
    assert [
        line.rstrip().split(maxsplit=1) for line in said("submit", "job.yaml", "--dry-run").rstrip().splitlines()
    ] == [
        ["job", "train"],
        ["command", "python train.py"],
        ["in", str(Path.cwd())],
        ["size", "4 GPUs, guaranteed"],
        ["starts", "at once"],
    ]
    assert told("submit", "job.yaml", "--dry-run")["preview"]["starts_now"] is True
    assert "never: the whole cluster, empty, has no room" in said("submit", "job.yaml", "--gpus", "64", "--dry-run")
    served.do(served.service.add, Submission("other", ["true"]))
    assert ", after 1 job that waits before it" in said("submit", "job.yaml", "--dry-run")
    assert submitted == []


def test_a_submission_for_programs(submitted: list[Submission], told: Told) -> None:
    [status] = told("submit", "job.yaml", "--hold")
    assert (status["id"], status["state"]) == ("train-1", "held")


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_waiting_ends_with_the_job_and_the_status_tells_how(
    state: str, status: int, submitted: list[Submission], served: Served, typed: Typed
) -> None:
    ends = threading.Timer(0.2, lambda: served.do(served.service.end, "train-1", state, "so it was"))
    ends.start()
    result = typed("submit", "job.yaml", "--wait")
    assert (result.exit_code, result.stdout) == (status, "train-1\n")
    assert result.stderr == f"train-1 {state}: so it was\n"


def on_terminal(words: list[str], answer: bytes) -> tuple[str, int]:
    """What somebody sees who types this and answers the question; and the exit status."""
    keyboard, screen = pty.openpty()
    command = [sys.executable, "-m", "refold.cli.app", *words]
    process = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, start_new_session=True)
    os.close(screen)
    seen = b""
    while select.select([keyboard], [], [], 30)[0]:
        try:
            piece = os.read(keyboard, 4096)
        except OSError:
            break
        if b"submit? [Y/n]" in seen + piece and b"submit? [Y/n]" not in seen:
            os.write(keyboard, answer)
        seen += piece
    os.close(keyboard)
    return seen.decode().replace("\r\n", "\n"), process.wait(30)


def test_on_a_terminal_it_is_shown_and_asked_and_told_what_to_do_next(submitted: list[Submission]) -> None:
    seen, status = on_terminal(["submit", "job.yaml"], b"\n")
    assert status == 0
    assert seen.index("size") < seen.index("submit? [Y/n]") < seen.index("train-1 is submitted")
    assert "refold logs -f train-1" in seen
    assert len(submitted) == 1


@pytest.mark.parametrize(("answer", "expected"), [(b"n\n", 1), (b"\x04", 130)])
def test_who_says_no_has_submitted_nothing(answer: bytes, expected: int, submitted: list[Submission]) -> None:
    seen, status = on_terminal(["submit", "job.yaml"], answer)
    assert (status, "Traceback" in seen, submitted) == (expected, False, [])
