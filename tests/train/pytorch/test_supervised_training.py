"""The agent with PyTorch: losses do not depend on killed ranks and changes of the plan."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold.train.checkpoints import Checkpoints
from refold.train.owned_files import SHARED_MEMORY, folder_of

SCRIPT = Path(__file__).parent / "script_to_supervise.py"
HELPERS = Path(__file__).parents[2] / "helpers"
STEPS = 60
TIMEOUT_SECONDS = 300.0


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


def train(
    folder: Path,
    *command: object,
    save_every: float = 0.3,
    scheduled: bool = True,
    arguments: tuple[str, ...] = (),
    variables: Mapping[str, str] = {},
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        **({"REFOLD_CHANGE": str(folder / "change")} if scheduled else {}),
        "REFOLD_PROGRESS": str(folder / "progress"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, *map(str, command), SCRIPT, folder, str(STEPS), str(save_every), *arguments],
        env={**os.environ, **settings},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(training: subprocess.Popen[str]) -> None:
    _, errors = training.communicate(timeout=TIMEOUT_SECONDS)
    assert training.returncode == 0, errors


def losses(folder: Path) -> list[tuple[int, float, str]]:
    path = folder / "losses"
    lines = [line.split(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), float(loss), plan) for step, loss, plan in lines]


def wait_for_steps(folder: Path, count: int) -> None:
    wait_until(lambda: len(losses(folder)) >= count)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss of every step of a training on one rank, without an agent."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(train(folder, save_every=3600, scheduled=False))
    return {step: loss for step, loss, _ in losses(folder)}


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(agent: int) -> list[int]:
    """Return the pids of the ranks: the children of the fork server."""
    return [rank for server in children_of(agent) for rank in children_of(server)]


def request_change(folder: Path, run: int, plan: dict[str, int], way: str) -> None:
    (folder / "request").write_text(json.dumps({"run": run, "plan": plan, "devices": None, "way": way}))
    (folder / "request").replace(folder / "change")


PLANS = [{"data": 2}, {"tensor": 2}, {"data": 2, "zero": 3}, {"pipeline": 2, "accumulation": 2}, {"accumulation": 4}]


def test_a_checkpoint_is_written_after_changes_on_the_same_ranks(tmp_path: Path) -> None:
    training = train(tmp_path, "-m", "refold.train", "--plan", "dp2", save_every=3600)
    for number, plan in enumerate(PLANS[1:3], 2):
        wait_for_steps(tmp_path, len(losses(tmp_path)) + 3)
        request_change(tmp_path, number, plan, "live")
        wait_until(partial(_answered, tmp_path, number))
    finish(training)
    assert Checkpoints(tmp_path / "checkpoints").latest() == STEPS
    assert len({plan for _, _, plan in losses(tmp_path)}) == 3


def _answered(folder: Path, run: int) -> bool:
    answer = folder / "change.done"
    return answer.exists() and json.loads(answer.read_text())["run"] == run


@pytest.mark.parametrize("seed", range(2))
def test_kills_and_changes_do_not_affect_the_losses(tmp_path: Path, undisturbed: dict[int, float], seed: int) -> None:
    chance = random.Random(seed)
    training = train(tmp_path, "-m", "refold.train", "--plan", "dp2")
    for number in range(2, 6):
        wait_for_steps(tmp_path, len(losses(tmp_path)) + chance.randint(3, 10))
        request_change(tmp_path, number, chance.choice(PLANS), chance.choice(["live", "live", "warm"]))
        if number % 2:
            time.sleep(chance.uniform(0, 1.5))
            if ranks := ranks_of(training.pid):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(ranks), signal.SIGKILL)
    finish(training)
    seen = losses(tmp_path)
    assert {step for step, _, _ in seen} == set(range(1, STEPS + 1))
    assert all(loss == pytest.approx(undisturbed[step], rel=1e-9) for step, loss, _ in seen)
    assert len({plan for _, _, plan in seen}) > 1
    assert (tmp_path / "progress").read_text().split()[0] == str(STEPS)
    assert Checkpoints(tmp_path / "checkpoints").latest() == STEPS


def test_a_stopped_training_continues_where_it_stopped(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    first = train(tmp_path, "-m", "refold.train", "--plan", "dp2")
    wait_for_steps(tmp_path, 10)
    first.terminate()
    finish(first)
    stopped_at = losses(tmp_path)[-1][0]
    assert Checkpoints(tmp_path / "checkpoints").latest() == stopped_at
    finish(train(tmp_path, "-m", "refold.train", "--plan", "tp2"))
    assert [step for step, _, _ in losses(tmp_path)] == list(range(1, STEPS + 1))
    assert {plan for step, _, plan in losses(tmp_path) if step > stopped_at} == {"DP1 TP2"}
    assert all(loss == pytest.approx(undisturbed[step], rel=1e-9) for step, loss, _ in losses(tmp_path))


def test_the_instances_of_a_run_train_together_and_stop_at_the_same_step(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gang = {"REFOLD_INSTANCES": "2", "MASTER_PORT": str(port), "REFOLD_STOP_SIGNAL": "TERM"}
    instances = [
        train(tmp_path, "-m", "refold.train", "--plan", "dp2 zero3", variables={**gang, "REFOLD_INSTANCE": number})
        for number in ("0", "1")
    ]
    wait_for_steps(tmp_path, 5)
    for instance in instances:
        instance.terminate()
    for instance in instances:
        finish(instance)
    stopped_at = losses(tmp_path)[-1][0]
    assert Checkpoints(tmp_path / "checkpoints").latest() == stopped_at
    assert [step for step, _, _ in losses(tmp_path)] == list(range(1, stopped_at + 1))
    assert all(loss == pytest.approx(undisturbed[step], rel=1e-9) for step, loss, _ in losses(tmp_path))


def test_a_loop_of_its_own_saves_and_exits_and_continues_with_the_new_plan(tmp_path: Path) -> None:
    own_loop = ("own-loop",)
    finish(train(tmp_path / "alone", save_every=3600, scheduled=False, arguments=own_loop))
    expected = {step: loss for step, loss, _ in losses(tmp_path / "alone")}
    folder = tmp_path / "changed"
    training = train(folder, "-m", "refold.train", "--plan", "dp2", save_every=3600, arguments=own_loop)
    wait_for_steps(folder, 5)
    request_change(folder, 2, {"tensor": 2}, "live")
    answer = json.loads(wait_until(lambda: (folder / "change.done").exists() and (folder / "change.done").read_text()))
    group_files = list(SHARED_MEMORY.glob(f"{folder_of(training.pid).name}.state.group-*"))
    finish(training)
    assert len(group_files) <= 1, "those of earlier generations were removed"
    assert (answer["run"], answer["plan"]["tensor"]) == (2, 2)
    assert answer["phases"]["restart"] > 0
    assert [step for step, _, _ in losses(folder)] == list(range(1, STEPS + 1)), "each step was done once"
    assert [plan for _, _, plan in losses(folder)] == ["DP2"] * answer["step"] + ["DP1 TP2"] * (STEPS - answer["step"])
    assert all(loss == pytest.approx(expected[step], rel=1e-9) for step, loss, _ in losses(folder))


@pytest.mark.parametrize(
    ("variable", "value", "plan"),
    [("REFOLD_PLAN", '{"data": 1}', "DP1"), ("REFOLD_PLAN", '{"data": 2}', "DP2"), ("REFOLD_SLOTS", "0", "DP1")],
)
def test_a_script_replaces_itself_by_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, plan: str
) -> None:
    monkeypatch.setenv(variable, value)
    finish(train(tmp_path, "-X", "utf8"))
    assert (tmp_path / "change.agent").exists()
    assert [step for step, _, _ in losses(tmp_path)] == list(range(1, STEPS + 1))
    assert {used for _, _, used in losses(tmp_path)} == {plan}
