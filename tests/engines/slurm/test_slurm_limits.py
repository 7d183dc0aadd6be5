"""Reservations, partitions and limits of a real Slurm, as its administrator sets them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import slurm_servers
from slurm_backend import job_ids
from slurm_daemon import SlurmDaemon
from slurm_servers import SlurmServers

SLEEP = ["sleep", "600"]


@pytest.fixture
def daemon(slurm: SlurmServers, tmp_path: Path) -> Iterator[SlurmDaemon]:
    found = SlurmDaemon(slurm, tmp_path / "state", "--policy", "fifo-skip")
    try:
        yield found
    finally:
        found.kill(signal.SIGTERM)


@pytest.fixture
def maintenance(slurm: SlurmServers) -> Iterator[None]:
    """A reservation of two of four nodes that begins in an hour."""
    words = ("StartTime=now+60minutes", "Duration=120", "Users=root", "Flags=MAINT,IGNORE_JOBS", "Nodes=n[0-1]")
    slurm.run("scontrol", "create", "reservation", "ReservationName=maint", *words)
    yield
    slurm.run("scontrol", "delete", "ReservationName=maint")


def nodes_of(daemon: SlurmDaemon, job: str) -> set[str]:
    with daemon.client() as client:
        return {place.node for place in client.job(job).placement}


@pytest.mark.usefixtures("maintenance")
def test_jobs_without_a_time_limit_run_beside_a_reservation_and_short_ones_before_it(
    daemon: SlurmDaemon, slurm: SlurmServers
) -> None:
    daemon.start()

    def closed() -> set[str]:
        with daemon.client() as client:
            return {node.name for node in client.nodes() if node.reason.startswith("slurm: reserved by maint from ")}

    daemon.wait_until(lambda: closed() == {"n0", "n1"}, "the reserved nodes are closed")
    with daemon.client() as client:
        endless = [client.submit(command=SLEEP, name="endless", gpus=8).id for _ in range(2)]
        short = client.submit(command=SLEEP, name="short", gpus=8, time_limit=600.0).id

    def runs(job: str) -> bool:
        return "RUNNING" in slurm.run("squeue", "--noheader", f"--name={job}", "--format=%T")

    for job in (*endless, short):
        daemon.wait_until(partial(runs, job), f"Slurm runs {job}")
    assert {node for job in endless for node in nodes_of(daemon, job)} == {"n2", "n3"}
    assert nodes_of(daemon, short) <= {"n0", "n1"}
    limits = slurm.run("squeue", "--noheader", "--format=%j %l").split("\n")
    assert f"{short} 12:00" in limits


@pytest.mark.usefixtures("maintenance")
def test_jobs_that_cannot_end_before_a_reservation_do_not_keep_its_nodes_from_others(daemon: SlurmDaemon) -> None:
    daemon.start()
    with daemon.client() as client:
        running = [client.submit(command=SLEEP, name="endless", gpus=8).id for _ in range(2)]
        daemon.wait_until(lambda: all(client.job(job).started for job in running), "two nodes are not reserved")
        waits = client.submit(command=SLEEP, name="endless", gpus=8).id
        short = client.submit(command=SLEEP, name="short", gpus=8, time_limit=600.0).id
        daemon.wait_until(lambda: client.job(short).started is not None, "a short job runs before the reservation")
        assert client.job(waits).state == "waiting"
        wide = client.submit(command=SLEEP, name="wide", gpus=8, instances=3).id
        assert client.job(wide).state == "infeasible"


def test_a_limit_of_slurm_postpones_a_job_and_says_which(need_programs: Callable[..., None], tmp_path: Path) -> None:
    need_programs(*slurm_servers.PROGRAMS)
    slurm = SlurmServers(nodes=1, settings={"Licenses": "matlab:1"})
    config = tmp_path / "refold.yaml"
    config.write_text("slurm: {as_root: true, options: ['--licenses=matlab:1']}\n")
    daemon = SlurmDaemon(slurm, tmp_path / "state", "--policy", "fifo", "--config", str(config))
    try:
        slurm.start()
        daemon.start()
        with daemon.client() as client:
            client.submit(command=SLEEP, name="first", gpus=1)
            daemon.wait_until(lambda: len(job_ids(slurm, "first-1")) == 1, "the first job is in Slurm")
            second = client.submit(command=SLEEP, name="second", gpus=1).id
            daemon.wait_until(
                lambda: client.job(second).message == "submitted to Slurm (Licenses)",
                "the queue says what it waits for",
            )
            daemon.wait_until(lambda: client.job(second).state == "held", "it does not hold GPUs")
            found = client.job(second)
            assert (found.reason, found.message) == ("Backoff", "a limit of Slurm: Licenses")
            assert job_ids(slurm, second) == []
            client.cancel("first-1", now=True)
            client.release(second)
            daemon.wait_until(lambda: client.job(second).started is not None, "it runs when there is a licence")
    finally:
        daemon.kill(signal.SIGTERM)
        slurm.stop()
