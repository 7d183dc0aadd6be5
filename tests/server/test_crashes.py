"""A daemon that is killed at any moment, and started again, has forgotten nothing and does nothing twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from crash_points import POINTS
from crashing import survived
from real_daemon import RealDaemon, runs_alive, until


@pytest.mark.parametrize(("seed", "point"), list(enumerate(POINTS)), ids=list(POINTS))
def test_nothing_is_lost_and_nothing_runs_twice_when_the_daemon_is_killed(
    seed: int, point: str, tmp_path: Path
) -> None:
    survived(tmp_path, seed, point)


def test_a_daemon_that_ends_leaves_its_runs_to_the_next_one(tmp_path: Path) -> None:
    first = RealDaemon(tmp_path / "state")
    job = first.client().submit(name="long", command=["sh", "-c", "echo begun; sleep 0.7; echo ended"])
    assert first.end() == 0
    assert runs_alive(tmp_path / "state")
    with RealDaemon(tmp_path / "state") as second:
        ended = second.client().wait(job.id, timeout=20)
        assert (ended.state, ended.runs) == ("finished", 1)
        assert "".join(second.client().logs(job.id)) == "begun\nended\n"


@pytest.mark.parametrize("epochs", [False, True], ids=["replayed", "begun anew"])
def test_a_job_that_comes_after_one_that_ended_as_the_daemon_died_starts(epochs: bool, tmp_path: Path) -> None:
    arguments = {"nth": 1, "witness": str(tmp_path / "witness"), "epochs": epochs}
    state = tmp_path / "state"
    first = RealDaemon(
        state, prepare="crash_points:arm", arguments=arguments | {"point": "after a commit that ends a job"}
    )
    before = first.client().submit(name="before", command=["sleep", "0.3"])
    after = first.client().submit(name="after", command=["true"], after=[before.id])
    assert first.wait() == -signal.SIGKILL
    with RealDaemon(state, prepare="crash_points:arm", arguments=arguments | {"point": ""}) as second:
        assert second.client().wait(after.id, timeout=20).state == "finished"


def test_a_run_that_the_journal_does_not_know_is_ended(tmp_path: Path) -> None:
    """As after a restore of an older copy of the file."""
    state = tmp_path / "state"
    first = RealDaemon(state)
    first.end()
    older = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    first = RealDaemon(state)
    first.client().submit(name="long", command=["sleep", "60"])
    until(lambda: len(runs_alive(state)) > 0)
    first.kill()
    for path in state.iterdir():
        if path.is_file():
            path.unlink()
    for name, content in older.items():
        (state / name).write_bytes(content)
    with RealDaemon(state) as second:
        until(lambda: not runs_alive(state))
        assert second.client().jobs().total == 0
