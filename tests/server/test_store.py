"""Full disks and corrupt, foreign or locked files: reported clearly and survived."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import fault_injection
import pytest
from real_daemon import RealDaemon, live_processes, wait_until

from refold.errors import Unavailable
from refold.server.store import FILE_NAME, schema


def submit_jobs(daemon: RealDaemon, count: int, seconds: float = 0.0) -> list[str]:
    """Submit jobs; return the acknowledged ids."""
    client = daemon.client()
    return [
        client.submit(name=f"job{number}", command=["sleep", str(seconds)], export="NONE").id for number in range(count)
    ]


def all_job_ids(daemon: RealDaemon) -> set[str]:
    client = daemon.client()
    return {job.id for job in (*client.queue(), *client.history())}


def test_a_full_disk_is_reported_and_the_daemon_recovers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "fault_injection:fill_disk_on_usr1", "arguments": {"max_file_bytes": 4096}}
    with RealDaemon(state, slots=1, **full) as daemon:
        client = daemon.client()
        (first,) = submit_jobs(daemon, 1)
        client.wait(first, timeout=20)
        os.kill(daemon.pid, signal.SIGUSR1)
        wait_until(lambda: _is_refused(daemon), what="jobs are rejected")
        assert "cannot be written" in client.info().storage
        assert first in {job.id for job in client.history()}, "reading must still work"
        os.kill(daemon.pid, signal.SIGUSR2)
        wait_until(lambda: not client.info().storage)
        (last,) = submit_jobs(daemon, 1)
        assert client.wait(last, timeout=20).state == "finished"
        assert "retrying every" in daemon.log()
        assert "is writable again" in daemon.log()


def _is_refused(daemon: RealDaemon) -> bool:
    try:
        submit_jobs(daemon, 1)
    except Unavailable as error:
        assert "cannot be written" in str(error)
        return True
    return False


def test_a_request_repeated_while_the_disk_is_full_creates_one_job(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "fault_injection:fill_disk_on_usr1", "arguments": {"max_file_bytes": 4096}}
    with RealDaemon(state, slots=1, **full) as daemon:
        client = daemon.client()
        os.kill(daemon.pid, signal.SIGUSR1)
        for _ in range(3):
            with pytest.raises(Unavailable):
                client.submit(name="once", command=["true"], request="once", export="NONE")
        os.kill(daemon.pid, signal.SIGUSR2)
        wait_until(lambda: not client.info().storage)
        job = client.submit(name="once", command=["true"], request="once", export="NONE")
        client.wait(job.id, timeout=20)
        assert [one.id for one in client.history()] == [job.id]


def test_acknowledged_jobs_survive_a_crash_with_a_full_disk(tmp_path: Path) -> None:
    state = tmp_path / "state"
    full = {"prepare": "fault_injection:fill_disk_on_usr1", "arguments": {"max_file_bytes": 4096}}
    first = RealDaemon(state, slots=1, **full)
    acknowledged = submit_jobs(first, 3, seconds=0.2)
    os.kill(first.pid, signal.SIGUSR1)
    wait_until(lambda: _is_refused(first))
    first.kill()
    with RealDaemon(state, slots=1) as second:
        client = second.client()
        assert [client.wait(job, timeout=20).state for job in acknowledged] == ["finished"] * 3


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can access: as root, the daemon switches user, since root can write read-only files."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_read_only_folder_is_a_one_line_error(public_folder: Path) -> None:
    state = public_folder / "state"
    state.mkdir(mode=0o500)
    startup = RealDaemon(state, prepare="fault_injection:drop_root").startup
    assert startup.error == f"{state}: cannot be used as the state folder: Permission denied"


def test_a_read_only_file_is_a_one_line_error(public_folder: Path) -> None:
    state = public_folder / "state"
    RealDaemon(state).end()
    if os.getuid() == 0:
        os.chown(state, fault_injection.UNPRIVILEGED_UID, fault_injection.UNPRIVILEGED_UID)
    for path in state.iterdir():
        path.chmod(0o444)
    startup = RealDaemon(state, prepare="fault_injection:drop_root").startup
    assert startup.error == f"{state}: cannot be used as the state folder: Permission denied"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_folder_accessible_to_others_is_rejected_and_stays_unchanged(mode: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    startup = RealDaemon(state).startup
    assert startup.error == (
        f"{state}: is accessible to other users (mode {mode:o}) but holds tokens and job output; run `chmod 700` on it,"
        " or choose another folder with --state"
    )
    assert (list(state.iterdir()), state.stat().st_mode & 0o777) == ([], mode)


@pytest.mark.parametrize("seed", range(6))
def test_a_corrupt_journal_tail_keeps_a_prefix_of_the_acknowledged_jobs(seed: int, tmp_path: Path) -> None:
    """As after a power cut on a disk that reports unwritten data as written. Runs of lost jobs are killed."""
    state = tmp_path / "state"
    first = RealDaemon(state, slots=2)
    acknowledged = submit_jobs(first, 12, seconds=30.0)
    wait_until(lambda: len(live_processes(state)) >= 2)
    first.kill()
    _corrupt_tail(state / f"{FILE_NAME}-wal", Random(seed))
    with RealDaemon(state, slots=2) as second:
        assert second.startup.address, second.startup
        recovered = all_job_ids(second)
        assert recovered == set(acknowledged[: len(recovered)])
        client = second.client()
        for job in recovered:
            client.cancel(job)
        wait_until(lambda: client.jobs().total == 0 and not live_processes(state), what="all runs have ended")


def _corrupt_tail(path: Path, rng: Random) -> None:
    """Cut off the end of a file, or change some bytes of it."""
    content = bytearray(path.read_bytes())
    assert len(content) > 10_000
    if rng.random() < 0.5:
        del content[rng.randrange(4096, len(content)) :]
    else:
        for _ in range(20):
            content[rng.randrange(len(content) // 2, len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)


def _overwrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for index in range(4096, len(content)):
        content[index] = index * 7 % 256
    path.write_bytes(content)


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"this is plain text\n" * 1000)


def _foreign_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def _set_version(version: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version={version}")

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_overwrite, "is damaged"),
        (_not_a_database, "file is not a database"),
        (_foreign_database, "is not a Refold database; choose another folder with --state"),
        (_set_version(schema.VERSION + 1), f"has schema version {schema.VERSION + 1}, expected {schema.VERSION}"),
        (_set_version(-1), f"has schema version -1, expected {schema.VERSION}"),
    ],
    ids=["overwritten", "not a database", "foreign", "newer", "older"],
)
def test_an_unusable_database_is_a_one_line_error(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = RealDaemon(state)
    submit_jobs(first, 3)
    assert first.end() == 0
    for path in state.glob(f"{FILE_NAME}-*"):
        path.unlink()
    damage(state / FILE_NAME)
    second = RealDaemon(state)
    assert second.ended in (None, 1), second.log()
    assert second.wait() == 1
    assert message in second.startup.error
    assert "\n" not in second.startup.error
    assert "Traceback" not in second.log()


def test_a_second_daemon_on_the_same_folder_is_rejected(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with RealDaemon(state) as first:
        other = RealDaemon(state)
        assert other.startup.error == (
            f"{state}: is in use by another daemon; stop it, or choose another folder with --state"
        )
        assert submit_jobs(first, 1) == ["job0-1"]
