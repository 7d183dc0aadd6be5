"""Disks that are full, files that are damaged, not ours, or used by somebody else: said clearly, and lived through."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import breaking
import pytest
from real_daemon import RealDaemon, runs_alive, until

from refold.errors import Unavailable
from refold.server.store import schema
from refold.server.store.store import NAME


def submitted(daemon: RealDaemon, count: int, seconds: float = 0.0) -> list[str]:
    """So many jobs, the ids of which were acknowledged."""
    client = daemon.client()
    return [client.submit(name=f"job{number}", command=["sleep", str(seconds)]).id for number in range(count)]


def everybody(daemon: RealDaemon) -> set[str]:
    client = daemon.client()
    return {job.id for job in (*client.queue(), *client.history())}


def test_a_full_disk_is_told_and_when_there_is_room_again_everything_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "breaking:fill_the_disk_on_usr1", "arguments": {"bytes_left": 4096}}
    with RealDaemon(state, slots=1, **full) as daemon:
        client = daemon.client()
        (first,) = submitted(daemon, 1)
        client.wait(first, timeout=20)
        os.kill(daemon.pid, signal.SIGUSR1)
        until(lambda: _is_refused(daemon), what="the disk is full, and jobs are accepted")
        assert "cannot be written" in client.about().storage
        assert first in {job.id for job in client.history()}, "reading goes on"
        os.kill(daemon.pid, signal.SIGUSR2)
        until(lambda: not client.about().storage)
        (last,) = submitted(daemon, 1)
        assert client.wait(last, timeout=20).state == "finished"
        assert "trying again" in daemon.log()
        assert "can be written again" in daemon.log()


def _is_refused(daemon: RealDaemon) -> bool:
    try:
        submitted(daemon, 1)
    except Unavailable as error:
        assert "cannot be written" in str(error)
        return True
    return False


def test_a_job_that_was_asked_for_while_the_disk_was_full_is_there_once_if_at_all(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "breaking:fill_the_disk_on_usr1", "arguments": {"bytes_left": 4096}}
    with RealDaemon(state, slots=1, **full) as daemon:
        client = daemon.client()
        os.kill(daemon.pid, signal.SIGUSR1)
        for _ in range(3):
            with pytest.raises(Unavailable):
                client.submit(name="once", command=["true"], request="the same")
        os.kill(daemon.pid, signal.SIGUSR2)
        until(lambda: not client.about().storage)
        job = client.submit(name="once", command=["true"], request="the same")
        client.wait(job.id, timeout=20)
        assert [one.id for one in client.history()] == [job.id]


def test_a_disk_that_is_full_when_the_daemon_dies_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "breaking:fill_the_disk_on_usr1", "arguments": {"bytes_left": 4096}}
    first = RealDaemon(state, slots=1, **full)
    acknowledged = submitted(first, 3, seconds=0.2)
    os.kill(first.pid, signal.SIGUSR1)
    until(lambda: _is_refused(first))
    first.kill()
    with RealDaemon(state, slots=1) as second:
        client = second.client()
        assert [client.wait(job, timeout=20).state for job in acknowledged] == ["finished"] * 3


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter: who is root here becomes somebody else, since to root nothing is read-only."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_folder_that_cannot_be_written_to_is_an_error_in_one_line(open_folder: Path) -> None:
    state = open_folder / "state"
    state.mkdir(mode=0o500)
    told = RealDaemon(state, prepare="breaking:be_nobody").told
    assert told.error == f"{state}: cannot be used for the daemon's state: Permission denied"


def test_a_file_that_cannot_be_written_to_is_an_error_in_one_line(open_folder: Path) -> None:
    state = open_folder / "state"
    RealDaemon(state).end()
    if os.getuid() == 0:
        os.chown(state, breaking.NOBODY, breaking.NOBODY)
    for path in state.iterdir():
        path.chmod(0o444)
    told = RealDaemon(state, prepare="breaking:be_nobody").told
    assert told.error == f"{state}: cannot be used for the daemon's state: Permission denied"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_folder_that_is_open_to_others_is_refused_and_nothing_is_left_in_it(mode: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    told = RealDaemon(state).told
    assert told.error == (
        f"{state}: is open to others (mode {mode:o}), and tokens and output are kept in it: `chmod 700` it, or name"
        " another folder with --state"
    )
    assert (list(state.iterdir()), state.stat().st_mode & 0o777) == ([], mode)


@pytest.mark.parametrize("seed", range(6))
def test_a_journal_whose_tail_is_garbled_starts_with_a_part_of_what_was_acknowledged(seed: int, tmp_path: Path) -> None:
    """As after a power cut on a disk that lies. What was acknowledged last may be gone: then its runs are ended."""
    state = tmp_path / "state"
    first = RealDaemon(state, slots=2)
    acknowledged = submitted(first, 12, seconds=30.0)
    until(lambda: len(runs_alive(state)) >= 2)
    first.kill()
    _garble(state / f"{NAME}-wal", Random(seed))
    with RealDaemon(state, slots=2) as second:
        assert second.told.address, second.told
        kept = everybody(second)
        assert kept == set(acknowledged[: len(kept)])
        client = second.client()
        for job in kept:
            client.cancel(job)
        until(lambda: client.jobs().total == 0 and not runs_alive(state), what="runs are left")


def _garble(path: Path, chance: Random) -> None:
    """Cut the end off, or change some bytes of it."""
    content = bytearray(path.read_bytes())
    assert len(content) > 10_000
    if chance.random() < 0.5:
        del content[chance.randrange(4096, len(content)) :]
    else:
        for _ in range(20):
            content[chance.randrange(len(content) // 2, len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def _overwrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content)):
        content[place] = place * 7 % 256
    path.write_bytes(content)


def _no_database(path: Path) -> None:
    path.write_bytes(b"this is a letter\n" * 1000)


def _somebody_elses(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def _of_version(version: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version={version}")

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_overwrite, "is damaged"),
        (_no_database, "file is not a database"),
        (_somebody_elses, "is a database of something else; name another folder with --state"),
        (_of_version(schema.VERSION + 1), f"has tables of version {schema.VERSION + 1}, expected {schema.VERSION}"),
        (_of_version(-1), f"has tables of version -1, expected {schema.VERSION}"),
    ],
    ids=["overwritten", "no database", "somebody else's", "newer", "older"],
)
def test_a_file_that_is_not_as_we_left_it_is_an_error_in_one_line(
    damage: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    first = RealDaemon(state)
    submitted(first, 3)
    assert first.end() == 0
    for path in state.glob(f"{NAME}-*"):
        path.unlink()
    damage(state / NAME)
    second = RealDaemon(state)
    assert second.ended in (None, 1), second.log()
    assert second.wait() == 1
    assert said in second.told.error
    assert "\n" not in second.told.error
    assert "Traceback" not in second.log()


def test_a_second_daemon_over_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with RealDaemon(state) as first:
        other = RealDaemon(state)
        assert other.told.error == (
            f"{state}: another daemon uses it already; stop that one, or name another folder with --state"
        )
        assert submitted(first, 1) == ["job0-1"]
