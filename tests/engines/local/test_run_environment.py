"""The environment variables of the processes of a run."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from other_users import ANN, needs_root

from refold.core.events import Event, RunFinished, RunStarted
from refold.core.orders import StartRun
from refold.engines.local.backend import LocalBackend
from refold.engines.local.environment import Devices, number_of
from refold.model import Allocation, ArrayTask, Demand, Job, Launch, Plan, Share
from refold.server.output.run_files import log_path

ONE_GPU = Share(0, (0,))
GANG_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
)


def run_and_read_environments(
    folder: Path,
    given: Mapping[str, str],
    *shares: Share,
    launch: Launch | None = None,
    plan: Plan | None = None,
    pinned: Plan | None = None,
    fields: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[dict[str, str]]:
    """Run a gang on these shares and return the environment of each process."""
    reports: list[Event] = []
    demand, command = Demand(len(shares)), ("env", "-0")
    job = Job("job-7", group="train", demand=demand, command=command, launch=launch or Launch(), plan=pinned)
    job = msgspec.structs.replace(job, **fields or {})

    async def run() -> None:
        backend = LocalBackend(reports.append, folder, environment={"PATH": os.environ["PATH"], **given}, **more)
        await backend.carry_out([StartRun("job-7", 1, Allocation(shares, plan))], {"job-7": job})
        async with asyncio.timeout(30):
            while len(reports) < 2:
                await asyncio.sleep(0.005)

    asyncio.run(run())
    assert reports == [RunStarted("job-7", 1), RunFinished("job-7", 1)]
    texts = [log_path(folder, "job-7", 1, instance).read_text() for instance in range(len(shares))]
    return [dict(word.split("=", 1) for word in text.split("\0") if word) for text in texts]


def values_of(environment: dict[str, str], *names: str) -> list[str | None]:
    return [environment.get(name) for name in names]


def test_a_process_gets_its_slots_and_identity(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(tmp_path, {}, Share(0, (1, 3)))
    assert values_of(found, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS", "REFOLD_GPU_SHARE") == ["1,3", "1,3", "1"]
    assert values_of(found, "REFOLD_JOB", "REFOLD_RUN", "REFOLD_INSTANCE", "REFOLD_INSTANCES") == [
        "job-7",
        "1",
        "0",
        "1",
    ]
    assert values_of(found, "SLURM_JOB_ID", "SLURM_JOB_NAME") == ["7", "train"]


def test_a_gang_gets_the_variables_of_torch_distributed(tmp_path: Path) -> None:
    first, second = run_and_read_environments(tmp_path, {}, Share(0, (0,)), Share(0, (1,)))
    assert values_of(first, *GANG_VARIABLES) == ["0", "2", "0", "1", "0", "0", "127.0.0.1"]
    assert values_of(second, *GANG_VARIABLES) == ["1", "2", "0", "1", "1", "1", "127.0.0.1"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"
    assert values_of(second, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["1", "1"]


def test_a_gang_gets_the_variables_of_torchrun_whose_nodes_may_differ(tmp_path: Path) -> None:
    first, second = run_and_read_environments(tmp_path, {"PET_NNODES": "9"}, Share(0, (0, 1, 2)), Share(0, (3,)))
    port = first["MASTER_PORT"]
    options = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RDZV_ENDPOINT")
    names = [f"PET_{option}" for option in options]
    assert values_of(first, *names) == ["2", "3", "0", "127.0.0.1", port, f"127.0.0.1:{port}"]
    assert values_of(second, *names) == ["2", "1", "1", "127.0.0.1", port, f"127.0.0.1:{port}"]
    others = {name for name in first if name.startswith("PET_")} - {*names}
    assert not others  # a static rendezvous, which is the default of torchrun


def test_each_process_of_a_gang_without_gpus_is_one_worker(tmp_path: Path) -> None:
    for found in run_and_read_environments(tmp_path, {}, Share(0, ()), Share(0, ())):
        assert found["PET_NPROC_PER_NODE"] == "1"


def test_a_gang_gets_the_variables_of_slurm_and_skypilot(tmp_path: Path) -> None:
    _, second = run_and_read_environments(tmp_path, {}, Share(0, (0, 2)), Share(0, (1, 3)))
    assert values_of(second, "SLURM_PROCID", "SLURM_NTASKS") == ["1", "2"]
    assert values_of(second, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE") == [
        "1",
        "2",
        "2",
    ]
    assert second["SKYPILOT_NODE_IPS"].splitlines() == ["127.0.0.1", "127.0.0.1"]


def test_a_gang_gets_the_variables_of_jax_and_tensorflow(tmp_path: Path) -> None:
    first, second = run_and_read_environments(tmp_path, {}, Share(0, (0,)), Share(0, (1,)))
    coordinator = f"127.0.0.1:{first['MASTER_PORT']}"
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    assert [values_of(one, *names) for one in (first, second)] == [[coordinator, "2", "0"], [coordinator, "2", "1"]]
    configs = [json.loads(one["TF_CONFIG"]) for one in (first, second)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    workers = configs[0]["cluster"]["worker"]
    assert len({coordinator, *workers}) == 3  # every process listens on a port of its own


def test_the_secret_of_a_gang_is_only_in_the_environment_of_its_processes(tmp_path: Path) -> None:
    first, second = run_and_read_environments(tmp_path, {"REFOLD_RUN_SECRET": "of another run"}, ONE_GPU, ONE_GPU)
    secret = first["REFOLD_RUN_SECRET"]
    assert secret == second["REFOLD_RUN_SECRET"] != "of another run"
    holders = [path.name for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert sorted(holders) == ["run-1.0.log", "run-1.1.log"], "which `env` has written"
    given = Launch(environment=(("REFOLD_RUN_SECRET", ""),))
    found = run_and_read_environments(tmp_path / "off", {}, ONE_GPU, ONE_GPU, launch=given)
    assert [one["REFOLD_RUN_SECRET"] for one in found] == ["", ""]
    (single,) = run_and_read_environments(tmp_path / "single", {}, ONE_GPU)
    assert "REFOLD_RUN_SECRET" not in single


@pytest.mark.parametrize(("job_id", "number"), [("train-17", 17), ("7", 7), ("a-007", 7), ("x99", 99)])
def test_the_slurm_id_is_the_number_of_the_job(job_id: str, number: int) -> None:
    assert number_of(job_id) == number


def test_the_slurm_id_of_a_job_without_a_number_is_the_same_in_every_run() -> None:
    assert number_of("train") == number_of("train") != number_of("other")


def test_a_task_of_an_array_gets_its_number_and_those_of_the_array(tmp_path: Path) -> None:
    place = ArrayTask("sweep-12", 6, number=14, count=3, minimum=2, maximum=6, step=2)
    (found,) = run_and_read_environments(tmp_path, {"SLURM_ARRAY_TASK_ID": "1"}, ONE_GPU, launch=Launch(array=place))
    assert values_of(found, "REFOLD_ARRAY", "REFOLD_ARRAY_TASK_ID", "SLURM_JOB_ID") == ["sweep-12", "6", "14"]
    names = ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX", "TASK_STEP")
    assert values_of(found, *(f"SLURM_ARRAY_{name}" for name in names)) == ["12", "6", "3", "2", "6", "2"]


def test_a_single_process_gets_no_gang_variables(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(
        tmp_path, {"RANK": "7", "PET_NNODES": "8", "SLURM_NTASKS": "8"}, Share(0, (0, 1))
    )
    assert not [name for name in found if name.startswith("PET_")]
    assert values_of(found, *GANG_VARIABLES, "MASTER_PORT", "SLURM_PROCID", "TF_CONFIG") == [None] * 10


def test_secrets_override_the_job_and_our_variables_override_both(tmp_path: Path) -> None:
    variables = {"A": "job", "B": "job", "REFOLD_JOB": "other", "CUDA_VISIBLE_DEVICES": "0,1"}
    launch = Launch(environment=tuple(variables.items()))
    (found,) = run_and_read_environments(
        tmp_path, {"A": "ours", "C": "ours"}, ONE_GPU, launch=launch, secrets=lambda job: {"B": f"secret of {job}"}
    )
    assert values_of(found, "A", "B", "C") == ["job", "secret of job-7", "ours"]
    assert values_of(found, "REFOLD_JOB", "CUDA_VISIBLE_DEVICES") == ["job-7", "0"]


def test_credentials_of_the_daemon_are_not_inherited(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(
        tmp_path, {"REFOLD_TOKEN": "secret", "REFOLD_URL": "http://127.0.0.1:1"}, ONE_GPU
    )
    assert values_of(found, "REFOLD_TOKEN", "REFOLD_URL") == [None, None]


def test_a_run_gets_its_checkpoint_folder_progress_file_and_stop_signal(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(tmp_path, {}, ONE_GPU, launch=Launch(stop_signal="USR1", grace=2.5))
    assert values_of(found, "REFOLD_STOP_SIGNAL", "REFOLD_GRACE") == ["USR1", "2.5"]
    assert found["REFOLD_PROGRESS"] == str(tmp_path / "job-7" / "run-1.0.progress")
    assert Path(found["REFOLD_CHECKPOINT"]).is_dir()


def test_a_run_gets_its_plan_if_there_is_one(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(tmp_path, {}, ONE_GPU, plan=Plan(data=2, zero=1))
    assert json.loads(found["REFOLD_PLAN"]) == {"data": 2, "zero": 1}
    (found,) = run_and_read_environments(tmp_path / "other", {}, ONE_GPU)
    assert "REFOLD_PLAN" not in found


def test_a_run_gets_the_plan_that_its_job_pins(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(tmp_path, {}, Share(0, (0, 1)), pinned=Plan(tensor=2))
    assert json.loads(found["REFOLD_PLAN"]) == {"tensor": 2}
    (found,) = run_and_read_environments(tmp_path / "other", {}, ONE_GPU, pinned=Plan(tensor=2))
    assert "REFOLD_PLAN" not in found


def test_a_run_of_a_training_framework_gets_its_plan_as_arguments_and_files(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(
        tmp_path, {}, Share(0, (0, 1)), plan=Plan(data=2, zero=2), fields={"engine": "deepspeed", "batch": 8}
    )
    path = tmp_path / "job-7" / "run-1.launch" / "deepspeed.json"
    names = ("REFOLD_ENGINE", "REFOLD_LAUNCHER", "REFOLD_LAUNCH_ARGS", "REFOLD_DEEPSPEED_CONFIG")
    assert values_of(found, *names) == [
        "deepspeed",
        "torchrun --standalone --nproc-per-node 2",
        f"--deepspeed --deepspeed_config {path}",
        str(path),
    ]
    assert json.loads(path.read_text()) == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2},
    }


def test_without_a_plan_a_training_framework_uses_all_gpus_for_data_parallelism(tmp_path: Path) -> None:
    fields = {"engine": "megatron", "workload": "gpt2"}
    first, second = run_and_read_environments(tmp_path, {}, ONE_GPU, Share(0, (1,)), fields=fields)
    rendezvous = f"--master-addr 127.0.0.1 --master-port {first['MASTER_PORT']}"
    assert first["REFOLD_LAUNCHER"] == f"torchrun --nnodes 2 --nproc-per-node 1 --node-rank 0 {rendezvous}"
    assert second["REFOLD_LAUNCHER"] == f"torchrun --nnodes 2 --nproc-per-node 1 --node-rank 1 {rendezvous}"
    assert "--tensor-model-parallel-size 1 " in first["REFOLD_LAUNCH_ARGS"]
    assert "--micro-batch-size 8 --global-batch-size 16 " in first["REFOLD_LAUNCH_ARGS"]


def test_other_runs_get_no_launch_variables(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(tmp_path, {}, ONE_GPU, plan=Plan())
    assert not [name for name in found if name.startswith(("REFOLD_LAUNCH", "REFOLD_ENGINE"))]


def visible_devices(share: Share, given: Mapping[str, str], **more: Any) -> str:
    devices = Devices(given, more.get("devices"), (), more.get("gpus", True))
    return devices.variables(share)["CUDA_VISIBLE_DEVICES"]


def test_slots_are_indices_into_the_visible_gpus() -> None:
    assert visible_devices(Share(0, (1,)), {"CUDA_VISIBLE_DEVICES": "4,GPU-5a"}) == "GPU-5a"


def test_slots_map_to_the_devices_of_their_node() -> None:
    assert visible_devices(Share(1, (1, 0)), {}, devices=[["GPU-a"], ["GPU-b", "GPU-c"]]) == "GPU-c,GPU-b"


def test_a_process_without_gpus_sees_none() -> None:
    assert visible_devices(Share(0), {}) == ""
    assert visible_devices(Share(0, (0, 1)), {"CUDA_VISIBLE_DEVICES": "0,1"}, gpus=False) == ""


HALF_A_GPU = Share(0, (1,), 500)


def start_mps(folder: Path, pid: int | None = None) -> None:
    """Create the files of the MPS control daemon."""
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{pid or os.getpid()}\n")


def test_an_mps_daemon_that_has_ended_is_not_used(tmp_path: Path) -> None:
    start_mps(tmp_path, pid=2**22 + 1)
    assert not Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (), True).has_mps()


def test_a_pipe_that_another_user_puts_in_the_place_of_the_mps_daemon_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "nvidia-cuda-mps-control.pid"
    os.mkfifo(pipe)
    unblocking = threading.Timer(5.0, lambda: os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    unblocking.start()
    try:
        assert not Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (), True).has_mps()
        assert unblocking.is_alive()
    finally:
        unblocking.cancel()


@needs_root
def test_an_mps_daemon_that_another_user_claims_is_not_used(tmp_path: Path) -> None:
    start_mps(tmp_path)
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (), True)
    assert devices.has_mps()
    os.chown(tmp_path / "nvidia-cuda-mps-control.pid", ANN, ANN)
    assert not devices.has_mps()


def test_shares_of_a_gpu_are_enforced_if_mps_is_running(tmp_path: Path) -> None:
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (81_920,), True)
    without_mps = {"CUDA_VISIBLE_DEVICES": "1", "REFOLD_SLOTS": "1", "REFOLD_GPU_SHARE": "0.5"}
    assert devices.variables(HALF_A_GPU) == without_mps
    assert "not enforced" in devices.enforcement()
    start_mps(tmp_path)
    assert devices.variables(HALF_A_GPU) == {
        **without_mps,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40960M",
    }
    assert devices.enforcement() == (
        "A run sees only its own GPUs; MPS limits it to its share of a GPU's compute and memory."
    )


def test_a_whole_gpu_gets_no_limit(tmp_path: Path) -> None:
    start_mps(tmp_path)
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, (81_920,), True)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in devices.variables(ONE_GPU)


@pytest.mark.parametrize(
    ("gpus", "memory", "text"), [(False, (), "not GPUs"), (True, (), "memory, whose size is unknown")]
)
def test_limits_that_are_not_enforced_are_reported(
    tmp_path: Path, gpus: bool, memory: tuple[int, ...], text: str
) -> None:
    start_mps(tmp_path)
    devices = Devices({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, None, memory, gpus)
    assert text in devices.enforcement()


def test_a_process_inherits_the_environment_of_its_submitter_instead_of_the_daemons(tmp_path: Path) -> None:
    exported = {"PATH": os.environ["PATH"], "FOO": "theirs", "RANK": "5", "REFOLD_JOB": "other", "ONLY": "submitter"}
    (found,) = run_and_read_environments(
        tmp_path, {"FOO": "daemon", "DAEMON": "1"}, ONE_GPU, exported=lambda _: exported
    )
    assert values_of(found, "FOO", "ONLY", "DAEMON", "RANK", "REFOLD_JOB") == [
        "theirs",
        "submitter",
        None,
        None,
        "job-7",
    ]


def test_variables_of_the_job_override_those_of_its_submitter(tmp_path: Path) -> None:
    (found,) = run_and_read_environments(
        tmp_path,
        {},
        ONE_GPU,
        launch=Launch(environment=(("FOO", "job"),)),
        exported=lambda _: {"PATH": os.environ["PATH"], "FOO": "submitter"},
    )
    assert found["FOO"] == "job"
