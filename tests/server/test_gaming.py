"""Users of a daemon who try to get more than their share: with many small jobs, and with false run times."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_daemon import kill_runs, wait_until
from served_daemon import ServedDaemon

from refold.client import Client
from refold.client.api import Submission

Serve = Callable[..., ServedDaemon]

SETTINGS = "cluster: {{slots: 2}}\npolicy: {{name: {policy}, settings: {settings}}}\nwatch: {{limit_grace: 0s}}\n"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    served: list[ServedDaemon] = []

    def serve(policy: str, settings: str = "{}") -> ServedDaemon:
        config = tmp_path / "refold.yaml"
        config.write_text(SETTINGS.format(policy=policy, settings=settings))
        daemon = ServedDaemon(tmp_path / "state", tmp_path / "log", ["--config", str(config)], os.environ)
        daemon.launch()
        served.append(daemon)
        wait_until(lambda: daemon.is_serving or daemon.has_ended)
        assert daemon.is_serving, daemon.log()
        return daemon

    yield serve
    for daemon in served:
        daemon.kill()
        kill_runs(daemon.folder)


def client_of(daemon: ServedDaemon, user: str) -> Client:
    """Return a client with a token of its own."""
    address = daemon.client()
    return Client(address.address, address.create_token(user, "member", user=user).token)


def submit(client: Client, name: str, script: str, count: int = 1, **fields: object) -> list[str]:
    """Submit equal jobs and return their ids."""
    jobs = [Submission(name=name, command=["sh", "-c", script], **fields) for _ in range(count)]  # type: ignore[arg-type]
    return [job.id for job in client.submit_all(jobs)]


def started(daemon: ServedDaemon, jobs: list[str]) -> int:
    """Return how many jobs have started so far."""
    with daemon.client() as owner:
        return sum(owner.job(job).started is not None for job in jobs)


def started_before(daemon: ServedDaemon, job: str, others: list[str]) -> int:
    """Return how many other jobs start before a job does."""
    with daemon.client() as owner:
        wait_until(lambda: owner.job(job).started is not None, 120, f"{job} starts")
        begun = owner.job(job).started or 0.0
        found = [owner.job(other) for other in others]
        return sum(other.started is not None and other.started < begun for other in found)


def test_a_user_with_many_small_jobs_does_not_keep_another_waiting(serve: Serve) -> None:
    daemon = serve("refold", "{fair_share: 1, fair_share_half_life: 30}")
    ann, ben = client_of(daemon, "ann"), client_of(daemon, "ben")
    small = submit(ann, "small", "sleep 0.3", 200)
    wait_until(lambda: started(daemon, small) >= 8, 120)
    before = started(daemon, small)
    (one,) = submit(ben, "one", "true")
    assert started_before(daemon, one, small) - before < 20


def test_jobs_that_take_longer_than_their_user_made_believe_are_passed(serve: Serve) -> None:
    """Ann's jobs were short before, so that they are predicted to be; now they take 1 s, and keep Ben's job waiting."""
    daemon = serve("refold")
    ann, ben = client_of(daemon, "ann"), client_of(daemon, "ben")
    for job in submit(ann, "quick", "true", 12):
        ann.wait(job, 60)
    blocking = submit(ann, "blocking", "sleep 3", 2)
    wait_until(lambda: started(daemon, blocking) == 2)
    (wide,) = submit(ben, "wide", "true", gpus=2)
    false = submit(ann, "quick", "sleep 1", 60)
    assert started_before(daemon, wide, false) < 40


def test_a_job_that_exceeds_its_false_time_limit_does_not_delay_a_reservation(serve: Serve) -> None:
    daemon = serve("easy")
    ann, ben = client_of(daemon, "ann"), client_of(daemon, "ben")
    (first,) = submit(ann, "first", "sleep 6", time_limit=8.0)
    wait_until(lambda: started(daemon, [first]) == 1)
    (wide,) = submit(ben, "wide", "true", gpus=2, time_limit=10.0)
    (false,) = submit(ann, "false", "exec sleep 600", time_limit=1.0)
    assert started_before(daemon, wide, [false]) == 1
    assert ann.wait(false, 60).state == "timed out"
    assert ben.wait(wide, 60).state == "finished"
