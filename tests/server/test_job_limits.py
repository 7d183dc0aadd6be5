"""The owner's limits on jobs: at submission, and on runs that do not want to end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import ManualDaemon
from real_daemon import RealDaemon, live_processes, wait_until

from refold.client import Client
from refold.client.api.submissions import Submission
from refold.errors import BadInput, RefoldError, TooManyRequests, Unavailable
from refold.model.launch import Launch
from refold.server.config.limits import LimitsConfig, TenantLimits
from refold.server.job_limits import JobLimits
from refold.testing import make_job

LIMITS = LimitsConfig(
    priority=0, time=7200.0, array=3, jobs=4, tenants={"guests": TenantLimits(grace=5.0, priority=-1, output=4096)}
)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"launch": Launch(grace=3e8)}, "grace is 3472 d 5 h, but tenant 'default' may use at most 1 h"),
        ({"launch": Launch(grace=6.0), "tenant": "guests"}, "grace is 6 s, but tenant 'guests' may use at most 5 s"),
        ({"priority": 1}, "priority is 1, but tenant 'default' may use at most 0"),
        ({"priority": 0, "tenant": "guests"}, "priority is 0, but tenant 'guests' may use at most -1"),
        ({"time_limit": 10800.0}, "time_limit is 3 h, but tenant 'default' may use at most 2 h"),
    ],
)
def test_a_job_beyond_a_limit_is_rejected(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as error:
        JobLimits(LIMITS).apply(make_job(**fields))
    assert str(error.value) == problem


def test_a_job_within_the_limits_is_not_changed_except_for_a_missing_time_limit() -> None:
    limits = JobLimits(LIMITS)
    job = make_job(priority=0, time_limit=7200.0, launch=Launch(grace=3600.0))
    assert limits.apply(job) == job
    assert limits.apply(make_job(time_limit=None)) == make_job(time_limit=7200.0)
    assert JobLimits(LimitsConfig()).apply(make_job(priority=2**31, time_limit=1e9)).time_limit == 1e9


def test_the_limits_of_runs_hold_for_jobs_submitted_before() -> None:
    limits = JobLimits(LIMITS)
    assert (limits.of_run(make_job()).grace, limits.of_run(make_job()).output_bytes) == (3600.0, None)
    assert (limits.of_run(make_job(tenant="guests")).grace, limits.of_run(make_job(tenant="guests")).output_bytes) == (
        5.0,
        4096,
    )


def test_jobs_that_could_not_be_stored_do_not_count() -> None:
    limits = JobLimits(LIMITS)
    reserved = limits.reserve([make_job()] * 4)
    with pytest.raises(
        TooManyRequests, match="tenant 'default' has 4 jobs that have not ended, and may have 4; 1 more"
    ):
        limits.reserve([make_job()])
    limits.reserve([make_job(tenant="guests")])
    limits.cancel(reserved)
    limits.reserve([make_job()])


def test_submissions_that_a_daemon_cannot_store_do_not_count(tmp_path: Path) -> None:
    async def submit() -> None:
        limits = JobLimits(LimitsConfig(jobs=1))
        async with ManualDaemon(tmp_path, UnreliableBackend(), limits=limits) as daemon:
            daemon.inbox.stopping = True
            with pytest.raises(Unavailable, match="the daemon is shutting down"):
                await daemon.submit("a")
            daemon.inbox.stopping = False
            assert await daemon.submit("a") == "a-1"
            with pytest.raises(TooManyRequests):
                await daemon.submit("b")

    asyncio.run(submit())


# With a daemon

DEAF = ["sh", "-c", "trap '' TERM; echo ready; sleep 600; sleep 600; sleep 600"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    with RealDaemon(
        tmp_path / "state", slots=2, limits="{jobs: 3, array: 2, tenants: {guests: {output: 8KiB}}}"
    ) as served:
        yield served


def start_deaf(client: Client, **fields: Any) -> str:
    """Start a job that ignores the stop signal and has the longest grace period."""
    job = client.submit(name="deaf", command=DEAF, grace=3600.0, **fields).id
    wait_until(lambda: "ready" in "".join(client.logs(job)))
    return job


def problem_of(client: Client, **fields: Any) -> str:
    with pytest.raises(RefoldError) as error:
        client.submit_all([Submission("a", ["true"], **fields)])
    return str(error.value)


def test_a_second_cancel_kills_a_job_that_does_not_stop(daemon: RealDaemon) -> None:
    client = daemon.client()
    job = start_deaf(client)
    client.cancel(job)
    assert client.job(job).state == "stopping"
    assert live_processes(daemon.folder)
    client.cancel(job)
    wait_until(lambda: client.job(job).state == "cancelled")
    assert not live_processes(daemon.folder)


def test_a_second_cancel_kills_a_job_after_a_restart_of_the_daemon(daemon: RealDaemon) -> None:
    job = start_deaf(daemon.client())
    daemon.client().cancel(job)
    daemon.kill()
    with RealDaemon(daemon.folder, slots=2) as second:
        client = second.client()
        assert client.job(job).state == "stopping"
        client.cancel(job)
        wait_until(lambda: client.job(job).state == "cancelled")


def test_the_first_cancel_of_a_job_that_is_being_preempted_leaves_it_its_grace_period(daemon: RealDaemon) -> None:
    client = daemon.client()
    job = start_deaf(client)
    client.drain("localhost", move=True)
    wait_until(lambda: client.job(job).state == "stopping")
    client.cancel(job)
    assert client.job(job).state == "stopping"
    assert live_processes(daemon.folder)
    client.cancel(job, now=True)
    wait_until(lambda: client.job(job).state == "cancelled")


@pytest.mark.parametrize("gpu", [None, 0])
def test_a_drain_that_does_not_wait_kills_the_runs_and_queues_their_jobs_again(
    gpu: int | None, daemon: RealDaemon
) -> None:
    client = daemon.client()
    job = start_deaf(client, gpus=2)
    client.drain("localhost", gpu=gpu, now=True)
    wait_until(lambda: client.job(job).state == "waiting")
    assert not live_processes(daemon.folder)


def test_a_grace_period_beyond_the_limit_ends_with_it(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state") as before:
        job = start_deaf(before.client())
    with RealDaemon(tmp_path / "state", limits="{grace: 0s}") as after:
        client = after.client()
        wait_until(lambda: client.job(job).state == "running")
        client.cancel(job)
        wait_until(lambda: client.job(job).state == "cancelled")


def test_submissions_beyond_a_limit_are_rejected_and_jobs_that_end_make_room(daemon: RealDaemon) -> None:
    client = daemon.client()
    assert problem_of(client, grace=3e8) == "grace is 3472 d 5 h, but tenant 'default' may use at most 1 h"
    assert problem_of(client, array="0-2") == "array is 3 tasks, but tenant 'default' may use at most 2"
    with pytest.raises(RefoldError, match="grace is 3472 d"):
        client.preview(name="a", command=["true"], grace=3e8)
    held = [client.submit(name="a", command=["true"], hold=True).id for _ in range(3)]
    too_many = "tenant 'default' has 3 jobs that have not ended, and may have 3; 1 more are too many"
    assert too_many in problem_of(client)
    client.submit(name="a", command=["true"], tenant="guests", hold=True)
    client.cancel(held[0])
    client.submit(name="a", command=["true"], hold=True)
    assert too_many in problem_of(client)


def test_the_limit_of_jobs_counts_those_of_the_previous_daemon(daemon: RealDaemon) -> None:
    for _ in range(3):
        daemon.client().submit(name="a", command=["true"], hold=True)
    daemon.kill()
    with RealDaemon(daemon.folder, slots=2, limits="{jobs: 3}") as second:
        assert "has 3 jobs that have not ended" in problem_of(second.client())


def test_the_output_of_a_tenant_is_limited(daemon: RealDaemon) -> None:
    client = daemon.client()
    command = ["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x"]
    small = client.submit(name="a", command=command, tenant="guests").id
    large = client.submit(name="a", command=command).id
    wait_until(lambda: {client.job(job).state for job in (small, large)} == {"finished"})
    stored = [len("".join(client.logs(job))) for job in (small, large)]
    assert 8192 / 4 < stored[0] <= 8192
    assert stored[1] == 100_000
