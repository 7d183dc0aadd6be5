"""The local back end keeps the contract, and what is its own: slots, environment, logs, trees of processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from scarcity import no_more_files

from refold.backends.backend import Backend, Report
from refold.backends.local import instance, process
from refold.backends.local.backend import LocalBackend, local_cluster
from refold.backends.local.log_files import LogChunk, read_from, tail
from refold.backends.local.process import Process
from refold.backends.local.run_files import RunFiles, log_path
from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.model import Allocation, Job, Launch, Share
from refold.testing.backend_contract import LONG_GRACE, SHORT_GRACE, BackendContract, Ending, World


class TestLocalBackend(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)

    def test_a_process_killed_from_outside_is_a_run_that_failed(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "echo $$ >pid; exec sleep 1000")
            os.kill(int(await world.content("pid")), signal.SIGKILL)
            assert await world.ending("job") == RunFailed("job", 1, "killed by SIGKILL", exit_code=137)

        self.within(tmp_path, test)

    def test_a_failure_says_which_instance_it_was(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "[ $REFOLD_INSTANCE = 0 ] && exec sleep 1000; exit 4", instances=2)
            assert await world.ending("job") == RunFailed("job", 1, "instance 1: exit 4", exit_code=4)

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
        logs = {path.name: path.read_text() for path in (tmp_path / "logs" / "job").glob("*.log")}
        assert logs == {"run-2.0.log": "out 0\nerr\n", "run-2.1.log": "out 1\nerr\n"}

    def test_a_job_that_puts_pipes_in_the_place_of_our_files_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        ours = "run-1.start run-1.end run-1.end.new run-1.0.log run-1.0.log.1 run-1.0.log.gone run-2.0.log"
        shell = f"cd logs/job; rm -f run-1.start run-1.0.log; mkfifo {ours} run-1.0.progress"

        async def test(world: World) -> None:
            await world.start("job", shell)
            assert await world.ending("job") == RunFinished("job", 1)
            assert read_from(RunFiles(tmp_path / "logs", "job", 1).log(0), 0) == LogChunk(b"", 0, 0)
            await world.start("job", "true", run=2)
            why = f"cannot start 'sh': {os.strerror(errno.ENXIO)}"
            assert await world.ending("job", 2) == RunFailed("job", 2, why)

        self.within(tmp_path, test)

    @pytest.mark.parametrize(
        ("number", "retry"),
        [
            (errno.EMFILE, True),
            (errno.EAGAIN, True),
            (errno.ENOMEM, True),
            (errno.ENOSPC, True),
            (errno.E2BIG, False),
            (errno.EACCES, False),
        ],
        ids=["files", "processes", "memory", "disk", "too long", "not allowed"],
    )
    def test_a_run_that_the_machine_has_no_room_for_may_be_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, retry: bool
    ) -> None:
        def cannot(*_: object) -> Process:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(instance, "start_shim", cannot)

        async def test(world: World) -> None:
            await world.start("job", "true")
            why = f"cannot start 'sh': {os.strerror(number)}"
            assert await world.ending("job") == RunFailed("job", 1, why, retry=retry)

        self.within(tmp_path, test)

    def test_while_no_file_can_be_opened_runs_are_neither_started_nor_taken_to_have_ended(self, tmp_path: Path) -> None:
        shell = "echo $$ >pid-$REFOLD_JOB; exec sleep 1000"

        async def test(world: World) -> None:
            await world.start("old", shell)
            pid = int(await world.content("pid-old"))
            await world.another_backend()
            with no_more_files():
                await world.start("old", shell)
                await world.start("new", "true")
                await asyncio.sleep(0.3)
                assert (world.reports, process.is_alive(Process(pid, started=1))) == ([], True)
            await world.stop("old")
            assert await world.ending("old") == RunStopped("old", 1)
            assert await world.ending("new") == RunFinished("new", 1)
            assert not self.is_alive(pid)

        self.within(tmp_path, test)

    def test_what_nobody_knows_of_gets_no_grace(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.02; done")
            pid = int(await world.content("pid"))
            await world.another_backend()
            await world.backend.keep_only([])  # with the grace of this test, nobody would wait for it
            assert not self.is_alive(pid)

        self.within(tmp_path, test, grace=LONG_GRACE)

    def test_output_is_for_the_owner_of_the_daemon_alone(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "echo secret")
            await world.ending("job")

        self.within(tmp_path, test)
        log = RunFiles(tmp_path / "logs", "job", 1).log(0)
        assert [path.stat().st_mode & 0o777 for path in (log, log.parent, log.parent.parent)] == [0o600, 0o700, 0o700]


def ending_of(folder: Path, job: Job, stop_when: str = "", **more: Any) -> Ending:
    """How a job ends on one slot; it is told to stop when it has written a file of that name."""

    class Local(BackendContract):
        def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
            return LocalBackend(report, folder / "logs", grace, **more)

    async def test(world: World) -> Ending:
        await world.backend.carry_out([StartRun(job.id, 1, Allocation((Share(0, (0,)),)))], {job.id: job})
        if stop_when:
            await world.until(stop_when)
            await world.stop(job.id)
        return await world.ending(job.id)

    return Local().within(folder, test)


def shell_job(folder: Path, shell: str, **launch: Any) -> Job:
    return Job("job", command=("sh", "-c", shell), launch=Launch(folder=str(folder), **launch))


def log_of(folder: Path) -> str:
    return log_path(folder / "logs", "job", 1, 0).read_text()


def test_a_job_runs_in_its_folder(tmp_path: Path) -> None:
    assert ending_of(tmp_path, shell_job(tmp_path, "pwd")) == RunFinished("job", 1)
    assert log_of(tmp_path) == f"{tmp_path}\n"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = shell_job(tmp_path / "none", "true")
    assert ending_of(tmp_path, job) == RunFailed("job", 1, f"its folder '{tmp_path / 'none'}' is not there")


def test_a_job_without_a_folder_may_have_one_of_its_own(tmp_path: Path) -> None:
    job = Job("job", command=("sh", "-c", "pwd; echo $REFOLD_CHECKPOINT"))
    assert ending_of(tmp_path, job, in_own_folder=True) == RunFinished("job", 1)
    assert log_of(tmp_path) == f"{tmp_path / 'logs' / 'job' / 'kept'}\n" * 2


def test_a_job_is_stopped_by_the_signal_that_it_wants(tmp_path: Path) -> None:
    shell = "trap 'echo told; exit 0' USR1; trap 'echo no' TERM; echo >up; while :; do sleep 0.02; done"
    assert ending_of(tmp_path, shell_job(tmp_path, shell, stop_signal="USR1"), "up") == RunStopped("job", 1)
    assert log_of(tmp_path).splitlines()[-1] == "told"
    assert "no" not in log_of(tmp_path).splitlines()


def test_a_job_has_the_grace_that_it_wants(tmp_path: Path) -> None:
    shell = "trap '' TERM; echo >up; while :; do sleep 0.02; done"
    assert ending_of(tmp_path, shell_job(tmp_path, shell, grace=0.1), "up") == RunStopped("job", 1)


@pytest.mark.parametrize(
    ("shell", "why", "exit_code"),
    [
        ("/no/such/command", "exit 127 (command not found)", 127),
        ("exit 255", "exit 255", 255),
        ("kill -SEGV $$", "killed by SIGSEGV", 139),
        ("kill -9 0", "it was lost: its shim was killed", None),
        ("kill -TERM 0; sleep 1000", "killed by SIGTERM", 143),
    ],
)
def test_how_a_command_ended_is_said(tmp_path: Path, shell: str, why: str, exit_code: int | None) -> None:
    assert ending_of(tmp_path, shell_job(tmp_path, shell)) == RunFailed("job", 1, why, exit_code=exit_code)


@pytest.mark.parametrize("word", ["exit", "exec", "set", ":", "a=b", "-c", "$(touch here)", "'"])
def test_the_words_of_a_command_mean_nothing_to_the_shim(tmp_path: Path, word: str) -> None:
    job = Job("job", command=(word, "0"), launch=Launch(folder=str(tmp_path)))
    assert ending_of(tmp_path, job) == RunFailed("job", 1, f"cannot start {word!r}: No such file or directory")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("word", ["$(touch here)", "`touch here`", "; touch here", "'\"\n\\", "", "*", "--", "é\t"])
def test_words_are_passed_on_as_they_are(tmp_path: Path, word: str) -> None:
    job = Job("job", command=("printf", "%s", word), launch=Launch(folder=str(tmp_path)))
    assert ending_of(tmp_path, job) == RunFinished("job", 1)
    assert log_of(tmp_path) == word
    assert not (tmp_path / "here").exists()


def test_a_script_of_100_kb_may_be_a_word(tmp_path: Path) -> None:
    script = "# " + "x" * 100_000 + "\necho done"
    assert ending_of(tmp_path, shell_job(tmp_path, script)) == RunFinished("job", 1)
    assert log_of(tmp_path) == "done\n"


def test_a_command_that_is_too_long_for_the_system_is_a_run_that_failed(tmp_path: Path) -> None:
    ending = ending_of(tmp_path, shell_job(tmp_path, "#" * 5_000_000))
    assert ending == RunFailed("job", 1, "cannot start 'sh': Argument list too long")


def test_a_flood_of_output_is_kept_within_bounds(tmp_path: Path) -> None:
    shell = "yes | head -c 30000000; sleep 0.5; echo; echo the end"
    assert ending_of(tmp_path, shell_job(tmp_path, shell), most_output=2**20) == RunFinished("job", 1)
    path = log_path(tmp_path / "logs", "job", 1, 0)
    kept = [file.stat().st_size for file in path.parent.glob("run-1.0.log*")]
    assert sum(kept) <= 2**20 + 100
    assert tail(path, 1).data == b"the end\n"


def test_a_command_does_not_hold_files_that_are_ours(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        assert ending_of(tmp_path, shell_job(tmp_path, "ls -l /proc/self/fd")) == RunFinished("job", 1)
    assert "secret" not in log_of(tmp_path)
    assert " 9 -> " not in log_of(tmp_path)


def test_secrets_that_cannot_be_had_are_a_run_that_failed(tmp_path: Path) -> None:
    def locked(job: str) -> dict[str, str]:
        raise RuntimeError("the store is locked")

    ending = ending_of(tmp_path, shell_job(tmp_path, "true"), more_environment=locked)
    assert ending == RunFailed("job", 1, "cannot start 'sh': the store is locked")


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
    monkeypatch.setattr(process, "PROC", tmp_path / "no-proc")
    contract = TestLocalBackend()
    contract.test_a_run_starts_and_finishes(tmp_path)
    (tmp_path / "other").mkdir()
    contract.test_grandchildren_end_with_a_run_that_is_stopped(tmp_path / "other")
