"""The local back end keeps the contract, and what is its own: slots, environment, logs, trees of processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from refold.backends import Backend, Report, process_tree
from refold.backends.local import LocalBackend, local_cluster, log_path
from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.model import Allocation, Demand, Job, Share
from refold.testing.backend_contract import LONG_GRACE, SHORT_GRACE, BackendContract, World


class TestLocalBackend(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)

    def test_a_process_killed_from_outside_is_a_run_that_failed(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "echo $$ >pid; exec sleep 1000")
            os.kill(int(await world.content("pid")), signal.SIGKILL)
            assert await world.ending("job") == RunFailed("job", 1, "killed by SIGKILL")

        self.within(tmp_path, test)

    def test_a_failure_says_which_instance_it_was(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "[ $REFOLD_INSTANCE = 0 ] && exec sleep 1000; exit 4", instances=2)
            assert await world.ending("job") == RunFailed("job", 1, "instance 1: exit 4")

        self.within(tmp_path, test)

    @pytest.mark.parametrize(
        ("command", "why"),
        [
            ((), "it has no command"),
            (("/no/such",), "cannot start '/no/such': No such file or directory"),
            (("/etc/passwd",), "cannot start '/etc/passwd': Permission denied"),
            (("echo", "\0"), "cannot start 'echo': embedded null byte"),
        ],
    )
    def test_why_a_command_cannot_be_started_is_said(self, tmp_path: Path, command: tuple[str, ...], why: str) -> None:
        async def test(world: World) -> None:
            await world.start_words("job", command)
            assert await world.ending("job") == RunFailed("job", 1, why)

        self.within(tmp_path, test)

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
    @pytest.mark.parametrize("escape", ["setsid", "env -i"])
    def test_who_leaves_the_session_or_clears_its_environment_is_found(self, tmp_path: Path, escape: str) -> None:
        async def test(world: World) -> None:
            await world.start(
                "job", f"{escape} sh -c 'echo $$ >pid; exec sleep 1000' & while [ ! -s pid ]; do sleep 0.02; done"
            )
            pid = int(await world.content("pid"))
            assert await world.ending("job") == RunFinished("job", 1)
            assert not self.is_alive(pid)

        self.within(tmp_path, test)

    def test_runs_of_others_are_left_alone(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("other", "echo $$ >pid; exec sleep 1000")
            pid = int(await world.content("pid"))
            await world.start("job", "exec sleep 1000")
            await world.started("job")
            await world.stop("job")
            assert await world.ending("job") == RunStopped("job", 1)
            assert self.is_alive(pid)
            assert world.endings("other") == []

        self.within(tmp_path, test, grace=SHORT_GRACE)

    def test_output_goes_to_a_log_per_run_and_instance(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "echo out $REFOLD_INSTANCE; echo err >&2", run=2, instances=2)
            await world.ending("job", 2)

        self.within(tmp_path, test)
        logs = {path.name: path.read_text() for path in (tmp_path / "logs" / "job").iterdir()}
        assert logs == {"run-2.0.log": "out 0\nerr\n", "run-2.1.log": "out 1\nerr\n"}


def environment_of_runs(folder: Path, given: dict[str, str], *shares: Share) -> list[dict[str, str]]:
    """What the processes of a gang on these shares find in their environment."""
    contract = TestLocalBackend()
    contract.make_backend = (  # type: ignore[method-assign]
        lambda report, folder, grace: LocalBackend(
            report, folder / "logs", grace, {"PATH": os.environ["PATH"], **given}
        )
    )

    async def test(world: World) -> None:
        job = Job("job", demand=Demand(len(shares)), command=("env",))
        await world.backend.carry_out([StartRun("job", 1, Allocation(shares))], {"job": job})
        assert await world.ending("job") == RunFinished("job", 1)

    contract.within(folder, test, LONG_GRACE)
    logs = [log_path(folder / "logs", "job", 1, instance) for instance in range(len(shares))]
    return [dict(line.split("=", 1) for line in log.read_text().splitlines()) for log in logs]


def chosen(environment: dict[str, str], *names: str) -> list[str | None]:
    return [environment.get(name) for name in names]


LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


def test_a_process_is_told_its_slots_and_who_it_is(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {}, Share(0, (1, 3)))
    assert chosen(found, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["1,3", "1,3"]
    assert chosen(found, "REFOLD_JOB", "REFOLD_RUN", "REFOLD_INSTANCE", "REFOLD_INSTANCES") == ["job", "1", "0", "1"]


def test_a_gang_is_told_what_torch_distributed_wants_to_know(tmp_path: Path) -> None:
    first, second = environment_of_runs(tmp_path, {}, Share(0, (0,)), Share(0, (1,)))
    assert chosen(first, *LAUNCHER) == ["0", "2", "0", "127.0.0.1"]
    assert chosen(second, *LAUNCHER) == ["1", "2", "0", "127.0.0.1"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert chosen(second, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["1", "1"]


def test_a_single_process_is_not_taken_for_one_of_a_gang(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {"RANK": "7", "WORLD_SIZE": "8"}, Share(0, (0, 1)))
    assert chosen(found, *LAUNCHER, "MASTER_PORT") == [None] * 5


def test_slots_count_through_the_gpus_that_were_given_to_us(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {"CUDA_VISIBLE_DEVICES": "4,GPU-5a"}, Share(0, (1,)))
    assert chosen(found, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["GPU-5a", "1"]


def test_a_job_without_slots_sees_no_gpu(tmp_path: Path) -> None:
    (found,) = environment_of_runs(tmp_path, {}, Share(0))
    assert chosen(found, "CUDA_VISIBLE_DEVICES", "REFOLD_SLOTS") == ["", ""]


@pytest.mark.parametrize(
    "job", ["..", ".", "../../etc/x", "/etc/passwd", "a/b", "a\0b", "é" * 400, "\ud800", "~", "a\\b"]
)
def test_no_job_id_leads_out_of_the_folder(tmp_path: Path, job: str) -> None:
    path = log_path(tmp_path, job, 1, 0)
    path.parent.mkdir()
    assert path.parent.resolve().parent == tmp_path.resolve()


def test_different_job_ids_have_different_folders(tmp_path: Path) -> None:
    jobs = ["a/b", "a%2Fb", "a b", "a_b", "..", "%2E.", "x" * 300, "x" * 301]
    assert len({log_path(tmp_path, job, 1, 0) for job in jobs}) == len(jobs)


def test_this_machine_is_a_cluster_of_one_node() -> None:
    cluster = local_cluster(4)
    assert (cluster.gpus, cluster.cpus_known, cluster.memory_known) == (4, False, False)


def test_where_there_is_no_proc_process_groups_have_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_PROC", tmp_path / "no-proc")
    contract = TestLocalBackend()
    contract.test_a_run_starts_and_finishes(tmp_path)
    contract.test_grandchildren_end_with_a_run_that_is_stopped(tmp_path)
