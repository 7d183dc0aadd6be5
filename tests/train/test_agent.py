"""The agent with real processes, which speak the protocol without PyTorch."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from refold.train.__main__ import main
from refold.train.owned_files import SHARED_MEMORY, folder_of

FAKE_RANK = Path(__file__).parent / "fake_rank.py"
TIMEOUT_SECONDS = 60.0


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


class Run:
    """An agent with fake ranks."""

    def __init__(self, folder: Path, plan: str, steps: int, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.change_file = folder / "change"
        settings = {
            "REFOLD_PRELOAD": "",
            "REFOLD_CHANGE": str(self.change_file),
            "REFOLD_PROGRESS": str(folder / "progress"),
            "REFOLD_GRACE": "5",
            **environment,
        }
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "refold.train", "--plan", plan, FAKE_RANK, folder, str(steps), *arguments],
            env={**os.environ, **settings},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what the agent printed."""
        _, errors = self.agent.communicate(timeout=TIMEOUT_SECONDS)
        return self.agent.returncode, errors

    def steps(self) -> list[tuple[int, int]]:
        """Return generation and number of every step."""
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(generation), int(step)) for generation, step in map(str.split, lines)]

    def wait_for_steps(self, count: int) -> None:
        wait_until(lambda: len(self.steps()) >= count)

    def change(self, run: int, plan: dict[str, int], **more: Any) -> dict[str, Any]:
        """Request a change; return the answer."""
        self.request(run, plan, **more)
        return self.answer(run)

    def request(self, run: int, plan: dict[str, int], **more: Any) -> None:
        temporary = self.folder / "request"
        temporary.write_text(json.dumps({"run": run, "plan": plan, "devices": None, **more}))
        temporary.replace(self.change_file)

    def answer(self, run: int) -> dict[str, Any]:
        done = self.folder / "change.done"
        wait_until(lambda: done.exists() and json.loads(done.read_text())["run"] == run)
        answer: dict[str, Any] = json.loads(done.read_text())
        return answer

    def has_ended(self) -> bool:
        return not self.pids()

    def pids(self) -> dict[int, int]:
        """Return the rank of every process that runs, by pid."""
        started = [path.name.split("-")[1:] for path in self.folder.glob("pid-*")]
        return {int(pid): int(rank) for rank, pid in started if self._is_running(pid)}

    def _is_running(self, pid: str) -> bool:
        """Whether a process of this run has this pid: pids are reused."""
        try:
            return f"REFOLD_PROGRESS={self.folder}/".encode() in Path("/proc", pid, "environ").read_bytes()
        except OSError:
            return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs; afterwards none of their processes and files may be left."""
    runs: list[Run] = []

    def start(plan: str, steps: int, *arguments: str, **environment: str) -> Run:
        runs.append(Run(tmp_path, plan, steps, *arguments, **environment))
        return runs[-1]

    yield start
    for each in runs:
        if each.agent.poll() is None:
            each.agent.kill()
        each.agent.communicate()
        wait_until(each.has_ended)


def left_by(agent: int) -> list[Path]:
    return [path for path in (folder_of(agent), SHARED_MEMORY / f"{folder_of(agent).name}.state") if path.exists()]


def assert_every_step_was_done_once_or_again_after_a_restart(run: Run, steps: int) -> None:
    done = run.steps()
    last = 0
    for _, group in groupby(done, key=lambda line: line[0]):
        numbers = [step for _, step in group]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] <= last + 1
        last = numbers[-1]
    assert last == steps


def test_ranks_train_and_the_agent_reports_progress(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run("dp2", 10)
    assert training.finish() == (0, "")
    assert training.steps() == [(1, step) for step in range(1, 11)]
    assert (tmp_path / "progress").read_text().split()[0] == "10"
    assert left_by(training.agent.pid) == []


def test_ranks_join_and_leave_while_the_training_continues(run: Callable[..., Run]) -> None:
    training = run("dp1", 100_000)
    training.wait_for_steps(3)
    assert (training.folder / "change.agent").exists()
    wait_until(lambda: "loss=0.5 samples_per_second=10" in (training.folder / "progress").read_text())
    (first,) = training.pids()
    grown = training.change(2, {"data": 3})
    assert grown == {"run": 2, "plan": {"data": 3}, "step": grown["step"], "phases": {"drain": 0.1}}
    assert sorted(training.pids().values()) == [0, 1, 2]
    assert training.pids()[first] == 0
    training.change(3, {"tensor": 2})
    assert sorted(training.pids().values()) == [0, 1]
    assert first in training.pids()
    numbers = [step for _, step in training.steps()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [generation for generation, _ in groupby(training.steps(), key=lambda line: line[0])][:2] == [1, 2]


def test_a_warm_change_replaces_all_processes(run: Callable[..., Run]) -> None:
    training = run("dp2", 100_000)
    training.wait_for_steps(3)
    before = set(training.pids())
    assert training.change(2, {"pipeline": 2}, way="warm")["plan"] == {"pipeline": 2}
    assert not before & set(training.pids())
    count = len(training.steps())
    training.wait_for_steps(count + 3)
    numbers = [step for _, step in training.steps()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_newest_of_several_requests_wins(run: Callable[..., Run]) -> None:
    training = run("dp1", 100_000)
    training.wait_for_steps(1)
    for number in (2, 3, 4):
        training.request(number, {"data": number})
        time.sleep(0.06)
    assert training.answer(4)["plan"] == {"data": 4}
    wait_until(lambda: sorted(training.pids().values()) == [0, 1, 2, 3])


def test_a_rank_that_dies_is_restarted_from_the_last_checkpoint(run: Callable[..., Run]) -> None:
    training = run("dp2", 40)
    training.wait_for_steps(12)
    os.kill(next(pid for pid, rank in training.pids().items() if rank == 1), signal.SIGKILL)
    status, log = training.finish()
    assert status == 0
    assert log == "refold.train: rank 1 was killed by SIGKILL\n" + (
        "refold.train: restarting with DP2 from the last checkpoint\n"
    )
    assert_every_step_was_done_once_or_again_after_a_restart(training, 40)
    second = [step for generation, step in training.steps() if generation == 2]
    assert second[0] % 5 == 1
    assert second[0] > 1


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))])
def test_ranks_killed_at_any_moment_during_changes_do_not_lose_the_run(run: Callable[..., Run], seed: int) -> None:
    chance = random.Random(seed)
    training = run("dp2", 100)
    training.wait_for_steps(1)
    for number in range(2, 5):
        training.request(number, {"data": chance.randint(1, 4)}, way=chance.choice(["live", "warm"]))
        time.sleep(chance.uniform(0, 0.3))
        if pids := sorted(training.pids()):
            with suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.3))
    status, log = training.finish()
    assert (status, "") == (0, ""), log
    assert_every_step_was_done_once_or_again_after_a_restart(training, 100)
    assert left_by(training.agent.pid) == []


def test_a_change_succeeds_although_a_rank_dies_in_it(run: Callable[..., Run]) -> None:
    training = run("dp3", 100_000)
    training.wait_for_steps(6)
    second = next(pid for pid, rank in training.pids().items() if rank == 1)
    os.kill(second, signal.SIGSTOP)  # it will not take part in the change
    training.request(2, {"data": 2})
    wait_until((training.folder / "state-2").exists)
    os.kill(second, signal.SIGKILL)
    assert training.answer(2)["plan"] == {"data": 2}
    assert sorted(training.pids().values()) == [0, 1]
    assert {generation for generation, _ in training.steps()} <= {1, 3}


def test_the_run_goes_on_if_joining_ranks_fail(run: Callable[..., Run]) -> None:
    training = run("dp1", 100_000, FAKE_JOINERS_FAIL="1")
    training.wait_for_steps(3)
    assert training.change(2, {"data": 2}) == {"run": 2, "error": "joining rank 1 has exited with status 4"}
    count = len(training.steps())
    training.wait_for_steps(count + 2)
    assert {generation for generation, _ in training.steps()} == {1}


def test_the_exit_status_is_that_of_the_ranks(run: Callable[..., Run]) -> None:
    assert run("dp2", 10, "fail").finish()[0] == 3


def test_a_stop_signal_lets_the_ranks_save(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run("dp2", 100_000)
    training.wait_for_steps(7)
    for pid in (training.agent.pid, *training.pids()):  # a back end signals all processes
        os.kill(pid, signal.SIGTERM)
    assert training.finish() == (0, "")
    assert int((tmp_path / "checkpoint").read_text()) == training.steps()[-1][1]


def test_ranks_that_do_not_stop_are_killed_after_the_grace_period(run: Callable[..., Run]) -> None:
    training = run("dp2", 100_000, REFOLD_GRACE="0.2")
    training.wait_for_steps(3)
    for pid in training.pids():
        os.kill(pid, signal.SIGSTOP)
    training.agent.terminate()
    assert training.finish()[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3])
def test_no_process_outlives_the_agent(run: Callable[..., Run], moment: float) -> None:
    training = run("dp3", 100_000)
    training.wait_for_steps(1)
    training.request(2, {"data": 4})
    time.sleep(moment)
    training.agent.kill()
    training.agent.wait()
    wait_until(lambda: not training.pids())
    assert run("dp1", 1).finish() == (0, "")
    assert left_by(training.agent.pid) == []


def test_a_dead_fork_server_is_replaced(run: Callable[..., Run]) -> None:
    training = run("dp2", 60)
    training.wait_for_steps(7)
    (server,) = Path(f"/proc/{training.agent.pid}/task/{training.agent.pid}/children").read_text().split()
    os.kill(int(server), signal.SIGKILL)
    status, log = training.finish()
    assert status == 0, log
    assert_every_step_was_done_once_or_again_after_a_restart(training, 60)


def test_the_command_changes_the_plan_of_a_job(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    training = run("dp1", 100_000, REFOLD_CHANGE="")
    training.wait_for_steps(1)
    pid = str(training.agent.pid)
    assert main(["change", "--plan", "dp2", "--pid", pid]) == 0
    assert re.fullmatch(r"DP2 from step \d+ on, live change \(drain 0\.100 s\)\n", capsys.readouterr().out)
    assert main(["change", "--plan", "tp2", "--pid", pid, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == {"tensor": 2}
    training.agent.terminate()
    training.finish()


def test_the_command_does_not_change_jobs_of_the_scheduler(
    run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    training = run("dp1", 100_000)
    training.wait_for_steps(1)
    assert main(["change", "--plan", "dp2", "--pid", str(training.agent.pid)]) == 2
    error = f"refold.train: agent {training.agent.pid} runs a job of the scheduler, which chooses its plan\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--plan", "xyz", str(FAKE_RANK)], "'xyz' is not a plan at 'xyz'; write it as"),
        (["--plan", "", str(FAKE_RANK)], "'' is not a plan"),
        (["--ranks", "0", str(FAKE_RANK)], "--ranks is 0, expected at least 1"),
        (["missing.py"], "there is no script 'missing.py'"),
        (["change", "--plan", "xyz"], "'xyz' is not a plan at 'xyz'; write it as"),
        (["change", "--plan", "dp2", "--pid", "0"], "no agent with pid 0 (running: "),
    ],
)
def test_bad_input_is_an_error_in_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"refold.train: {error}")
