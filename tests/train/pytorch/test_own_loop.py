"""Loops that save and exit for a change of their plan: which plans they use, and that the stop signal reaches them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refold.errors import BadInput
from refold.model import LaunchEngine, parse_plan
from refold.train import OwnLoop
from refold.train.own_loop import checkpoints_in

LOOP = """
import sys
from pathlib import Path
import torch.distributed as dist
from refold.train import OwnLoop

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
run = OwnLoop(12)
dist.init_process_group("gloo")
file = folder / "step"
step = int(file.read_text()) if file.exists() else 0
run.begin(step)
while step < steps:
    step += 1
    if dist.get_rank() == 0:
        with (folder / "steps").open("a") as log:
            log.write(f"{step} {run.plan}\\n")
    if run.should_save(step, 0.5):
        dist.barrier()
        file.write_text(str(step))
        run.saved(step)
    __import__("time").sleep(0.01)
run.finished(step)
"""


@pytest.fixture
def started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "4"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    return monkeypatch


def plan_of(
    asked: str,
    patch: pytest.MonkeyPatch,
    engine: LaunchEngine | None = None,
    is_sharded: bool | None = None,
    largest: int | None = None,
) -> str:
    patch.setenv("REFOLD_PLAN", json.dumps({k: v for k, v in _fields(asked).items() if v}))
    return str(OwnLoop(32, engine=engine, is_sharded=is_sharded, largest_micro_batch=largest).plan)


def _fields(plan: str) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(parse_plan(plan))
    return fields


def test_a_plan_that_the_loop_cannot_use_becomes_data_parallelism(started_by_torchrun: pytest.MonkeyPatch) -> None:
    patch = started_by_torchrun
    assert plan_of("dp4", patch) == "DP4"
    assert plan_of("dp2 tp2", patch) == "DP4"
    assert plan_of("dp4 zero3", patch) == "DP4"
    assert plan_of("dp4 zero3", patch, "trainer") == "DP4 ZeRO-3"
    assert plan_of("dp2 pp2", patch, "trainer") == "DP4"
    assert plan_of("dp2 tp2", patch, "accelerate") == "DP4"


def test_a_loop_continues_with_the_sharding_of_its_checkpoint(started_by_torchrun: pytest.MonkeyPatch) -> None:
    assert plan_of("dp4", started_by_torchrun, "trainer", is_sharded=True) == "DP4 ZeRO-3"
    assert plan_of("dp4 zero2", started_by_torchrun, "trainer", is_sharded=True) == "DP4 ZeRO-2"
    assert plan_of("dp4 zero2", started_by_torchrun, "trainer", is_sharded=False) == "DP4"


def test_micro_batches_that_are_too_large_get_more_accumulation(started_by_torchrun: pytest.MonkeyPatch) -> None:
    assert plan_of("dp4", started_by_torchrun, largest=3) == "DP4 accumulate 4"
    assert plan_of("dp4 accumulate 2", started_by_torchrun, largest=8) == "DP4 accumulate 2"


def test_a_batch_that_the_ranks_cannot_divide_is_an_error(started_by_torchrun: pytest.MonkeyPatch) -> None:
    started_by_torchrun.setenv("WORLD_SIZE", "3")
    with pytest.raises(BadInput, match="DP3 is not possible: a batch of 32 cannot be divided into 3 micro-batches"):
        plan_of("dp3", started_by_torchrun)
    with pytest.raises(BadInput, match="plan DP2 needs 2 ranks, and 3 were started"):
        plan_of("dp2", started_by_torchrun)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    for name in ("step-5", "step-12", "step-20.partial", "step-x", "other-30"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-5" / "last").touch()
    assert checkpoints_in(tmp_path, "step-") == {5: tmp_path / "step-5", 12: tmp_path / "step-12"}
    assert checkpoints_in(tmp_path, "step-", "last") == {5: tmp_path / "step-5"}


def run_loop(folder: Path, *launcher: str, steps: int) -> subprocess.Popen[str]:
    (folder / "loop.py").write_text(LOOP)
    variables = {
        "OMP_NUM_THREADS": "1",
        "REFOLD_CHANGE": str(folder / "change"),
        "REFOLD_PROGRESS": str(folder / "progress"),
        "REFOLD_STOP_SIGNAL": "TERM",
    }
    command = [sys.executable, "-m", *launcher, str(folder / "loop.py"), str(folder), str(steps)]
    return subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True)


def steps_in(folder: Path) -> list[tuple[int, str]]:
    file = folder / "steps"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(step), plan) for step, plan in (line.split(" ", 1) for line in lines)]


def wait_for_steps(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(steps_in(folder)) < count:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_change_that_is_refused_lets_the_loop_go_on_and_a_stop_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    training = run_loop(tmp_path, "refold.train", "--plan", "dp2", steps=100_000)
    wait_for_steps(tmp_path, 5)
    for number, plan, why in ((2, {"data": 5}, "a batch of 12"), (3, {"tensor": 2}, "the script does not split")):
        (tmp_path / "new").write_text(json.dumps({"run": number, "plan": plan}))
        (tmp_path / "new").replace(tmp_path / "change")
        answer = {"run": 0}
        while answer["run"] != number:
            time.sleep(0.02)
            answer = (
                json.loads((tmp_path / "change.done").read_text()) if (tmp_path / "change.done").exists() else answer
            )
        assert why in str(answer.get("error"))
    wait_for_steps(tmp_path, len(steps_in(tmp_path)) + 5)
    training.terminate()
    _, errors = training.communicate(timeout=120)
    assert training.returncode == 0, errors
    done = steps_in(tmp_path)
    assert done == [(number, "DP2") for number in range(1, len(done) + 1)]
    assert int((tmp_path / "step").read_text()) == len(done)


def test_the_stop_signal_reaches_loops_that_torchrun_has_started(tmp_path: Path) -> None:
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    training = run_loop(tmp_path, *torchrun, steps=100_000)
    wait_for_steps(tmp_path, 5)
    training.send_signal(signal.SIGTERM)
    training.communicate(timeout=120)
    stopped_at = int((tmp_path / "step").read_text())
    assert stopped_at == steps_in(tmp_path)[-1][0]
    ended = run_loop(tmp_path, *torchrun, steps=stopped_at + 3)
    _, errors = ended.communicate(timeout=120)
    assert ended.returncode == 0, errors
    assert [step for step, _ in steps_in(tmp_path)] == list(range(1, stopped_at + 4))
    assert (tmp_path / "progress").read_text().split()[0] == str(stopped_at + 3)
