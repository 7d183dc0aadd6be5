"""Damage to the store is noticed; backups, migrations and full disks; a folder removed under a running daemon."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from real_daemon import RealDaemon, wait_until

from refold.cli import app
from refold.errors import BadFile, Unavailable
from refold.server.store import FILE_NAME, Store, backup_name, copy_database, list_backups, schema
from refold.server.store.checksums import checked_tables, row_checksum

Refold = Callable[..., tuple[int, str]]

FIXTURES = Path(__file__).with_name("stores")


def daemon_with_jobs(state: Path, count: int = 3) -> None:
    """Run a daemon, and some jobs, to the end."""
    with RealDaemon(state, slots=1) as daemon, daemon.client() as client:
        for number in range(count):
            job = client.submit(name=f"job{number}", command=["true"], export="NONE")
            client.wait(job.id, timeout=20)


@pytest.fixture
def refold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refold:
    """Run a command; return its exit status and what it printed."""

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["refold", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, (printed.out + printed.err).strip()

    return run


def contents(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.iterdump())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store with a few jobs, closed cleanly."""
    folder = tmp_path_factory.mktemp("undamaged")
    daemon_with_jobs(folder / "state")
    copy_database(folder / "state" / FILE_NAME, folder / FILE_NAME)
    return folder / FILE_NAME


def folder_with(tmp_path: Path, content: bytes) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    (state / FILE_NAME).write_bytes(content)
    return state


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_byte_is_noticed_or_has_no_effect(seed: int, database: Path, tmp_path: Path) -> None:
    rng = Random(seed)
    content = bytearray(database.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    state = folder_with(tmp_path, bytes(content))
    try:
        Store(state).close()
    except BadFile as error:
        assert "\n" not in str(error)
        return
    assert contents(state / FILE_NAME) == contents(database)


def test_a_changed_value_names_the_row_and_the_command_that_restores_a_backup(
    database: Path, tmp_path: Path, refold: Refold
) -> None:
    content = database.read_bytes()
    assert content.count(b'\'["owner"') == 0
    place = content.index(b'"command":["true"]')
    state = folder_with(tmp_path, content.replace(b'"command":["true"]', b'"command":["tree"]', 1))
    assert place
    with pytest.raises(BadFile, match=r"is damaged: row \d+ of table \w+ .* there is no backup; move the file away"):
        Store(state)
    target = state / "backups" / backup_name(datetime(2026, 1, 2, tzinfo=UTC))
    copy_database(database, target)
    with pytest.raises(BadFile, match=rf"run `refold restore {target} --state {state}`"):
        Store(state)
    status, output = refold("restore", target, "--state", state, "--json")
    assert status == 0
    assert contents(state / FILE_NAME) == contents(database)
    kept = json.loads(output)["kept"]
    assert b'"command":["tree"]' in Path(kept).read_bytes()
    Store(state).close()


def test_every_table_has_checksums(tmp_path: Path) -> None:
    state = tmp_path / "state"
    Store(state).close()
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        assert {table for table, _ in checked_tables(connection)} == tables


def test_a_checksum_depends_on_every_value_and_on_where_one_ends() -> None:
    rows = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "c"), ("a", b"b", 1), ("a", "b", None), ("a", "b", 1.5), ()]
    assert len({row_checksum(*row) for row in rows}) == len(rows)
    assert row_checksum(3) == row_checksum(3.0), "a REAL column converts integers"


