"""Somebody sets the clock: the journal's time goes on as if nothing had been, and no time limit is hit by it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from real_daemon import RealDaemon, until

from refold.core import Entry
from refold.server import clock
from refold.server.clock import Anchor
from refold.server.store.store import NAME

YEARS = 10 * 365 * 86_400.0


def moments(state: Path) -> list[float]:
    """The time of every entry of the journal."""
    with sqlite3.connect(f"file:{state / NAME}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT entry FROM journal ORDER BY number").fetchall()
    return [msgspec.json.decode(entry, type=Entry).now for (entry,) in rows]


class FalseClock:
    """How far off everybody's clock is; a daemon that follows it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "offset"
        self.set(0.0)

    def set(self, offset: float) -> None:
        beside = self._path.with_name("offset.new")
        beside.write_text(str(offset))
        beside.replace(self._path)

    def daemon(self, state: Path, boot: str = "") -> RealDaemon:
        arguments: dict[str, Any] = {"offset": str(self._path), "boot": boot}
        return RealDaemon(state, slots=1, policy="easy", prepare="breaking:follow_a_false_clock", arguments=arguments)


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["forward", "back"])
def test_a_clock_that_jumps_while_a_job_runs_does_not_end_it(jump: float, tmp_path: Path) -> None:
    wrong, state = FalseClock(tmp_path), tmp_path / "state"
    with wrong.daemon(state) as daemon:
        client = daemon.client()
        job = client.submit(name="limited", command=["sleep", "0.5"], time_limit=3600.0)
        until(lambda: client.job(job.id).started is not None)
        wrong.set(jump)
        second = client.submit(name="second", command=["true"], time_limit=3600.0)
        assert client.wait(job.id, timeout=20).state == "finished"
        assert client.wait(second.id, timeout=20).state == "finished"
        assert abs(client.job(second.id).submitted - (time.time() + jump)) < 60, "people are told by their clock"
    assert moments(state) == sorted(moments(state))
    assert moments(state)[-1] < 60


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["forward", "back"])
@pytest.mark.parametrize("boot", ["", "another"], ids=["same boot", "another boot"])
def test_a_clock_that_jumps_between_two_daemons_does_not_turn_the_journal_back(
    jump: float, boot: str, tmp_path: Path
) -> None:
    wrong, state = FalseClock(tmp_path), tmp_path / "state"
    first = wrong.daemon(state)
    running = first.client().submit(name="running", command=["sleep", "0.6"], time_limit=3600.0)
    waiting = first.client().submit(name="waiting", command=["true"], time_limit=3600.0)
    first.kill()
    wrong.set(jump)
    with wrong.daemon(state, boot) as second:
        client = second.client()
        assert client.wait(running.id, timeout=20).state == "finished"
        assert client.wait(waiting.id, timeout=20).state == "finished"
    found = moments(state)
    assert found == sorted(found)
    if not boot:
        assert found[-1] < 60, "while the machine stays on, its clock may say what it likes"


@given(
    age=st.floats(0, 1e6),
    at_least=st.floats(0, 1e6),
    boot_jump=st.floats(-1e9, 1e9),
    wall_jump=st.floats(-1e9, 1e9),
    same_boot=st.booleans(),
)
def test_a_journal_never_becomes_younger(
    age: float, at_least: float, boot_jump: float, wall_jump: float, same_boot: bool
) -> None:
    anchor = Anchor.of(age)
    there = Anchor(anchor.boot if same_boot else "another", anchor.boot_zero + boot_jump, anchor.wall_zero + wall_jump)
    assert there.now(at_least) >= at_least


def test_while_the_machine_stays_on_only_its_own_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_boot", lambda: "one")
    monkeypatch.setattr(clock, "_since_boot", lambda: 1_000.0)
    monkeypatch.setattr(time, "time", lambda: 5_000.0)
    anchor = Anchor.of(100.0)
    monkeypatch.setattr(clock, "_since_boot", lambda: 1_007.0)
    monkeypatch.setattr(time, "time", lambda: 5_000.0 + YEARS)
    assert anchor.now(at_least=0.0) == 107.0
    monkeypatch.setattr(clock, "_boot", lambda: "two")
    assert anchor.now(at_least=0.0) == 100.0 + YEARS
    monkeypatch.setattr(time, "time", lambda: 5_000.0 - YEARS)
    assert anchor.now(at_least=104.0) == 104.0
