"""Runs survive the daemon and are adopted by the next one, by their shims, claims and marks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_limits import no_free_file_descriptors

from refold.core.events import Event, RunFailed, RunFinished, RunStarted, RunStopped
from refold.engines.local import instance, process
from refold.engines.local.backend import LocalBackend
from refold.engines.local.process import ProcessInfo
from refold.engines.local.process_host import MARK_VARIABLE
from refold.engines.local.process_tree import ProcessScanner, ProcessTree
from refold.engines.local.shim import CLAIM_FAILED, read_claim, read_exit_status, start_shim
from refold.server.backend import Backend, Report
from refold.server.output.run_files import RunFiles, StartRecord, new_mark
from refold.testing.backend_contract import BackendContract
from refold.testing.backend_harness import BackendHarness

LOST = "lost: its supervising shell (shim) was killed, or could not record its exit status"


class Local(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)


local = Local()


def run_files(folder: Path, job: str = "job") -> RunFiles:
    return RunFiles(folder / "logs", job, 1)


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process that does not belong to any run."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


DAEMON = """
import asyncio, sys
from pathlib import Path
from refold.engines.local import LocalBackend
from refold.core.orders import StartRun
from refold.model import Allocation, Job, Share

async def serve(folder, shell):
    job = Job("job", command=("sh", "-c", f"cd '{folder}'\\n{shell}"))
    backend = LocalBackend(lambda event: print(event, flush=True), Path(folder) / "logs")
    await backend.carry_out([StartRun("job", 1, Allocation((Share(0, (0,)),)))], {"job": job})
    await asyncio.sleep(1000)

