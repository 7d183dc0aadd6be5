"""Runs go on when whoever started them is gone, and who comes next finds them: by their shims, claims and marks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scarcity import no_more_files

from refold.backends.backend import Backend, Report
from refold.backends.local import instance, process
from refold.backends.local.backend import LocalBackend
from refold.backends.local.process import ProcessInfo
from refold.backends.local.process_tree import MARK, Census, ProcessTree
from refold.backends.local.run_files import RunFiles, StartNote, new_mark
from refold.backends.local.shim import NOT_CLAIMED, read_claim, start_shim
from refold.core.events import RunFailed, RunFinished, RunStarted, RunStopped
from refold.testing.backend_contract import BackendContract, World

LOST = "it was lost: its shim was killed"


class Local(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)


local = Local()


def files(folder: Path, job: str = "job") -> RunFiles:
    return RunFiles(folder / "logs", job, 1)


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process that has nothing to do with any run."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


DAEMON = """
import asyncio, sys
from pathlib import Path
from refold.backends.local import LocalBackend
from refold.backends.local.process import Seen
from refold.core.orders import StartRun
from refold.model import Allocation, Job, Share

async def serve(folder, shell):
    job = Job("job", command=("sh", "-c", f"cd '{folder}'\\n{shell}"))
    backend = LocalBackend(lambda event: print(event, flush=True), Path(folder) / "logs")
    await backend.carry_out([StartRun("job", 1, Allocation((Share(0, (0,)),)))], {"job": job})
    await asyncio.sleep(1000)

