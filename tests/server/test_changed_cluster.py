"""A restart with another configuration keeps all jobs, their times, and the whole journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_daemon import RealDaemon, wait_until

from refold.client.client import Client
from refold.journal import read_history
from refold.model import Tenant

TENANTS = (Tenant("default", 2.0), Tenant("vision", 2.0))


def run_jobs(client: Client, count: int) -> None:
    for _ in range(count):
        client.wait(client.submit(command=["true"], name="short").id, 60)


def job_times(client: Client) -> dict[str, tuple[float, float | None, str]]:
    """Return submission, start and state of all jobs, to a tenth of a second."""
    jobs = [*client.queue(), *client.history()]
    return {job.id: (round(job.submitted, 1), job.started and round(job.started, 1), job.state) for job in jobs}


def report(state: Path, out: Path) -> dict[str, Any]:
    """Return the output of `refold report`."""
    command = [sys.executable, "-m", "refold", "report", "--json", "--out", str(out)]
    environment = {**os.environ, "REFOLD_HOME": str(state)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    document: dict[str, Any] = json.loads(output)
    return document


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"slots": 3}, id="one slot more"),
        pytest.param({"slots": 1}, id="one slot less"),
        pytest.param({"tenants": TENANTS}, id="a tenant"),
        pytest.param({"policy": "fifo-skip"}, id="another policy"),
        pytest.param({"slots": 0, "nodes": {"localhost": 2, "second": 1}}, id="a node"),
    ],
)
def test_jobs_and_their_times_stay_and_the_journal_covers_all_of_them(tmp_path: Path, changed: dict[str, Any]) -> None:
    state = tmp_path / "state"
    with RealDaemon(state, slots=2) as daemon, daemon.client() as client:
        run_jobs(client, 3)
        client.submit(command=["sleep", "60"], name="long")
        wait_until(lambda: client.job("long").started)
        before = job_times(client)
        daemon.end()
        with RealDaemon(state, **{"slots": 2, **changed}) as restarted, restarted.client() as again:
            assert job_times(again) == {job: pytest.approx(times) for job, times in before.items()}
            again.submit(command=["true"], name="later")
            header, history = read_history(again.journal(tmp_path / "journal.jsonl"))
            assert header.policy == changed.get("policy", "fifo")
            assert sorted(job.id for job in history.jobs.jobs) == sorted(job_times(again))
            runs = list(zip(history.runs.job, history.runs.number, strict=True))
            assert len(set(runs)) == len(runs)


def test_the_report_covers_the_time_before_the_restart(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with RealDaemon(state, slots=1) as daemon, daemon.client() as client:
        run_jobs(client, 3)
        daemon.end()
        with RealDaemon(state, slots=2) as restarted, restarted.client() as again:
            run_jobs(again, 2)
            assert report(state, tmp_path / "report")["measures"]["jobs"] == 5


def test_a_run_on_a_slot_that_is_gone_is_reported_as_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with RealDaemon(state, slots=2) as daemon, daemon.client() as client:
        for name in ("first", "second"):
            client.submit(command=["sleep", "60"], name=name)
        wait_until(lambda: all(job.started for job in client.queue()))
        daemon.end()
        with RealDaemon(state, slots=1) as restarted, restarted.client() as again:
            last = again.why("second").events[-1]
            assert (last.kind, last.run, last.text) == ("stopped", 1, "its nodes or GPUs are no longer in the cluster")
            assert [again.job(name).state for name in ("first", "second")] == ["running", "waiting"]
