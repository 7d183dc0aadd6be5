"""Changes of the system clock neither turn back the journal's time nor trigger time limits."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from real_daemon import RealDaemon, kill_runs, wait_until
from served_daemon import ServedDaemon

from refold.client import Client
from refold.core import Entry
from refold.server import clock
from refold.server.clock import Anchor
from refold.server.store import FILE_NAME

LIBFAKETIME = next(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"), None)
HOUR = 3600.0
TEN_YEARS = 10 * 365 * 86_400.0


def entry_times(state: Path) -> list[float]:
    """Return the time of every journal entry."""
    with sqlite3.connect(f"file:{state / FILE_NAME}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT entry FROM journal ORDER BY number").fetchall()
    return [msgspec.json.decode(entry, type=Entry).now for (entry,) in rows]


class FalseClock:
    """An offset of the system clock, and daemons that use it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "offset"
        self.set(0.0)

    def set(self, offset: float) -> None:
        beside = self._path.with_name("offset.new")
        beside.write_text(str(offset))
        beside.replace(self._path)

    def daemon(self, state: Path, boot: str = "") -> RealDaemon:
        arguments: dict[str, Any] = {"offset": str(self._path), "boot_id": boot}
        return RealDaemon(state, slots=1, policy="easy", prepare="fault_injection:use_false_clock", arguments=arguments)


@pytest.mark.parametrize("jump", [TEN_YEARS, -TEN_YEARS], ids=["forward", "back"])
def test_a_clock_jump_does_not_end_a_running_job(jump: float, tmp_path: Path) -> None:
    clock_offset, state = FalseClock(tmp_path), tmp_path / "state"
    with clock_offset.daemon(state) as daemon:
        client = daemon.client()
        job = client.submit(name="limited", command=["sleep", "0.5"], time_limit=3600.0)
        wait_until(lambda: client.job(job.id).started is not None)
        clock_offset.set(jump)
        second = client.submit(name="second", command=["true"], time_limit=3600.0)
        assert client.wait(job.id, timeout=20).state == "finished"
        assert client.wait(second.id, timeout=20).state == "finished"
        assert abs(client.job(second.id).submitted - (time.time() + jump)) < 60, (
            "times in the API follow the system clock"
        )
    assert entry_times(state) == sorted(entry_times(state))
    assert entry_times(state)[-1] < 60


@pytest.mark.parametrize("jump", [TEN_YEARS, -TEN_YEARS], ids=["forward", "back"])
@pytest.mark.parametrize("boot", ["", "another"], ids=["same boot", "another boot"])
def test_a_clock_jump_between_daemons_does_not_turn_journal_time_back(jump: float, boot: str, tmp_path: Path) -> None:
    clock_offset, state = FalseClock(tmp_path), tmp_path / "state"
    first = clock_offset.daemon(state)
    running = first.client().submit(name="running", command=["sleep", "0.6"], time_limit=3600.0)
    waiting = first.client().submit(name="waiting", command=["true"], time_limit=3600.0)
    first.kill()
    clock_offset.set(jump)
    with clock_offset.daemon(state, boot) as second:
        client = second.client()
        assert client.wait(running.id, timeout=20).state == "finished"
        assert client.wait(waiting.id, timeout=20).state == "finished"
    found = entry_times(state)
    assert found == sorted(found)
    if not boot:
        assert found[-1] < 60, "within one boot the system clock has no influence"


@given(
    age=st.floats(0, 1e6),
    at_least=st.floats(0, 1e6),
    boot_jump=st.floats(-1e9, 1e9),
    wall_jump=st.floats(-1e9, 1e9),
    same_boot=st.booleans(),
)
def test_the_age_of_a_journal_never_decreases(
    age: float, at_least: float, boot_jump: float, wall_jump: float, same_boot: bool
) -> None:
    anchor = Anchor.at(age)
    later = Anchor(
        anchor.boot_id if same_boot else "another", anchor.boot_zero + boot_jump, anchor.wall_zero + wall_jump
    )
    assert later.now(at_least) >= at_least


def test_within_one_boot_only_the_boot_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_read_boot_id", lambda: "one")
    monkeypatch.setattr(clock, "_seconds_since_boot", lambda: 1_000.0)
    monkeypatch.setattr(time, "time", lambda: 5_000.0)
    anchor = Anchor.at(100.0)
    monkeypatch.setattr(clock, "_seconds_since_boot", lambda: 1_007.0)
    monkeypatch.setattr(time, "time", lambda: 5_000.0 + TEN_YEARS)
    assert anchor.now(at_least=0.0) == 107.0
    monkeypatch.setattr(clock, "_read_boot_id", lambda: "two")
    assert anchor.now(at_least=0.0) == 100.0 + TEN_YEARS
    monkeypatch.setattr(time, "time", lambda: 5_000.0 - TEN_YEARS)
    assert anchor.now(at_least=104.0) == 104.0


# With libfaketime, which every call of the C library goes through: also those of SQLite, uvloop and the HTTP server.


class JumpingDaemon(ServedDaemon):
    """A daemon whose system clock is set by a file. Clocks that cannot be set, such as CLOCK_MONOTONIC, are real."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.set(0.0)
        variables = {
            "LD_PRELOAD": str(LIBFAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(folder / "state", folder / "log", ["--slots", "1"], {**os.environ, **variables})
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.launch()
        wait_until(lambda: self.is_serving or self.has_ended)
        assert self.is_serving, self.log()

    def client(self) -> Client:
        """Return a client at the Unix socket. Over HTTP, requests are signed with the time, here another one."""
        return Client(f"unix:{self.folder / 'refold.sock'}")

    def set(self, offset: float) -> None:
        """Set its clock."""
        beside = self._offset.with_name("offset.new")
        beside.write_text(f"{offset:+.0f}\n")
        beside.replace(self._offset)


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[JumpingDaemon]:
    if LIBFAKETIME is None:
        pytest.skip("needs libfaketime (Debian's package libfaketime)")
    daemon = JumpingDaemon(tmp_path)
    yield daemon
    daemon.kill()
    kill_runs(daemon.folder)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_the_system_clock_is_set_by_an_hour_while_jobs_run_and_wait(
    jump: float, jumping: JumpingDaemon, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done"]
    client = jumping.client()
    running = client.submit(name="running", command=command, time_limit=600.0)
    waiting = client.submit(name="waiting", command=["true"], time_limit=600.0)
    later = client.submit(name="later", command=["true"], begin=time.time() + HOUR / 2)
    wait_until(lambda: client.job(running.id).state == "running")
    jumping.set(jump)
    wait_until(lambda: abs(client.info().now - time.time() - jump) < HOUR / 10, what="the daemon's clock is set")
    assert client.job(running.id).state == "running"
    after = client.submit(name="after", command=["true"], time_limit=600.0)
    assert abs(after.submitted - time.time() - jump) < HOUR / 10
    assert {job.id: job.state for job in client.queue()} == {
        running.id: "running",
        waiting.id: "waiting",
        after.id: "waiting",
        later.id: "held",
    }
    jumping.kill()
    jumping.start()
    client = jumping.client()
    assert (client.job(running.id).state, client.job(waiting.id).state) == ("running", "waiting")
    go.touch()
    for job in (running, waiting, after):
        assert client.wait(job.id, timeout=60).state == "finished"
    assert client.job(running.id).runs == 1
    found = entry_times(jumping.folder)
    assert found == sorted(found)
    assert found[-1] < HOUR / 10
    assert "Traceback" not in jumping.log(), jumping.log()