asyncio.run(serve(*sys.argv[1:]))
"""


def start_in_killed_daemon(folder: Path, shell: str) -> None:
    """Start a run in a daemon, and kill the daemon as soon as it has reported the start."""
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(folder), shell], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert b"RunStarted" in daemon.stdout.readline()
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


@pytest.mark.parametrize("status", [0, 3])
def test_a_killed_daemon_loses_neither_run_nor_exit_status(tmp_path: Path, status: int) -> None:
    shell = f"echo >>starts; while [ ! -e go ]; do sleep 0.02; done; exit {status}"
    start_in_killed_daemon(tmp_path, shell)

    async def test(harness: BackendHarness) -> None:
        await harness.start("job", shell)
        await harness.started("job")
        (tmp_path / "go").touch()
        assert await harness.ending("job") == (
            RunFailed("job", 1, "exit 3", exit_code=3) if status else RunFinished("job", 1)
        )
        assert (tmp_path / "starts").read_text() == "\n"

    local.run_test(tmp_path, test)


def test_a_run_whose_daemon_was_killed_can_be_stopped(tmp_path: Path) -> None:
    shell = "echo $$ >pid; exec sleep 1000"
    start_in_killed_daemon(tmp_path, shell)

    async def test(harness: BackendHarness) -> None:
        await harness.start("job", shell)
        pid = int(await harness.content("pid"))
        await harness.stop("job")
        assert await harness.ending("job") == RunStopped("job", 1)
        assert not local.is_alive(pid)

    local.run_test(tmp_path, test)


def test_only_one_of_several_shims_runs_the_command(tmp_path: Path) -> None:
    run_files(tmp_path).checkpoint_folder.mkdir(parents=True)
    command = ("sh", "-c", "echo >>starts; sleep 0.1")
    shims = [start_shim(run_files(tmp_path), 0, tmp_path, command, os.environ) for _ in range(8)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(shim.pid, 0)[1]) for shim in shims]
    assert sorted(statuses) == [0, *[CLAIM_FAILED] * 7]
    claim = read_claim(run_files(tmp_path).claim(0))
    assert claim is not None
    assert claim.process == shims[statuses.index(0)]
    assert (tmp_path / "starts").read_text() == "\n"
    assert read_exit_status(run_files(tmp_path).exit(0)) == 0


def test_missing_instances_of_a_gang_are_started(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        shell = "cd '{}'\necho $$ $MASTER_PORT >>of-$REFOLD_INSTANCE; while [ ! -e go ]; do sleep 0.02; done"
        run_files(tmp_path).record_start(StartRecord(new_mark(tmp_path / "logs"), 4242))
        variables = {**os.environ, "REFOLD_INSTANCE": "1", "MASTER_PORT": "4242"}
        first = start_shim(run_files(tmp_path), 1, tmp_path, ("sh", "-c", shell.format(tmp_path)), variables)
        await harness.start_command("job", ("sh", "-c", shell.format(tmp_path)), instances=3)
        lines = [(await harness.content(f"of-{instance}")).split() for instance in range(3)]
        assert [port for _, port in lines] == ["4242"] * 3
        assert local.is_alive(first.pid)
        (tmp_path / "go").touch()
        await harness.ending("job")
        assert harness.reports == [RunStarted("job", 1), RunFinished("job", 1)]

    local.run_test(tmp_path, test)


def test_a_run_whose_shim_was_killed_is_lost_and_its_processes_are_killed(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        shell = "echo $PPID $$ >pids; exec sleep 1000"
        await harness.start("job", shell)
        shim, pid = map(int, (await harness.content("pids")).split())
        await harness.replace_backend()
        os.kill(shim, signal.SIGKILL)
        await harness.start("job", shell)
        assert await harness.ending("job") == RunFailed("job", 1, LOST)
        assert not local.is_alive(pid)

    local.run_test(tmp_path, test)


def claim_line(pid: int, started: int, boot: str) -> str:
    return f"{pid} (sh) S 1 {pid} {pid}{' 0' * 15} {started} 0 0 {boot}\n"


def test_concurrent_requests_share_one_process_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = iter(range(100))
    monkeypatch.setattr(process, "list_processes", lambda _: [ProcessInfo(next(scans), 0, 0, 0, True)])

    async def request() -> list[int]:
        scanner = ProcessScanner()
        concurrent = [asyncio.create_task(scanner.scan()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = asyncio.create_task(scanner.scan())
        return [(await task)[0].pid for task in (*concurrent, later)]

    assert asyncio.run(request()) == [0, 0, 0, 1]


def test_a_process_scan_waits_for_free_file_descriptors() -> None:
    async def request() -> bool:
        with no_free_file_descriptors():
            scan = asyncio.create_task(ProcessScanner().scan())
            await asyncio.sleep(0.05)
            assert not scan.done()
        return os.getpid() in {info.pid for info in await scan}

    assert asyncio.run(request())


@pytest.mark.skipif(not process.has_proc(), reason="needs /proc")
@pytest.mark.parametrize(
    ("later", "boot", "why"),
    [(1, process.boot_id(), LOST), (0, "another-boot", "lost: the machine was restarted")],
    ids=["a later process", "another boot"],
)
def test_a_process_with_a_reused_pid_is_not_touched(
    tmp_path: Path, neighbour: int, later: int, boot: str, why: str
) -> None:
    async def test(harness: BackendHarness) -> None:
        started = process.identify_process(neighbour).started
        assert started is not None
        run_files(tmp_path).checkpoint_folder.mkdir(parents=True)
        run_files(tmp_path).claim(0).write_text(claim_line(neighbour, started + later, boot))
        await harness.start("job", "exec sleep 1000")
        assert await harness.ending("job") == RunFailed("job", 1, why, retry=boot == "another-boot")
        await harness.backend.stop_all_except([])
        assert local.is_alive(neighbour)

    local.run_test(tmp_path, test)


@pytest.mark.parametrize(
    ("boot", "status", "end"),
    [
        ("another-boot", 143, RunFailed("job", 1, "lost: the machine was restarted", retry=True)),
        ("another-boot", 137, RunFailed("job", 1, "lost: the machine was restarted", retry=True)),
        ("another-boot", 1, RunFailed("job", 1, "exit 1", exit_code=1)),
        ("another-boot", 0, RunFinished("job", 1)),
        (process.boot_id(), 143, RunFailed("job", 1, "killed by SIGTERM", exit_code=143)),
    ],
)
def test_a_run_that_was_ended_by_the_shutdown_of_the_machine_is_lost(
    tmp_path: Path, boot: str, status: int, end: Event
) -> None:
    """The daemon ends before; then everything gets SIGTERM, and the shim records that."""

    async def test(harness: BackendHarness) -> None:
        run_files(tmp_path).checkpoint_folder.mkdir(parents=True)
        run_files(tmp_path).claim(0).write_text(claim_line(2**22 + 1, 1, boot))
        run_files(tmp_path).exit(0).write_text(f"{status:<3}\n")
        await harness.start("job", "exec sleep 1000")
        assert await harness.ending("job") == end

    local.run_test(tmp_path, test)


@pytest.mark.parametrize("claim", ["", "4711", "nonsense\n", "1 (sh) S 1\n", "\0\n"])
def test_an_unreadable_claim_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str) -> None:
    monkeypatch.setattr(instance, "CLAIM_TIMEOUT", 0.1)

    async def test(harness: BackendHarness) -> None:
        run_files(tmp_path).checkpoint_folder.mkdir(parents=True)
        run_files(tmp_path).claim(0).write_text(claim)
        await harness.start("job", "echo >here")
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert "the claim file" in ending.why
        assert ending.retry == (claim == "")  # an empty claim file: the disk was full
        assert not (tmp_path / "here").exists()

    local.run_test(tmp_path, test)


def test_an_incomplete_exit_status_is_ignored(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        shell = "echo >up"
        await harness.start("job", shell)
        await harness.ending("job")
        await harness.replace_backend()
        (run_files(tmp_path).records / "run-1.end").unlink()
        run_files(tmp_path).exit(0).write_text("0")
        await harness.start("job", shell)
        assert await harness.ending("job") == RunFailed("job", 1, LOST)

    local.run_test(tmp_path, test)


def test_a_stop_before_the_command_starts_is_not_lost(tmp_path: Path) -> None:
    """The end is recorded before the shim has started its command."""
    run_files(tmp_path).checkpoint_folder.mkdir(parents=True)
    run_files(tmp_path).record_end(RunStopped("job", 1))
    shim = start_shim(run_files(tmp_path), 0, tmp_path, ("touch", "here"), os.environ)
    os.waitpid(shim.pid, 0)
    assert run_files(tmp_path).exit(0).read_text() == "143\n"
    assert not (tmp_path / "here").exists()


def test_signals_while_a_shim_starts_leave_no_process(tmp_path: Path) -> None:
    for number in range(30):
        files = run_files(tmp_path, f"job-{number}")
        files.checkpoint_folder.mkdir(parents=True)
        files.record_end(RunStopped(f"job-{number}", 1))
        shim = start_shim(files, 0, tmp_path, ("sleep", "1000"), os.environ)
        deadline = time.monotonic() + 60
        while read_claim(files.claim(0)) is None:
            assert time.monotonic() < deadline
        while not os.waitpid(shim.pid, os.WNOHANG)[0]:
            os.killpg(shim.pid, signal.SIGTERM)
            assert time.monotonic() < deadline
        assert read_exit_status(files.exit(0)) == 143
        while any(found.group == shim.pid and found.alive for found in process.list_processes("")):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_runs_of_another_folder_are_not_killed(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await harness.start("job", "echo $$ >pid; exec sleep 1000")
        pid = int(await harness.content("pid"))
        other = LocalBackend(lambda _: None, tmp_path / "elsewhere")
        await other.stop_all_except([])
        assert local.is_alive(pid)

    local.run_test(tmp_path, test)


def test_a_process_tree_excludes_sessions_of_reused_pids(neighbour: int) -> None:
    started = process.identify_process(neighbour).started
    assert started is not None
    tree = ProcessTree("no-such-mark", ProcessScanner())
    tree.add_leader(process.Process(neighbour, started - 1))
    assert tree.groups_among(process.list_processes(MARK_VARIABLE)) == set()
    tree.add_leader(process.Process(neighbour, started))
    assert tree.groups_among(process.list_processes(MARK_VARIABLE)) == {neighbour}


def test_without_pidfds_processes_are_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(process, "POLL_SECONDS", 0.02)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    local.test_a_run_starts_and_finishes(tmp_path / "a")
    local.test_a_new_back_end_takes_over_a_run(tmp_path / "b")
    local.test_a_run_that_was_taken_over_can_be_stopped(tmp_path / "c")


def test_long_environments_of_other_processes_are_not_read_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may start many processes with environments of megabytes each."""
    sizes: list[int] = []
    read = os.read

    def measured(descriptor: int, size: int) -> bytes:
        found = read(descriptor, size)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(process, "MAX_FILE_BYTES", 2**17)
    variables = {f"V{number}": "x" * 100_000 for number in range(8)}
    command = ["sh", "-c", "echo started; exec sleep 1000"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        monkeypatch.setattr(os, "read", measured)
        assert process._read_variable(f"/proc/{child.pid}/environ", MARK_VARIABLE) == ""
        monkeypatch.undo()
        child.kill()
    assert sum(sizes) == 2**17
