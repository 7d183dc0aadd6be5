"""The local back end: the back end contract, and its own slots, environment, logs and process trees."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from file_limits import no_free_file_descriptors

from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.engines.local import instance, process
from refold.engines.local.backend import LocalBackend, local_cluster
from refold.engines.local.process import Process
from refold.model import Allocation, Job, Launch, Share
from refold.server.backend import Backend, Report
from refold.server.output.log_files import LogChunk, read_log, tail_log
from refold.server.output.run_files import RunFiles, log_path
from refold.testing.backend_contract import SHORT_GRACE, BackendContract
from refold.testing.backend_harness import LONG_GRACE, BackendHarness, Ending


class TestLocalBackend(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)

    def test_a_run_whose_process_is_killed_has_failed(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "echo $$ >pid; exec sleep 1000")
            os.kill(int(await harness.content("pid")), signal.SIGKILL)
            assert await harness.ending("job") == RunFailed("job", 1, "killed by SIGKILL", exit_code=137)

        self.run_test(tmp_path, test)

    def test_a_failure_names_the_instance(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "[ $REFOLD_INSTANCE = 0 ] && exec sleep 1000; exit 4", instances=2)
            assert await harness.ending("job") == RunFailed("job", 1, "instance 1: exit 4", exit_code=4)

        self.run_test(tmp_path, test)

    @pytest.mark.parametrize(
        ("command", "why"),
        [
            ((), "the job has no command"),
            (("/no/such",), "cannot start '/no/such': No such file or directory"),
            (("/etc/passwd",), "cannot start '/etc/passwd': Permission denied"),
            (("echo", "\0"), "cannot start 'echo': embedded null byte"),
        ],
    )
    def test_a_command_that_cannot_be_started_is_reported(
        self, tmp_path: Path, command: tuple[str, ...], why: str
    ) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start_command("job", command)
            assert await harness.ending("job") == RunFailed("job", 1, why)

        self.run_test(tmp_path, test)

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
    @pytest.mark.parametrize("escape", ["setsid", "env -i"])
    def test_a_descendant_that_leaves_the_session_or_clears_its_environment_is_killed(
        self, tmp_path: Path, escape: str
    ) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start(
                "job", f"{escape} sh -c 'echo $$ >pid; exec sleep 1000' & while [ ! -s pid ]; do sleep 0.02; done"
            )
            pid = int(await harness.content("pid"))
            assert await harness.ending("job") == RunFinished("job", 1)
            assert not self.is_alive(pid)

        self.run_test(tmp_path, test)

    def test_stopping_a_run_does_not_affect_other_runs(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("other", "echo $$ >pid; exec sleep 1000")
            pid = int(await harness.content("pid"))
            await harness.start("job", "exec sleep 1000")
            await harness.started("job")
            await harness.stop("job")
            assert await harness.ending("job") == RunStopped("job", 1)
            assert self.is_alive(pid)
            assert harness.endings("other") == []

        self.run_test(tmp_path, test, grace=SHORT_GRACE)

    def test_output_is_written_to_one_log_per_run_and_instance(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "echo out $REFOLD_INSTANCE; echo err >&2", run=2, instances=2)
            await harness.ending("job", 2)

        self.run_test(tmp_path, test)
        logs = {path.name: path.read_text() for path in (tmp_path / "logs" / "job").glob("*.log")}
        assert logs == {"run-2.0.log": "out 0\nerr\n", "run-2.1.log": "out 1\nerr\n"}

    def test_a_job_that_replaces_our_files_by_fifos_does_not_block_the_daemon(self, tmp_path: Path) -> None:
        ours = "run-1.start run-1.end run-1.end.new run-1.0.log run-1.0.log.1 run-1.0.log.gone run-2.0.log"
        shell = f"cd logs/job; rm -f run-1.start run-1.0.log; mkfifo {ours} run-1.0.progress"

        async def test(harness: BackendHarness) -> None:
            await harness.start("job", shell)
            assert await harness.ending("job") == RunFinished("job", 1)
            assert read_log(RunFiles(tmp_path / "logs", "job", 1).log(0), 0) == LogChunk(b"", 0, 0)
            await harness.start("job", "true", run=2)
            why = f"cannot start 'sh': {os.strerror(errno.ENXIO)}"
            assert await harness.ending("job", 2) == RunFailed("job", 2, why)

        self.run_test(tmp_path, test)

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
    def test_a_start_that_fails_for_lack_of_resources_may_be_retried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, retry: bool
    ) -> None:
        def fail(*_: object, **__: object) -> Process:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(instance, "start_shim", fail)

        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "true")
            why = f"cannot start 'sh': {os.strerror(number)}"
            assert await harness.ending("job") == RunFailed("job", 1, why, retry=retry)

        self.run_test(tmp_path, test)

    def test_without_file_descriptors_runs_are_neither_started_nor_declared_ended(self, tmp_path: Path) -> None:
        shell = "echo $$ >pid-$REFOLD_JOB; exec sleep 1000"

        async def test(harness: BackendHarness) -> None:
            await harness.start("old", shell)
            pid = int(await harness.content("pid-old"))
            await harness.replace_backend()
            with no_free_file_descriptors():
                await harness.start("old", shell)
                await harness.start("new", "true")
                await asyncio.sleep(0.3)
                assert (harness.reports, process.is_alive(Process(pid, started=1))) == ([], True)
            await harness.stop("old")
            assert await harness.ending("old") == RunStopped("old", 1)
            assert await harness.ending("new") == RunFinished("new", 1)
            assert not self.is_alive(pid)

        self.run_test(tmp_path, test)

    def test_unknown_runs_get_no_grace_period(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.02; done")
            pid = int(await harness.content("pid"))
            await harness.replace_backend()
            await harness.backend.stop_all_except([])  # with the grace period of this test it would not return in time
            assert not self.is_alive(pid)

        self.run_test(tmp_path, test, grace=LONG_GRACE)

    def test_output_is_readable_only_by_the_owner_of_the_daemon(self, tmp_path: Path) -> None:
        async def test(harness: BackendHarness) -> None:
            await harness.start("job", "echo secret")
            await harness.ending("job")

        self.run_test(tmp_path, test)
        log = RunFiles(tmp_path / "logs", "job", 1).log(0)
        assert [path.stat().st_mode & 0o777 for path in (log, log.parent, log.parent.parent)] == [0o600, 0o700, 0o700]


def run_to_end(folder: Path, job: Job, stop_when: str = "", **more: Any) -> Ending:
    """Run a job on one slot and return its end; stop it once it has written the file `stop_when`."""

    class Local(BackendContract):
        def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
            return LocalBackend(report, folder / "logs", grace, **more)

    async def test(harness: BackendHarness) -> Ending:
        await harness.backend.carry_out([StartRun(job.id, 1, Allocation((Share(0, (0,)),)))], {job.id: job})
        if stop_when:
            await harness.wait_for_file(stop_when)
            await harness.stop(job.id)
        return await harness.ending(job.id)

    return Local().run_test(folder, test)


def shell_job(folder: Path, shell: str, **launch: Any) -> Job:
    return Job("job", command=("sh", "-c", shell), launch=Launch(folder=str(folder), **launch))


def read_output(folder: Path) -> str:
    return log_path(folder / "logs", "job", 1, 0).read_text()


def test_a_job_runs_in_its_folder(tmp_path: Path) -> None:
    assert run_to_end(tmp_path, shell_job(tmp_path, "pwd")) == RunFinished("job", 1)
    assert read_output(tmp_path) == f"{tmp_path}\n"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    job = shell_job(tmp_path / "none", "true")
    assert run_to_end(tmp_path, job) == RunFailed("job", 1, f"folder '{tmp_path / 'none'}' does not exist")


def test_a_job_without_a_folder_may_get_a_private_one(tmp_path: Path) -> None:
    job = Job("job", command=("sh", "-c", "pwd; echo $REFOLD_CHECKPOINT"))
    assert run_to_end(tmp_path, job, private_folders=True) == RunFinished("job", 1)
    assert read_output(tmp_path) == f"{tmp_path / 'logs' / 'job' / 'checkpoint'}\n" * 2


def test_a_job_is_stopped_with_its_own_stop_signal(tmp_path: Path) -> None:
    shell = "trap 'echo USR1; exit 0' USR1; trap 'echo TERM' TERM; echo >up; while :; do sleep 0.02; done"
    assert run_to_end(tmp_path, shell_job(tmp_path, shell, stop_signal="USR1"), "up") == RunStopped("job", 1)
    assert read_output(tmp_path).splitlines()[-1] == "USR1"
    assert "TERM" not in read_output(tmp_path).splitlines()


def test_a_job_has_its_own_grace_period(tmp_path: Path) -> None:
    shell = "trap '' TERM; echo >up; while :; do sleep 0.02; done"
    assert run_to_end(tmp_path, shell_job(tmp_path, shell, grace=0.1), "up") == RunStopped("job", 1)


@pytest.mark.parametrize(
    ("shell", "why", "exit_code"),
    [
        ("/no/such/command", "exit 127 (command not found)", 127),
        ("exit 255", "exit 255", 255),
        ("kill -SEGV $$", "killed by SIGSEGV", 139),
        ("kill -9 0", "lost: its supervising shell (shim) was killed, or could not record its exit status", None),
        ("kill -TERM 0; sleep 1000", "killed by SIGTERM", 143),
    ],
)
def test_the_cause_of_a_failure_is_reported(tmp_path: Path, shell: str, why: str, exit_code: int | None) -> None:
    assert run_to_end(tmp_path, shell_job(tmp_path, shell)) == RunFailed("job", 1, why, exit_code=exit_code)


@pytest.mark.parametrize("argument", ["exit", "exec", "set", ":", "a=b", "-c", "$(touch here)", "'"])
def test_the_program_name_is_not_interpreted_by_the_shim(tmp_path: Path, argument: str) -> None:
    job = Job("job", command=(argument, "0"), launch=Launch(folder=str(tmp_path)))
    assert run_to_end(tmp_path, job) == RunFailed("job", 1, f"cannot start {argument!r}: No such file or directory")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("argument", ["$(touch here)", "`touch here`", "; touch here", "'\"\n\\", "", "*", "--", "é\t"])
def test_arguments_are_passed_unchanged(tmp_path: Path, argument: str) -> None:
    job = Job("job", command=("printf", "%s", argument), launch=Launch(folder=str(tmp_path)))
    assert run_to_end(tmp_path, job) == RunFinished("job", 1)
    assert read_output(tmp_path) == argument
    assert not (tmp_path / "here").exists()


def test_an_argument_may_be_a_script_of_100_kb(tmp_path: Path) -> None:
    script = "# " + "x" * 100_000 + "\necho done"
    assert run_to_end(tmp_path, shell_job(tmp_path, script)) == RunFinished("job", 1)
    assert read_output(tmp_path) == "done\n"


def test_a_command_that_exceeds_the_system_limit_fails(tmp_path: Path) -> None:
    ending = run_to_end(tmp_path, shell_job(tmp_path, "#" * 5_000_000))
    assert ending == RunFailed("job", 1, "cannot start 'sh': Argument list too long")


def test_stored_output_is_bounded(tmp_path: Path) -> None:
    shell = "yes | head -c 30000000; sleep 0.5; echo; echo the end"
    assert run_to_end(tmp_path, shell_job(tmp_path, shell), max_output_bytes=2**20) == RunFinished("job", 1)
    path = log_path(tmp_path / "logs", "job", 1, 0)
    sizes = [file.stat().st_size for file in path.parent.glob("run-1.0.log*")]
    assert sum(sizes) <= 2**20 + 100
    assert tail_log(path, 1).data == b"the end\n"


def test_a_command_does_not_inherit_our_file_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        assert run_to_end(tmp_path, shell_job(tmp_path, "ls -l /proc/self/fd")) == RunFinished("job", 1)
    assert "secret" not in read_output(tmp_path)
    assert " 9 -> " not in read_output(tmp_path)


def test_a_run_whose_secrets_cannot_be_read_fails(tmp_path: Path) -> None:
    def locked(job: str) -> dict[str, str]:
        raise RuntimeError("the store is locked")

    ending = run_to_end(tmp_path, shell_job(tmp_path, "true"), secrets=locked)
    assert ending == RunFailed("job", 1, "cannot start 'sh': the store is locked")


@pytest.mark.parametrize(
    "job", ["..", ".", "../../etc/x", "/etc/passwd", "a/b", "a\0b", "é" * 400, "\ud800", "~", "a\\b"]
)
def test_no_job_id_escapes_the_log_folder(tmp_path: Path, job: str) -> None:
    path = log_path(tmp_path, job, 1, 0)
    path.parent.mkdir()
    assert path.parent.resolve().parent == tmp_path.resolve()


def test_different_job_ids_have_different_folders(tmp_path: Path) -> None:
    jobs = ["a/b", "a%2Fb", "a b", "a_b", "..", "%2E.", "x" * 300, "x" * 301]
    assert len({log_path(tmp_path, job, 1, 0) for job in jobs}) == len(jobs)


def test_this_machine_is_a_cluster_of_one_node() -> None:
    cluster = local_cluster(4)
    assert (cluster.gpus, cluster.cpus_known, cluster.memory_known) == (4, False, False)


def test_without_proc_process_groups_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROC", tmp_path / "no-proc")
    contract = TestLocalBackend()
    contract.test_a_run_starts_and_finishes(tmp_path)
    (tmp_path / "other").mkdir()
    contract.test_descendants_end_when_a_run_is_stopped(tmp_path / "other")
