"""`refold submit`."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import FakeServer, FakeService
from typer.testing import Result

from refold.client.api.queries import Caller
from refold.client.api.questions import Preview
from refold.client.api.submissions import Submission
from refold.client.api.wire import JobStatus
from refold.errors import BadInput, TooManyRequests
from refold.model import Plan, TopologyRequest

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]


class RecordingService(FakeService):
    """Records the submissions that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Submission] = []
        self.inherited: list[dict[str, str] | None] = []

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        self.inherited.append(self.environments.get(submission.exported))
        self.submitted.append(msgspec.structs.replace(submission, request="", exported=""))
        return await super().submit(caller, submission)


@pytest.fixture
def served(start_server: Callable[[type[FakeService]], FakeServer]) -> FakeServer:
    return start_server(RecordingService)


@pytest.fixture
def submitted(served: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    """The submissions received by the daemon; the current folder contains a job file."""
    (tmp_path / "job.yaml").write_text("name: train\ngpus: 4\nnum_nodes: 2\nenvs: {SEED: 3}\nrun: python train.py\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(served.service, RecordingService)
    return served.service.submitted


def test_the_training_framework_is_submitted(submitted: list[Submission], stdout_of: TextOf, error_of: TextOf) -> None:
    stdout_of("submit", "--engine", "megatron", "job.yaml")
    assert submitted[0].engine == "megatron"
    assert "unknown launch engine 'lightning'" in error_of("submit", "--engine", "lightning", "job.yaml")


def test_a_command_after_two_dashes_is_submitted_and_its_id_printed(
    submitted: list[Submission], tmp_path: Path, stdout_of: TextOf
) -> None:
    assert stdout_of("submit", "--gpus", "2", "--", "python", "train.py", "--gpus", "8", "--", "-x") == "train-1\n"
    command = ["python", "train.py", "--gpus", "8", "--", "-x"]
    assert submitted == [Submission("train", command, gpus=2, folder=str(tmp_path))]


def test_a_job_file_is_submitted(submitted: list[Submission], tmp_path: Path, stdout_of: TextOf) -> None:
    assert stdout_of("submit", "job.yaml") == "train-1\n"
    [job] = submitted
    assert (job.name, job.instances, job.gpus, job.environment) == ("train", 2, 2, {"SEED": "3"})
    assert job.folder == str(tmp_path)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "JSON"])
def test_a_job_that_does_not_fit_yet_is_noted_for_scripts_too(
    words: tuple[str, ...], served: FakeServer, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit(_: Caller, submission: Submission) -> JobStatus:
        return msgspec.structs.replace(served.service.add(submission), state="infeasible", message="too large")

    monkeypatch.setattr(served.service, "submit", submit)
    result = invoke("submit", *words, "--gpus", "9", "--allow-impossible", "--", "true")
    assert (result.exit_code, result.stderr) == (0, "note: true-1 cannot start until nodes are added: too large\n")


CHANGES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--name", "other"), {"name": "other"}),
    (("--gpus", "8"), {"gpus": 4}),
    (("--gpus", "2..8"), {"gpus": 1, "gpu_range": (2, 8)}),
    (("--gpus", "0.5"), {"gpus": 1, "gpu_share": 0.5}),
    (("--gpus", "3", "--instances", "3"), {"gpus": 1, "instances": 3}),
    (("--gpus", "H100:2"), {"gpus": 1, "gpu_types": ["H100"]}),
    (("--gpu-type", "A100, H100"), {"gpu_types": ["A100", "H100"]}),
    (("--required-level", "rack"), {"topology": TopologyRequest("rack")}),
    (("--switches", "1@10m"), {"topology": TopologyRequest(most=1, wait=600.0)}),
    (("--segment", "1:rack", "--preferred-level", "b"), {"topology": TopologyRequest("", "b", 1, "rack")}),
    (("--instances", "3"), {"instances": 3}),
    (("--cpus", "1.5", "--memory", "32"), {"cpus": 1.5, "memory_gib": 32.0}),
    (("--cpus", "auto", "--memory", "auto"), {"cpus": "auto", "memory_gib": "auto"}),
    (("--memory", "512MB"), {"memory_gib": 0.5}),
    (("--tenant", "vision", "--class", "best-effort"), {"tenant": "vision", "job_class": "best-effort"}),
    (("--priority", "-3"), {"priority": -3}),
    (("--reshape-at-most", "5", "--reshape-every", "10m"), {"reshape_at_most": 5, "reshape_every": 600.0}),
    (("--time", "1h30m", "--estimate", "20m"), {"time_limit": 5400.0, "estimate": 1200.0}),
    (("--steps", "1000", "--plan", "auto"), {"steps": 1000, "plan": "auto"}),
    (("--plan", "tp2"), {"plan": Plan(data=2, tensor=2)}),
    (("--plan", "off"), {}),
    (("--env", "A=b=c", "--env", "SEED="), {"environment": {"SEED": "", "A": "b=c"}}),
    (("--secret", "A_TOKEN"), {"secrets": {"A_TOKEN": "hush"}}),
    (("--workdir", "/"), {"folder": "/"}),
    (("--retries", "2", "--after", "train-1"), {"retries": 2, "after": ["train-1"]}),
    (("--after", "afterany:7:8", "--after", "singleton"), {"after": ["afterany:7", "afterany:8", "singleton"]}),
    (("--dependency", "afterany:train-7"), {"after": ["afterany:train-7"]}),
    (("--preemptible",), {"preemptible": True}),
    (("--no-preemptible",), {"preemptible": False}),
    (("--notify", "json://x", "--hold"), {"notify": ["json://x"], "hold": True}),
    (("--allow-impossible",), {"allow_impossible": True}),
    (("-o", "%x.out", "--error", "%x.err"), {"output": "%x.out", "error": "%x.err"}),
]


