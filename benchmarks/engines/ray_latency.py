"""Time from a submission to the start of its process: through Refold on Ray, and by Ray's own jobs, in turns."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from ray_cluster import RayCluster, free_port  # noqa: E402
from ray_daemon import RayDaemon  # noqa: E402

WRITE_TIME = 'date +%s.%N >"$0.new"; mv "$0.new" "$0"'
"""A script that writes its start time to a file."""

TIMEOUT_SECONDS = 120.0


class RayLatencies(NamedTuple):
    """Seconds of each submission to an idle cluster, in turns."""

    refold: list[float]
    ray: list[float]


def measure_ray_latency(repeats: int) -> RayLatencies:
    """Submit one job with a GPU after the other, by each way in turn."""
    port = free_port()
    cluster = RayCluster(4, dashboard_port=port)
    with TemporaryDirectory(prefix="refold-latency-") as name:
        folder, found = Path(name), RayLatencies([], [])
        daemon = RayDaemon(cluster, folder / "state", "--policy", "fifo")
        try:
            from ray.job_submission import JobSubmissionClient

            daemon.start()
            jobs = JobSubmissionClient(f"http://127.0.0.1:{port}")
            for number in range(repeats + 1):
                values = (_with_refold(daemon, folder / f"{number}.refold"), _with_ray(jobs, folder / f"{number}.ray"))
                if number:  # the first round warms up
                    for times, value in zip(found, values, strict=True):
                        times.append(value)
        finally:
            daemon.kill()
            cluster.stop()
    return found


def _with_refold(daemon: RayDaemon, path: Path) -> float:
    with daemon.client() as client:
        began = time.time()
        job = client.submit(name="stamp", command=["sh", "-c", WRITE_TIME, str(path)], gpus=1, export="NONE")
        client.wait(job.id, TIMEOUT_SECONDS)
    return float(path.read_text()) - began


def _with_ray(jobs: Any, path: Path) -> float:
    """Submit by Ray's Python client, without the start of a command line program."""
    began = time.time()
    job = jobs.submit_job(entrypoint=f"sh -c '{WRITE_TIME}' {path}", entrypoint_num_gpus=1)
    while not jobs.get_job_status(job).is_terminal():
        if time.time() > began + TIMEOUT_SECONDS:
            raise RuntimeError(f"the job of Ray has not ended:\n{jobs.get_job_logs(job)}")
        time.sleep(0.1)
    return float(path.read_text()) - began


def ray_latency_table(found: RayLatencies) -> list[str]:
    """Return a Markdown table: medians with the smallest and largest value."""
    names = ("`refold submit`, on Ray", "`ray job submit`")
    return [
        f"Submission to process start on an idle cluster, {len(found.refold)} jobs with one GPU each, in turns:",
        "",
        "| | median, s | smallest to largest |",
        "|---|---|---|",
        *(
            f"| {name} | {median(values):.2f} | {min(values):.2f} to {max(values):.2f} |"
            for name, values in zip(names, found, strict=True)
        ),
    ]
