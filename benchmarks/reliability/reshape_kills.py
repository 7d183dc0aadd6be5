"""Daemons are killed, at times drawn from a seed, while training jobs change their shape."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.table import markdown

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from real_daemon import RealDaemon, kill_runs, wait_until

STEPS, SLOTS, TIMEOUT = 60, 8, 300.0
POLICY = str(REPOSITORY / "tests" / "helpers" / "shrinking_policy.py")

# Each step is appended to a log. A checkpoint is written when the job is stopped, and read when it starts; also after
# the last step, since a job that is told to stop then is started again. A second process of the same job would find the
# lock taken.
JOB = r"""
cd "$REFOLD_CHECKPOINT"
exec 9>lock; flock -n 9 || echo overlap >>log
echo "run $REFOLD_RUN" >>log
step=$(cat saved 2>/dev/null || echo 0)
trap 'stop=1' TERM
while [ $step -lt {steps} ]; do
    if [ -n "$stop" ]; then sleep 0.2; echo $step >saved; exit 0; fi
    step=$((step + 1)); echo "step $step" >>log; sleep 0.05
done
echo $step >saved
"""


class ReshapeKills(msgspec.Struct, frozen=True):
    """How often daemons were killed, what the jobs did, and what was wrong."""

    seeds: int
    kills: int
    reshapes: int
    jobs: int
    violations: list[str]
    minutes: float


def run_reshape_kills(seeds: int, kills: int) -> ReshapeKills:
    """Run jobs that are reshaped while their daemon is killed, with each seed."""
    start, reshapes, jobs = time.monotonic(), 0, 0
    violations: list[str] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="refold-reshapes-") as folder:
            found = _Trial(Path(folder) / "state", seed).run(kills)
        reshapes += found[0]
        jobs += found[1]
        violations += [f"seed {seed}: {text}" for text in found[2]]
        print(f"seed {seed}: {found[0]} reshapes, violations: {found[2]}", file=sys.stderr)
    return ReshapeKills(seeds, seeds * kills, reshapes, jobs, violations, (time.monotonic() - start) / 60)


class _Trial:
    """Before each kill, a job that can have 1 to 4 slots, and a short rigid one that makes others shrink."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        self._daemon = self._start()
        self._elastic: list[str] = []
        self._rigid: list[str] = []

    def _start(self) -> RealDaemon:
        return RealDaemon(self._folder, slots=SLOTS, policy=POLICY, grace=5.0)

    def run(self, kills: int) -> tuple[int, int, list[str]]:
        """Kill the daemon; return the number of reshapes and jobs, and what was wrong."""
        try:
            for _ in range(kills):
                self._submit_elastic()
                self._submit_rigid()
                time.sleep(self._random.uniform(0.0, 0.6))
                self._daemon.kill()
                self._daemon = self._start()
            wait_until(self._have_all_ended, TIMEOUT, "all jobs end")
            return self._check()
        finally:
            self._daemon.kill()
            kill_runs(self._folder)

    def _submit_elastic(self) -> None:
        command = ["bash", "-c", JOB.format(steps=STEPS)]
        fields: dict[str, Any] = {"gpus": 4, "gpu_range": (1, 4), "reshapable": True, "preemptible": True}
        self._elastic.append(self._daemon.client().submit(name="elastic", command=command, **fields).id)

    def _submit_rigid(self) -> None:
        seconds = self._random.uniform(0.05, 0.3)
        job = self._daemon.client().submit(
            name="rigid", command=["sh", "-c", f"echo >>$REFOLD_CHECKPOINT/log; sleep {seconds:.2f}"], gpus=2
        )
        self._rigid.append(job.id)

    def _have_all_ended(self) -> bool:
        page = self._daemon.client(timeout=60).jobs(limit=1)
        return page.total == 0

    def _check(self) -> tuple[int, int, list[str]]:
        client = self._daemon.client(timeout=60)
        wrong: list[str] = []
        reshapes = 0
        for job in (*self._elastic, *self._rigid):
            if client.job(job).state != "finished":
                wrong.append(f"{job} is {client.job(job).state}")
            lines = (self._folder / "logs" / job / "checkpoint" / "log").read_text().splitlines()
            if job in self._rigid:
                wrong += [f"{job} ran {len(lines)} times"] if len(lines) != 1 else []
                continue
            reshapes += sum(line.startswith("run") for line in lines) - 1
            wrong += _faults(job, lines)
        return reshapes, len(self._elastic) + len(self._rigid), wrong


def _faults(job: str, lines: list[str]) -> list[str]:
    """Return what is wrong with the log of a job: runs that overlap or start twice, steps lost or done twice."""
    found = [f"{job}: two processes at once"] * lines.count("overlap")
    runs = Counter(line for line in lines if line.startswith("run"))
    found += [f"{job}: {run} started {count} times" for run, count in runs.items() if count > 1]
    steps = [int(line.split()[1]) for line in lines if line.startswith("step")]
    if steps != list(range(1, STEPS + 1)):
        found.append(f"{job}: steps are not 1 to {STEPS} in order, each once")
    return found


def table(results: ReshapeKills) -> str:
    """Format the results as Markdown."""
    row = (results.seeds, results.kills, results.jobs, results.reshapes, len(results.violations))
    titles = ("seeds", "daemons killed", "jobs", "restarts for another shape", "guarantees violated")
    return markdown(titles, [[f"{value:,}" for value in row]])