asyncio.run(serve(*sys.argv[1:]))
"""


def start_and_be_killed(folder: Path, shell: str) -> None:
    """A daemon starts a run of a command, and is killed as soon as it has reported that."""
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(folder), shell], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert b"RunStarted" in daemon.stdout.readline()
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


@pytest.mark.parametrize("status", [0, 3])
def test_a_daemon_that_is_killed_loses_neither_run_nor_exit_status(tmp_path: Path, status: int) -> None:
    shell = f"echo >>starts; while [ ! -e go ]; do sleep 0.02; done; exit {status}"
    start_and_be_killed(tmp_path, shell)

    async def test(world: World) -> None:
        await world.start("job", shell)
        await world.started("job")
        (tmp_path / "go").touch()
        assert await world.ending("job") == (
            RunFailed("job", 1, "exit 3", exit_code=3) if status else RunFinished("job", 1)
        )
        assert (tmp_path / "starts").read_text() == "\n"

    local.within(tmp_path, test)


def test_a_run_whose_daemon_was_killed_can_be_stopped(tmp_path: Path) -> None:
    shell = "echo $$ >pid; exec sleep 1000"
    start_and_be_killed(tmp_path, shell)

    async def test(world: World) -> None:
        await world.start("job", shell)
        pid = int(await world.content("pid"))
        await world.stop("job")
        assert await world.ending("job") == RunStopped("job", 1)
        assert not local.is_alive(pid)

    local.within(tmp_path, test)


def test_of_two_shims_one_runs_the_command(tmp_path: Path) -> None:
    files(tmp_path).kept.mkdir(parents=True)
    command = ("sh", "-c", "echo >>starts; sleep 0.1")
    shims = [start_shim(files(tmp_path), 0, tmp_path, command, os.environ) for _ in range(8)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(shim.pid, 0)[1]) for shim in shims]
    assert sorted(statuses) == [0, *[NOT_CLAIMED] * 7]
    claim = read_claim(files(tmp_path).claim(0))
    assert claim is not None
    assert claim.process == shims[statuses.index(0)]
    assert (tmp_path / "starts").read_text() == "\n"
    assert files(tmp_path).exit(0).read_text() == "0\n"


def test_what_is_missing_of_a_gang_is_started(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        shell = "cd '{}'\necho $$ $MASTER_PORT >>of-$REFOLD_INSTANCE; while [ ! -e go ]; do sleep 0.02; done"
        files(tmp_path).note_start(StartNote(new_mark(tmp_path / "logs"), 4242))
        variables = {**os.environ, "REFOLD_INSTANCE": "1", "MASTER_PORT": "4242"}
        first = start_shim(files(tmp_path), 1, tmp_path, ("sh", "-c", shell.format(tmp_path)), variables)
        await world.start_words("job", ("sh", "-c", shell.format(tmp_path)), instances=3)
        lines = [(await world.content(f"of-{instance}")).split() for instance in range(3)]
        assert [port for _, port in lines] == ["4242"] * 3
        assert local.is_alive(first.pid)
        (tmp_path / "go").touch()
        await world.ending("job")
        assert world.reports == [RunStarted("job", 1), RunFinished("job", 1)]

    local.within(tmp_path, test)


def test_a_run_whose_shim_was_killed_is_lost_and_nothing_of_it_goes_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        shell = "echo $PPID $$ >pids; exec sleep 1000"
        await world.start("job", shell)
        shim, pid = map(int, (await world.content("pids")).split())
        await world.another_backend()
        os.kill(shim, signal.SIGKILL)
        await world.start("job", shell)
        assert await world.ending("job") == RunFailed("job", 1, LOST)
        assert not local.is_alive(pid)

    local.within(tmp_path, test)


def claim_line(pid: int, started: int, boot: str) -> str:
    return f"{pid} (sh) S 1 {pid} {pid}{' 0' * 15} {started} {boot}\n"


def test_those_who_ask_at_the_same_time_are_told_of_the_same_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(100))
    monkeypatch.setattr(process, "everybody", lambda _: [ProcessInfo(next(looks), 0, 0, 0, True)])

    async def ask() -> list[int]:
        census = Census()
        asked = [asyncio.create_task(census.everybody()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = asyncio.create_task(census.everybody())
        return [(await one)[0].pid for one in (*asked, later)]

    assert asyncio.run(ask()) == [0, 0, 0, 1]


def test_as_long_as_not_everybody_can_be_seen_nobody_is_taken_to_be_gone() -> None:
    async def ask() -> bool:
        with no_more_files():
            asked = asyncio.create_task(Census().everybody())
            await asyncio.sleep(0.05)
            assert not asked.done()
        return os.getpid() in {each.pid for each in await asked}

    assert asyncio.run(ask())


@pytest.mark.skipif(not process.has_proc(), reason="needs /proc")
@pytest.mark.parametrize(
    ("later", "boot", "why"),
    [(1, process.boot_id(), LOST), (0, "another-boot", "it was lost: the machine was restarted")],
    ids=["a later process", "another start of the machine"],
)
def test_a_process_that_has_the_number_of_one_of_ours_is_left_alone(
    tmp_path: Path, neighbour: int, later: int, boot: str, why: str
) -> None:
    async def test(world: World) -> None:
        started = process.process_of(neighbour).started
        assert started is not None
        files(tmp_path).kept.mkdir(parents=True)
        files(tmp_path).claim(0).write_text(claim_line(neighbour, started + later, boot))
        await world.start("job", "exec sleep 1000")
        assert await world.ending("job") == RunFailed("job", 1, why, retry=boot == "another-boot")
        await world.backend.keep_only([])
        assert local.is_alive(neighbour)

    local.within(tmp_path, test)


@pytest.mark.parametrize("claim", ["", "4711", "nonsense\n", "1 (sh) S 1\n", "\0\n"])
def test_a_claim_that_nobody_can_read_is_no_reason_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    monkeypatch.setattr(instance, "WRITING", 0.1)

    async def test(world: World) -> None:
        files(tmp_path).kept.mkdir(parents=True)
        files(tmp_path).claim(0).write_text(claim)
        await world.start("job", "echo >here")
        ending = await world.ending("job")
        assert isinstance(ending, RunFailed)
        assert "says by whom it was started" in ending.why
        assert ending.retry == (claim == "")  # nothing in it: there was no room on the disk
        assert not (tmp_path / "here").exists()

    local.within(tmp_path, test)


def test_an_exit_status_counts_when_it_is_written_whole(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        shell = "echo >up"
        await world.start("job", shell)
        await world.ending("job")
        await world.another_backend()
        files(tmp_path).end.unlink()
        files(tmp_path).exit(0).write_text("0")
        await world.start("job", shell)
        assert await world.ending("job") == RunFailed("job", 1, LOST)

    local.within(tmp_path, test)


def test_a_signal_that_comes_before_the_command_is_not_lost(tmp_path: Path) -> None:
    """The end was decided when the shim had not come to start its command."""
    files(tmp_path).kept.mkdir(parents=True)
    files(tmp_path).decide(RunStopped("job", 1))
    shim = start_shim(files(tmp_path), 0, tmp_path, ("touch", "here"), os.environ)
    os.waitpid(shim.pid, 0)
    assert files(tmp_path).exit(0).read_text() == "143\n"
    assert not (tmp_path / "here").exists()


def test_who_runs_elsewhere_is_not_ours_to_end(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.start("job", "echo $$ >pid; exec sleep 1000")
        pid = int(await world.content("pid"))
        other = LocalBackend(lambda _: None, tmp_path / "elsewhere")
        await other.keep_only([])
        assert local.is_alive(pid)

    local.within(tmp_path, test)


def test_a_tree_does_not_take_the_session_of_another_for_its_own(neighbour: int) -> None:
    started = process.process_of(neighbour).started
    assert started is not None
    tree = ProcessTree("no-such-mark", Census())
    tree.add_leader(process.Process(neighbour, started - 1))
    assert tree.groups_among(process.everybody(MARK)) == set()
    tree.add_leader(process.Process(neighbour, started))
    assert tree.groups_among(process.everybody(MARK)) == {neighbour}


def test_where_processes_cannot_be_watched_they_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(process, "POLL_EVERY", 0.02)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    local.test_a_run_starts_and_finishes(tmp_path / "a")
    local.test_a_run_is_taken_up_by_another_back_end(tmp_path / "b")
    local.test_a_run_that_was_taken_up_stops(tmp_path / "c")