@pytest.mark.parametrize("environments", [True, False], ids=["with environments", "without environments"])
def test_a_store_of_version_4_is_migrated(environments: bool, tmp_path: Path) -> None:
    state = folder_with(tmp_path, b"")
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        connection.executescript((FIXTURES / "version-4.sql").read_text())
        if not environments:
            connection.execute("DROP TABLE environments")
        connection.execute("DELETE FROM tokens")  # so that a new one is made, which this test can know
        connection.commit()
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
    with RealDaemon(state, slots=1) as daemon, daemon.client() as client:
        assert [job.id for job in client.history()] == ["broken-2", "done-1"]
        assert client.jobs().total == 2
        client.cancel("running-3")
        assert client.wait("waiting-4", timeout=20).state == "finished"
    with closing(sqlite3.connect(state / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    with closing(sqlite3.connect(state / "backups" / "version-4.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,), "a copy of the file as it was is kept"


def test_a_backup_is_made_while_the_daemon_runs_and_can_be_restored(tmp_path: Path, refold: Refold) -> None:
    state, file = tmp_path / "state", tmp_path / "copy.db"
    with RealDaemon(state, slots=1) as daemon, daemon.client() as client:
        first = client.submit(name="first", command=["true"], export="NONE").id
        client.wait(first, timeout=20)
        status, output = refold("backup", "--to", file, "--state", state)
        assert (status, output.splitlines()) == (
            0,
            [
                f"backup: {file}",
                "It contains secrets of jobs and hashes of tokens: keep it as safe as the state folder.",
            ],
        )
        second = client.submit(name="second", command=["true"], export="NONE").id
        client.wait(second, timeout=20)
        status, message = refold("restore", file, "--state", state)
        assert (status, "is in use by another daemon" in message) == (2, True)
    assert refold("restore", file, "--state", state)[0] == 0
    with RealDaemon(state, slots=1) as daemon, daemon.client() as client:
        assert [job.id for job in client.history()] == [first]


def test_backups_and_what_is_restored_can_be_read_by_their_owner_only(tmp_path: Path, refold: Refold) -> None:
    state, file = tmp_path / "state", tmp_path / "new" / "copy.db"
    Store(state).close()
    before = os.umask(0)
    try:
        assert refold("backup", "--to", file, "--state", state)[0] == 0
        assert refold("backup", "--state", state)[0] == 0
        status, output = refold("restore", file, "--state", state, "--json")
    finally:
        os.umask(before)
    assert status == 0
    files = [file, *list_backups(state), state / FILE_NAME, Path(json.loads(output)["kept"])]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 4
    assert [path.parent.stat().st_mode & 0o777 for path in files[:2]] == [0o700] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["backup", "--state", "{tmp}/none"], "has no store; choose another folder with --state"),
        (["restore", "--state", "{tmp}/state"], "has no backups; name a file"),
        (["restore", "{tmp}/text.db", "--state", "{tmp}/none"], "is not a folder; choose another one with --state"),
        (["restore", "{tmp}/none.db", "--state", "{tmp}/state"], "is not a file"),
        (["restore", "{tmp}/text.db", "--state", "{tmp}/state"], "cannot be copied: file is not a database"),
        (["backup", "--state", "{tmp}/state", "--to", "{tmp}/text.db"], "already exists"),
    ],
)
def test_what_cannot_be_backed_up_or_restored_is_a_one_line_error(
    arguments: list[str], message: str, tmp_path: Path, refold: Refold
) -> None:
    Store(tmp_path / "state").close()
    (tmp_path / "text.db").write_text("no database\n" * 100)
    status, output = refold(*(word.format(tmp=tmp_path) for word in arguments))
    assert (status, len(output.splitlines())) == (2, 1)
    assert message in output
    Store(tmp_path / "state").close()


def test_a_damaged_store_is_not_backed_up(database: Path, tmp_path: Path) -> None:
    damaged = database.read_bytes().replace(b'"command":["true"]', b'"command":["tree"]', 1)
    state = folder_with(tmp_path, damaged)
    with pytest.raises(BadFile, match="is damaged"):
        copy_database(state / FILE_NAME, state / "backups" / "refold-1.db")
    assert list_backups(state) == []
    assert list((state / "backups").iterdir()) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_after_the_state_folder_was_removed(replaced: bool, tmp_path: Path) -> None:
    state, moved = tmp_path / "state", tmp_path / "moved"
    quick = {"prepare": "fault_injection:fill_disk_on_usr1", "arguments": {"max_file_bytes": 4096}}
    with RealDaemon(state, slots=1, **quick) as daemon, daemon.client() as client:
        first = client.submit(name="first", command=["true"], export="NONE").id
        client.wait(first, timeout=20)
        state.rename(moved)
        if replaced:
            shutil.copytree(moved, state, ignore=shutil.ignore_patterns("*.sock", "daemon.sock", "socket"))
        for _ in range(2):
            with pytest.raises(Unavailable, match="removed or replaced"):
                client.submit(name="lost", command=["true"], export="NONE")
        second = RealDaemon(state, slots=1)
        assert "is in use by another daemon" in second.startup.error
        shutil.rmtree(state, ignore_errors=True)
        moved.rename(state)
        wait_until(lambda: not client.info().storage, what="the folder is back")
        last = client.submit(name="last", command=["true"], export="NONE").id
        assert client.wait(last, timeout=20).state == "finished"
        assert first in {job.id for job in client.history()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a file system of 4 MiB."""
    folder = tmp_path / "state"
    folder.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a file system to the last byte."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as output:
        for size in (2**16, 2**10, 1):
            try:
                while output.write(b"x" * size) == size:
                    pass
            except OSError:
                pass
    return file


@pytest.mark.parametrize("jobs", [0, 3], ids=["new store", "existing store"])
def test_starting_on_a_full_disk_is_a_one_line_error(jobs: int, small_disk: Path) -> None:
    if jobs:
        daemon_with_jobs(small_disk, jobs)
    filler = fill(small_disk)
    first = RealDaemon(small_disk, slots=1)
    error = first.startup.error
    if jobs and not error:  # there may be enough space within the files of an existing store
        assert first.client().info().policy
        first.kill()
    else:
        assert "no space left" in error.lower() or "disk is full" in error
        assert str(small_disk) in error
        assert "\n" not in error
    assert "Traceback" not in first.log()
    filler.unlink()
    with RealDaemon(small_disk, slots=1) as daemon, daemon.client() as client:
        assert len(list(client.history())) == jobs


def test_the_exit_status_of_a_job_is_known_although_the_disk_was_full_when_it_ended(small_disk: Path) -> None:
    state = small_disk
    first = RealDaemon(state, slots=1)
    go = small_disk.parent / "go"
    with first.client() as client:
        command = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3"]
        job = client.submit(name="job", command=command, export="NONE").id
        wait_until(lambda: [file for file in state.rglob("*.exit") if file.stat().st_size], what="the job runs")
    first.kill()
    (exit_file,) = state.rglob("*.exit")
    filler = fill(small_disk)
    go.touch()
    wait_until(lambda: exit_file.read_text().strip() == "3", what="the exit status is recorded")
    filler.unlink()
    with RealDaemon(state, slots=1) as second, second.client() as client:
        ended = client.wait(job, timeout=20)
        assert (ended.state, ended.exit_code) == ("failed", 3)
