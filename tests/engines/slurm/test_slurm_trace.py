"""The jobs that `python -m benchmarks.engines --jobs` plays, without Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from benchmarks.engines.slurm_trace import JobTimes, Replay, Waits, job_script, slurm_scheduler, trace_table
from benchmarks.workloads import PHILLY, missing

from refold.model import Demand, Job


def start(job: Job, folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    words = ["bash", "-c", job_script(job, folder), "job", job.id]
    return subprocess.Popen(words, env={**os.environ, **variables})


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_a_stopped_job_continues_with_the_work_that_is_left(tmp_path: Path) -> None:
    job = Job("j1", demand=Demand(1, 2), work=1000.0)
    first = start(job, tmp_path)
    wait_for(tmp_path / "j1.start")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 143
    assert 0 < float((tmp_path / "j1.done").read_text()) < 1000
    assert not (tmp_path / "j1.end").exists()
    (tmp_path / "j1.done").write_text("2000\n")
    began = (tmp_path / "j1.start").read_text()
    assert start(job, tmp_path).wait(timeout=30) == 0
    assert ((tmp_path / "j1.start").read_text(), (tmp_path / "j1.end").exists()) == (began, True)


def test_a_job_with_more_gpus_does_its_work_faster(tmp_path: Path) -> None:
    job = Job("j1", demand=Demand(1, 1), work=1000.0)
    (tmp_path / "j1.done").write_text("999.9\n")
    plan = '{"data":1000000,"zero":0}'
    assert start(job, tmp_path, REFOLD_PLAN=plan, REFOLD_INSTANCE="1").wait(timeout=30) == 0
    assert not (tmp_path / "j1.end").exists(), "instance 0 keeps the record"


@pytest.mark.skipif(bool(missing(PHILLY)), reason=missing(PHILLY))
def test_half_of_the_jobs_may_be_reshaped_and_all_have_limits_of_whole_minutes() -> None:
    jobs = Replay(40, 100.0).jobs(reshapable=True)
    assert len([job for job in jobs if job.reshapable]) == 20
    assert not any(job.preemptible for job in jobs if not job.reshapable)
    assert all((job.time_limit or 0.0) % 60 == 0 and (job.time_limit or 0.0) >= (job.work or 0.0) for job in jobs)
    assert not any(job.reshapable for job in Replay(40, 100.0).jobs(reshapable=False))


def test_times_are_those_of_the_trace() -> None:
    found = Replay(2, 100.0).summarize([JobTimes(0.0, 1.0, 3.0), JobTimes(1.0, 4.0, 10.0)])
    assert found == Waits(200.0, 200.0, found.p99, 600.0, 1000.0)
    assert found.p99 == pytest.approx(298.0)
    rows = trace_table(Replay(2, 100.0), {"Slurm": found, "refold": found}, {"refold": found._replace(mean=0.0)})
    assert rows[-1] == "| refold | 0.00 |  | 0.08 | +0.0% |"


def test_intervals_of_slurm_are_scaled() -> None:
    assert slurm_scheduler(10) == (
        "bf_interval=3,bf_resolution=6,sched_interval=6,batch_sched_delay=0,sched_min_interval=200000,bf_continue"
    )
