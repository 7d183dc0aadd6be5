"""What a process finds in its environment is true, and is all that it should know."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from refold.backends.local.backend import LocalBackend
from refold.backends.local.environment import Devices
from refold.backends.local.run_files import log_path
from refold.core.events import Event, RunFinished, RunStarted
from refold.core.orders import StartRun
from refold.model import Allocation, Demand, Job, Launch, Plan, Share

ONE = Share(0, (0,))
GANG = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR")


def environment_of_runs(
    folder: Path,
    given: Mapping[str, str],
    *shares: Share,
    launch: Launch | None = None,
    plan: Plan | None = None,
    **more: Any,
) -> list[dict[str, str]]:
    """What the processes of a gang on these shares find in their environment."""
    reports: list[Event] = []
    job = Job("job-7", group="train", demand=Demand(len(shares)), command=("env", "-0"), launch=launch or Launch())

    async def see_through() -> None:
        backend = LocalBackend(reports.append, folder, environment={"PATH": os.environ["PATH"], **given}, **more)
        await backend.carry_out([StartRun("job-7", 1, Allocation(shares, plan))], {"job-7": job})
        async with asyncio.timeout(30):
            while len(reports) < 2:
                await asyncio.sleep(0.005)

    asyncio.run(see_through())
    assert reports == [RunStarted("job-7", 1), RunFinished("job-7", 1)]
    texts = [log_path(folder, "job-7", 1, instance).read_text() for instance in range(len(shares))]
    return [dict(word.split("=", 1) for word in text.split("\0") if word) for text in texts]


def chosen(environment: dict[str, str], *names: str) -> list[str | None]:
    return [environment.get(name) for name in names]


def test_a_process_is_told_its_slots_and_who_it_is(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {}, Share(0, (1, 3)))
    assert chosen(found, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS", "REFOLD_GPU_SHARE") == ["1,3", "1,3", "1"]
    assert chosen(found, "REFOLD_JOB", "REFOLD_RUN", "REFOLD_INSTANCE", "REFOLD_INSTANCES") == ["job-7", "1", "0", "1"]
    assert chosen(found, "SLURM_JOB_ID", "SLURM_JOB_NAME") == ["job-7", "train"]


def test_a_gang_is_told_what_torch_distributed_wants_to_know(tmp_path: Path) -> None:
    first, second = environment_of_runs(tmp_path, {}, Share(0, (0,)), Share(0, (1,)))
    assert chosen(first, *GANG) == ["0", "2", "0", "1", "0", "0", "127.0.0.1"]
    assert chosen(second, *GANG) == ["1", "2", "0", "1", "1", "1", "127.0.0.1"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"
    assert chosen(second, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["1", "1"]


def test_a_gang_is_told_the_same_in_the_words_of_others(tmp_path: Path) -> None:
    _, second = environment_of_runs(tmp_path, {}, Share(0, (0, 2)), Share(0, (1, 3)))
    assert chosen(second, "SLURM_PROCID", "SLURM_NTASKS") == ["1", "2"]
    assert chosen(second, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE") == ["1", "2", "2"]
    assert second["SKYPILOT_NODE_IPS"].splitlines() == ["127.0.0.1", "127.0.0.1"]


def test_a_single_process_is_not_taken_for_one_of_a_gang(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {"RANK": "7", "WORLD_SIZE": "8", "SLURM_NTASKS": "8"}, Share(0, (0, 1)))
    assert chosen(found, *GANG, "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS") == [None] * 10


def test_what_the_job_and_those_with_its_secrets_say_is_there(tmp_path: Path) -> None:
    said = {"A": "job", "B": "job", "REFOLD_JOB": "liar", "CUDA_VISIBLE_DEVICES": "0,1"}
    launch = Launch(environment=tuple(said.items()))
    (found,) = environment_of_runs(
        tmp_path, {"A": "ours", "C": "ours"}, ONE, launch=launch, more_environment=lambda job: {"B": f"secret of {job}"}
    )
    assert chosen(found, "A", "B", "C") == ["job", "secret of job-7", "ours"]
    assert chosen(found, "REFOLD_JOB", "CUDA_VISIBLE_DEVICES") == ["job-7", "0"]


def test_what_lets_one_act_for_the_daemon_is_not_handed_on(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {"REFOLD_TOKEN": "secret", "REFOLD_URL": "http://127.0.0.1:1"}, ONE)
    assert chosen(found, "REFOLD_TOKEN", "REFOLD_URL") == [None, None]


def test_a_run_knows_where_to_leave_things_and_how_it_will_be_stopped(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {}, ONE, launch=Launch(stop_signal="USR1", grace=2.5))
    assert chosen(found, "REFOLD_STOP_SIGNAL", "REFOLD_GRACE") == ["USR1", "2.5"]
    assert found["REFOLD_PROGRESS"] == str(tmp_path / "job-7" / "run-1.0.progress")
    assert Path(found["REFOLD_CHECKPOINT"]).is_dir()


def test_a_plan_is_told_if_there_is_one(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {}, ONE, plan=Plan(data=2, zero=1))
    assert json.loads(found["REFOLD_PLAN"]) == {"data": 2, "zero": 1}
    (found,) = environment_of_runs(tmp_path / "other", {}, ONE)
    assert "REFOLD_PLAN" not in found


def visible(share: Share, given: Mapping[str, str], **more: Any) -> str:
    devices = Devices(given, more.get("devices"), (), more.get("gpus", True))
    return devices.variables(share)["CUDA_VISIBLE_DEVICES"]


def test_slots_count_through_the_gpus_that_were_given_to_us() -> None:
    assert visible(Share(0, (1,)), {"CUDA_VISIBLE_DEVICES": "4,GPU-5a"}) == "GPU-5a"


def test_slots_are_the_gpus_that_their_node_has() -> None:
    assert visible(Share(1, (1, 0)), {}, devices=[["GPU-a"], ["GPU-b", "GPU-c"]]) == "GPU-c,GPU-b"


def test_who_has_no_gpu_sees_none() -> None:
    assert visible(Share(0), {}) == ""
    assert visible(Share(0, (0, 1)), {"CUDA_VISIBLE_DEVICES": "0,1"}, gpus=False) == ""


HALF = Share(0, (1,), 500)


def start_mps(folder: Path, pid: int | None = None) -> None:
    """What its control daemon leaves in its folder."""
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{pid or os.getpid()}\n")


def test_a_control_daemon_that_is_gone_enforces_nothing(tmp_path: Path) -> None:
    start_mps(tmp_path, pid=2**22 + 1)
    assert not Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (), True).has_mps()


def test_parts_of_a_gpu_are_told_and_enforced_where_they_can_be(tmp_path: Path) -> None:
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (81_920,), True)
    without = {"CUDA_VISIBLE_DEVICES": "1", "REFOLD_SLOTS": "1", "REFOLD_GPU_SHARE": "0.5"}
    assert devices.variables(HALF) == without
    assert "not enforced" in devices.enforcement()
    start_mps(tmp_path)
    assert devices.variables(HALF) == {
        **without,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40960M",
    }
    assert devices.enforcement() == (
        "A run sees its own GPUs only; MPS keeps it to its part of a GPU's computing and memory."
    )


def test_a_whole_gpu_needs_no_limit(tmp_path: Path) -> None:
    start_mps(tmp_path)
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (81_920,), True)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in devices.variables(ONE)


@pytest.mark.parametrize(("gpus", "memory", "said"), [(False, (), "not GPUs"), (True, (), "memory is unknown")])
def test_what_is_not_enforced_is_said(tmp_path: Path, gpus: bool, memory: tuple[int, ...], said: str) -> None:
    start_mps(tmp_path)
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, memory, gpus)
    assert said in devices.enforcement()