@pytest.mark.parametrize(("options", "fields"), CHANGES, ids=[" ".join(options) for options, _ in CHANGES])
def test_options_override_the_file(
    options: tuple[str, ...],
    fields: dict[str, Any],
    submitted: list[Submission],
    stdout_of: TextOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_TOKEN", "hush")
    stdout_of("submit", "job.yaml")
    stdout_of("submit", "job.yaml", *options)
    plain, changed = submitted
    assert changed == msgspec.structs.replace(plain, **fields)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected a file"),
        (("job.yaml", "--", "true"), "expected a file"),
        (("--",), "expected a file"),
        (("absent.yaml",), "absent.yaml"),
        (("job.yaml", "--gpus", "many"), "--gpus many: expected a number such as 8"),
        (("job.yaml", "--gpus", ""), "--gpus : expected a number"),
        (("job.yaml", "--gpus", "3"), "--gpus 3: expected a total that is divisible by 2 instances"),
        (("job.yaml", "--gpus", "nan"), "nan"),
        (("job.yaml", "--gpus", "-1"), "--gpus -1: expected"),
        (("job.yaml", "--switches", "x"), "--switches x: expected domains and how long to wait for them"),
        (("job.yaml", "--segment", "x"), "--segment x: expected instances and a level, such as 16 or 16:rack"),
        (("job.yaml", "--segment", "3"), "cannot be divided into segments of 3"),
        (("job.yaml", "--memory", "lots"), "--memory lots: expected memory"),
        (("job.yaml", "--time", "soon"), "--time soon: expected a duration"),
        (("job.yaml", "--reshape-every", "soon"), "--reshape-every soon: expected a duration"),
        (("job.yaml", "--estimate", "inf"), "--estimate inf: expected a duration"),
        (("job.yaml", "--begin", "soon"), "--begin soon: expected a time within ten years, such as now+10m"),
        (("job.yaml", "--begin", "now+99999d"), "--begin now+99999d: expected a time within ten years"),
        (("job.yaml", "--after", "afterwards:7"), "--after afterwards:7: expected JOB, afterok:JOB"),
        (("job.yaml", "--array", "9-0"), "array is '9-0', expected task numbers"),
        (("job.yaml", "--array", "0-99999"), "array is '0-99999', expected task numbers"),
        (("job.yaml", "--output", "%q"), "output: '%q' has the unknown field '%q'"),
        (("job.yaml", "--class", "best"), "unknown job class 'best'"),
        (("job.yaml", "--plan", "xp3"), "'xp3' is not a plan"),
        (("job.yaml", "--env", "A"), "--env A: expected NAME=VALUE"),
        (("job.yaml", "--env", "1A=2"), "'1A' is not a valid variable name"),
        (("job.yaml", "--secret", "NOT_THERE"), "--secret NOT_THERE: environment variable not set"),
        (("job.yaml", "--name", "a b"), "name is 'a b'"),
        (("job.yaml", "--priority", "99999999999"), "priority"),
        (("job.yaml", "--retries", "5000"), "--retries"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    words: tuple[str, ...], message: str, submitted: list[Submission], error_of: TextOf
) -> None:
    assert message in error_of("submit", *words)
    assert submitted == []


def test_notes_on_ignored_directives_go_to_stderr(submitted: list[Submission], tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --partition=long\nhostname\n")
    result = invoke("submit", "a.sbatch")
    assert (result.exit_code, result.stdout) == (0, "a-1\n")
    assert "note: a.sbatch line 2" in result.stderr


def test_an_array_is_submitted_as_one_and_its_id_printed(
    submitted: list[Submission], tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --array=0-9\nhostname\n")
    assert stdout_of("submit", "a.sbatch") == "a-1\n"
    other = json_of("submit", "a.sbatch", "--array", "3,5%1", "--name", "b")
    assert [job["id"] for job in other] == ["b-11_3", "b-11_5"]
    assert [job.array for job in submitted] == ["0-9", "3,5%1"]


def test_on_a_terminal_an_array_is_one_line(submitted: list[Submission]) -> None:
    output, status = run_on_terminal("submit", "job.yaml", "--array", "0-9%2")
    assert (status, "train-1 submitted 10 tasks" in output) == (0, True)
    assert "refold logs -f train-1_0" in output
    assert "refold cancel train-1 " in output


def test_a_job_is_submitted_for_a_later_time(submitted: list[Submission], stdout_of: TextOf) -> None:
    before = time.time()
    stdout_of("submit", "job.yaml", "--begin", "now+1h")
    [job] = submitted
    assert job.begin is not None
    assert before + 3600 <= job.begin <= time.time() + 3600


@pytest.fixture
def inherited(submitted: list[Submission], served: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environments that submitted jobs inherit; the shell has three variables besides those of the test."""
    assert isinstance(served.service, RecordingService)
    for name, value in {"FOO": "1", "VIRTUAL_ENV": "/venv", "HF_TOKEN": "hf_1"}.items():
        monkeypatch.setenv(name, value)
    return served.service.inherited


def test_a_job_inherits_the_environment_of_its_submitter_without_secrets(inherited: Any, invoke: Invoke) -> None:
    result = invoke("submit", "--", "true")
    assert "note: not exported, because they look like secrets (see --secret): HF_TOKEN" in result.stderr
    [variables] = inherited
    assert (variables["FOO"], variables["VIRTUAL_ENV"], "HF_TOKEN" in variables) == ("1", "/venv", False)


def test_only_named_variables_are_exported_on_request(inherited: Any, stdout_of: TextOf) -> None:
    stdout_of("submit", "--export", "FOO,HF_TOKEN", "--", "true")
    [variables] = inherited
    assert {name: variables.get(name) for name in ("FOO", "HF_TOKEN", "VIRTUAL_ENV")} == {
        "FOO": "1",
        "HF_TOKEN": "hf_1",
        "VIRTUAL_ENV": None,
    }


def test_a_job_can_inherit_the_environment_of_the_daemon(inherited: Any, stdout_of: TextOf) -> None:
    stdout_of("submit", "--export", "NONE", "--", "true")
    assert inherited == [None]


def test_a_script_chooses_the_variables_unless_an_option_does(
    inherited: Any, tmp_path: Path, stdout_of: TextOf
) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --export=FOO,SEED=3\ntrue\n")
    (tmp_path / "b.sh").write_text("#!/bin/sh\n#SBATCH --export=NONE\ntrue\n")
    for words in (("a.sh",), ("b.sh",), ("b.sh", "--export", "VIRTUAL_ENV")):
        stdout_of("submit", *words)
    first, second, third = inherited
    assert {name: first.get(name) for name in ("FOO", "SEED", "VIRTUAL_ENV")} == {
        "FOO": "1",
        "SEED": "3",
        "VIRTUAL_ENV": None,
    }
    assert (second, third["VIRTUAL_ENV"], "FOO" in third) == (None, "/venv", False)


def test_a_dry_run_shows_the_expected_outcome(
    submitted: list[Submission], served: FakeServer, stdout_of: TextOf, json_of: JsonOf
) -> None:
    assert [
        line.rstrip().split(maxsplit=1) for line in stdout_of("submit", "job.yaml", "--dry-run").rstrip().splitlines()
    ] == [
        ["job", "train"],
        ["command", "python train.py"],
        ["directory", str(Path.cwd())],
        ["demand", "4 GPUs, guaranteed"],
        ["preemptible", "no, not requested"],
        ["start", "immediately"],
    ]
    assert json_of("submit", "job.yaml", "--dry-run")["preview"]["starts_now"] is True
    served.call(served.service.add, Submission("other", ["true"]))
    assert ", 1 job ahead" in stdout_of("submit", "job.yaml", "--dry-run")
    assert submitted == []


def test_a_submission_as_json(submitted: list[Submission], json_of: JsonOf) -> None:
    [status] = json_of("submit", "job.yaml", "--hold")
    assert (status["id"], status["state"]) == ("train-1", "held")


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_wait_returns_when_the_job_ends_with_its_exit_status(
    state: str, status: int, submitted: list[Submission], served: FakeServer, invoke: Invoke
) -> None:
    def end_once_submitted() -> None:
        while "train-1" not in served.service.jobs_by_id:
            time.sleep(0.01)
        served.call(served.service.end, "train-1", state, "the reason")

    threading.Thread(target=end_once_submitted, daemon=True).start()
    result = invoke("submit", "job.yaml", "--wait")
    assert (result.exit_code, result.stdout) == (status, "train-1\n")
    assert result.stderr == f"train-1 {state}: the reason\n"


def run_on_terminal(*words: str) -> tuple[str, int]:
    """Run a command on a terminal without any input, and return the output and the exit status."""
    keyboard, screen = pty.openpty()
    command = [sys.executable, "-m", "refold.cli.app", *words]
    process = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, start_new_session=True)
    os.close(screen)
    output = b""
    while select.select([keyboard], [], [], 30)[0]:
        try:
            chunk = os.read(keyboard, 4096)
        except OSError:
            break
        output += chunk
    os.close(keyboard)
    return output.decode().replace("\r\n", "\n"), process.wait(30)


def test_on_a_terminal_a_preview_and_next_commands_are_shown_without_a_question(submitted: list[Submission]) -> None:
    output, status = run_on_terminal("submit", "job.yaml")
    assert status == 0
    assert output.index("demand") < output.index("train-1 submitted") < output.index("refold logs -f train-1")
    assert len(submitted) == 1


def test_a_job_is_submitted_even_if_the_daemon_is_too_busy_for_a_preview(
    submitted: list[Submission], served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def preview(_: Caller, submission: Submission) -> Preview:
        raise TooManyRequests("4 costly questions of 'ann' are being answered; ask again later")

    monkeypatch.setattr(served.service, "preview", preview)
    output, status = run_on_terminal("submit", "job.yaml")
    assert (status, len(submitted)) == (0, 1)
    assert "note: no preview: 4 costly questions of 'ann'" in " ".join(output.split())
    assert "train-1 submitted" in output


IMPOSSIBLE = "error: the job can never run on this cluster"


@pytest.fixture
def rejecting(submitted: list[Submission], served: FakeServer, monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    """A daemon that rejects jobs that do not fit."""

    async def submit(_: Caller, submission: Submission) -> JobStatus:
        raise BadInput("the job can never run on this cluster")

    monkeypatch.setattr(served.service, "submit", submit)
    return submitted


def test_a_job_that_can_never_run_is_rejected_on_a_terminal(rejecting: list[Submission]) -> None:
    output, status = run_on_terminal("submit", "job.yaml", "--gpus", "64")
    assert (IMPOSSIBLE in output, output.count("\n"), status) == (True, 1, 2)


def test_a_job_that_can_never_run_is_rejected_in_a_script(rejecting: list[Submission], error_of: TextOf) -> None:
    assert error_of("submit", "job.yaml", "--gpus", "64") == f"{IMPOSSIBLE}\n"


def test_a_dry_run_of_a_job_that_can_never_run_says_so_and_fails(submitted: list[Submission], invoke: Invoke) -> None:
    result = invoke("submit", "job.yaml", "--gpus", "64", "--dry-run")
    assert (result.exit_code, "as requested do not fit the empty cluster" in result.stdout) == (2, True)
    assert invoke("submit", "job.yaml", "--gpus", "64", "--dry-run", "--allow-impossible").exit_code == 0
