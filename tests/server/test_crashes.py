"""A daemon that is killed at any point and restarted loses nothing and does nothing twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from crash_points import POINTS, START_POINTS
from crash_setups import survive_crashes
from real_daemon import RealDaemon, live_processes, wait_until

STEADY_POINTS = [point for point in POINTS if point not in START_POINTS]
PAIRS = [points[at : at + 2] for points in (STEADY_POINTS, sorted(START_POINTS)) for at in range(0, len(points), 2)]
"""Every point once: two in each setup, one after the other, which is faster than a setup for each."""

CASES = [
    pytest.param(seed, pair, id=", then ".join(pair), marks=pytest.mark.long if seed % 2 else ())
    for seed, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("seed", "points"), CASES)
def test_a_killed_daemon_loses_nothing_and_runs_nothing_twice(seed: int, points: list[str], tmp_path: Path) -> None:
    reached = survive_crashes(tmp_path, seed, points)
    assert not START_POINTS.intersection(points).difference(reached)


def test_runs_continue_when_the_daemon_ends_and_the_next_one_adopts_them(tmp_path: Path) -> None:
    first = RealDaemon(tmp_path / "state")
    job = first.client().submit(name="long", command=["sh", "-c", "echo begun; sleep 0.7; echo ended"])
    assert first.end() == 0
    assert live_processes(tmp_path / "state")
    with RealDaemon(tmp_path / "state") as second:
        ended = second.client().wait(job.id, timeout=20)
        assert (ended.state, ended.runs) == ("finished", 1)
        assert "".join(second.client().logs(job.id)) == "begun\nended\n"


@pytest.mark.parametrize("new_epochs", [False, True], ids=["replayed", "new epoch"])
def test_a_job_starts_whose_dependency_finished_just_before_the_crash(new_epochs: bool, tmp_path: Path) -> None:
    arguments = {"nth": 1, "states_file": str(tmp_path / "witness"), "new_epochs": new_epochs}
    state = tmp_path / "state"
    first = RealDaemon(
        state, prepare="crash_points:arm", arguments=arguments | {"point": "after a commit that ends a job"}
    )
    before = first.client().submit(name="before", command=["sleep", "0.3"])
    after = first.client().submit(name="after", command=["true"], after=[before.id])
    assert first.wait() == -signal.SIGKILL
    with RealDaemon(state, prepare="crash_points:arm", arguments=arguments | {"point": ""}) as second:
        assert second.client().wait(after.id, timeout=20).state == "finished"


def test_a_run_that_is_not_in_the_journal_is_killed(tmp_path: Path) -> None:
    """As after restoring an older copy of the database."""
    state = tmp_path / "state"
    first = RealDaemon(state)
    first.end()
    older = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    first = RealDaemon(state)
    first.client().submit(name="long", command=["sleep", "60"])
    wait_until(lambda: len(live_processes(state)) > 0)
    first.kill()
    for path in state.iterdir():
        if path.is_file():
            path.unlink()
    for name, content in older.items():
        (state / name).write_bytes(content)
    with RealDaemon(state) as second:
        wait_until(lambda: not live_processes(state))
        assert second.client().jobs().total == 0
