"""Jobs of the Philly trace through a real Slurm, faster than they happened: Refold in a pool, and Slurm's backfill.

Each job sleeps for its duration, divided by the speed-up, and writes when it started and ended. A reshapable job
runs in proportion to its GPUs, and saves its progress when it is stopped. The simulator gets the same jobs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.workloads import PHILLY, missing, trace_slice
from refold.journal import HistoryJournal
from refold.model import HOUR, MINUTE, Demand, Job, Seconds
from refold.simulator import Costs, simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_daemon import SlurmDaemon  # noqa: E402
from slurm_servers import SlurmServers  # noqa: E402

NODES, GPUS = 4, 8
FIRST, STRIDE = 40_000, 4
"""Every fourth job from here on: these keep 32 GPUs busy for most of a day, and wait for an hour on average."""

MAX_DURATION: Seconds = 4 * HOUR
"""Longer jobs are left out: with them, most of the GPUs would idle for most of the replay."""

STALL_SECONDS = 300.0
"""A replay in which no job ends for this long, in real time, has failed."""

START_SECONDS, STOP_SECONDS = 0.1, 0.5
"""What the simulator charges for a start, as measured, and for a stop, in real time."""

SCALED = {
    "restart_seconds": 78.0,
    "weight_doubling_seconds": 14_400.0,
    "delay_doubling_seconds": 3600.0,
}
"""Settings of `refold` that are times: its defaults. They are divided by the speed-up."""

SLURM_PRIORITIES = {
    "PriorityWeightAge": "1000",
    "PriorityWeightJobSize": "1000",
    "PriorityFavorSmall": "NO",
    "PriorityCalcPeriod": "1",
}
"""Multifactor priorities as in the example of its manual, except for fair share: all jobs have the same user."""

# Instance 0 keeps the record. With a plan, the GPUs are those of its data parallelism.
JOB = """
cd {folder} || exit 9
gpus={gpus}
[[ "$REFOLD_PLAN" =~ \\"data\\":([0-9]+) ]] && gpus=${{BASH_REMATCH[1]}}
began=$EPOCHREALTIME
read -r before 2>/dev/null <$1.done || before=0
save() {{
    kill $! 2>/dev/null
    [ "${{REFOLD_INSTANCE:-0}}" != 0 ] ||
        awk "BEGIN {{ print $before + ($EPOCHREALTIME - $began) * $gpus }}" >$1.done
    exit 143
}}
trap 'save $1' TERM
[ "${{REFOLD_INSTANCE:-0}}" != 0 ] || [ -e $1.start ] || echo $began >$1.start
left=$(awk "BEGIN {{ print ({work} * {gpus} - $before) / $gpus }}")
sleep $left & wait $!
[ "${{REFOLD_INSTANCE:-0}}" != 0 ] || echo $EPOCHREALTIME >$1.end
"""


class JobTimes(NamedTuple):
    """When a job was submitted, started and ended."""

    submitted: Seconds
    started: Seconds
    ended: Seconds


class Waits(NamedTuple):
    """What became of the jobs, in seconds of the trace."""

    mean: Seconds
    median: Seconds
    p99: Seconds
    completion: Seconds
    makespan: Seconds


class Replay(NamedTuple):
    """Some jobs of the trace, so many times faster than they were."""

    size: int
    speed_up: float

    def jobs(self, *, reshapable: bool) -> list[Job]:
        """Return the jobs in real time. `reshapable`: every other one may have half to twice its GPUs."""
        if absent := missing(PHILLY):
            raise SystemExit(absent)
        found = trace_slice(PHILLY, FIRST, 2 * STRIDE * self.size)[::STRIDE]
        short = [job for job in found if (job.work or 0.0) <= MAX_DURATION]
        return [self._scaled(job, number, reshapable) for number, job in enumerate(short[: self.size])]

    def _scaled(self, job: Job, number: int, reshapable: bool) -> Job:
        gpus = min(NODES * GPUS, max(1, job.demand.instances * job.demand.gpus))
        each = next(size for size in range(min(gpus, GPUS), 0, -1) if gpus % size == 0)
        work = max(1.0, job.work or 0.0) / self.speed_up
        # Slurm's time limits are whole minutes. Users ask for more than they need.
        limit = MINUTE * ceil(1.5 * work / MINUTE)
        scaled = Job(
            f"j{number}",
            job.submitted / self.speed_up,
            Demand(gpus // each, each),
            work=work,
            group=job.user or job.tenant,
            preemptible=False,
            time_limit=limit,
        )
        if not reshapable or number % 2:
            return scaled
        size = (max(1, gpus // 2), min(NODES * GPUS, 2 * gpus))
        return replace(scaled, reshapable=True, preemptible=True, gpu_range=size)

    def settings(self) -> dict[str, float]:
        """Return the settings of `refold`, scaled."""
        return {name: value / self.speed_up for name, value in SCALED.items()}

    def summarize(self, times: Sequence[JobTimes]) -> Waits:
        """Return the measures."""
        waits = [job.started - job.submitted for job in times]
        makespan = max(job.ended for job in times) - min(job.submitted for job in times)
        found = (
            mean(waits),
            median(waits),
            float(np.percentile(waits, 99)),
            mean(job.ended - job.submitted for job in times),
            makespan,
        )
        return Waits(*(value * self.speed_up for value in found))


def simulated(replay: Replay, *, reshapable: bool, policy: str = "refold") -> Waits:
    """Return what the simulator predicts."""
    journal, cluster = HistoryJournal(), make_cluster(*[GPUS] * NODES)
    made = make_policy(policy, replay.settings() if policy == "refold" else {})
    costs = Costs(start=START_SECONDS, stop=STOP_SECONDS, restart=START_SECONDS)
    simulate(replay.jobs(reshapable=reshapable), cluster, made, journal=journal, costs=costs)
    found = journal.history(cluster).jobs
    rows = zip(found.submitted, found.first_start, found.ended, strict=True)
    return replay.summarize([JobTimes(*map(float, row)) for row in rows])


def played(replay: Replay, *, reshapable: bool = False, pool: bool) -> Waits:
    """Play the jobs on a Slurm of their own: by Refold in a pool of all nodes, or by Slurm itself."""
    slurm = SlurmServers(NODES, GPUS, scheduler=slurm_scheduler(replay.speed_up), settings=SLURM_PRIORITIES)
    jobs = replay.jobs(reshapable=reshapable)
    with TemporaryDirectory(prefix="refold-trace-") as name:
        folder = Path(name)
        submitter = PoolSubmitter(slurm, folder, replay) if pool else SlurmSubmitter(slurm, folder)
        try:
            slurm.start()
            submitter.start()
            return replay.summarize(_play(jobs, folder, submitter.submit))
        finally:
            submitter.stop()
            slurm.stop()


def slurm_scheduler(speed_up: float) -> str:
    """Return Slurm's defaults for its schedulers, scaled as far as its whole seconds allow."""
    scaled = {"bf_interval": 30, "bf_resolution": 60, "sched_interval": 60, "batch_sched_delay": 3}
    seconds = {name: max(1, round(value / speed_up)) for name, value in scaled.items()}
    return ",".join(
        [
            *(f"{name}={value}" for name, value in seconds.items() if name != "batch_sched_delay"),
            "batch_sched_delay=0",
            f"sched_min_interval={round(2e6 / speed_up)}",
            "bf_continue",
        ]
    )


class SlurmSubmitter:
    """Submits jobs to Slurm by sbatch."""

    def __init__(self, slurm: SlurmServers, folder: Path) -> None:
        self._slurm = slurm
        self._folder = folder

    def start(self) -> None:
        """Do nothing: Slurm runs."""

    def stop(self) -> None:
        """Do nothing."""

    def submit(self, job: Job) -> None:
        """Submit a job."""
        script = self._folder / f"{job.id}.sh"
        script.write_text(f"#!/bin/bash\nset -- {job.id}\n{job_script(job, self._folder)}")
        self._slurm.run(
            "sbatch",
            f"--nodes={job.demand.instances}",
            f"--ntasks={job.demand.instances}",
            "--ntasks-per-node=1",
            f"--gres=gpu:{job.demand.gpus}",
            "--cpus-per-task=1",
            "--mem=100M",
            f"--time={round((job.time_limit or 0.0) / MINUTE)}",
            "--output=/dev/null",
            str(script),
        )


class PoolSubmitter:
    """Submits jobs to a daemon that holds all nodes."""

    def __init__(self, slurm: SlurmServers, folder: Path, replay: Replay) -> None:
        settings = [word for name, value in replay.settings().items() for word in ("--set", f"{name}={value}")]
        options = ("--policy", "refold", *settings, "--pool", str(NODES))
        self._daemon = SlurmDaemon(slurm, folder / "state", *options)
        self._folder = folder

    def start(self) -> None:
        """Start the daemon; return when it has run a job on all nodes."""
        self._daemon.start()
        with self._daemon.client() as client:
            first = client.submit(command=["true"], name="first", instances=NODES, gpus=GPUS, export="NONE")
            client.wait(first.id, STALL_SECONDS)

    def stop(self) -> None:
        """End the daemon."""
        self._daemon.kill()

    def submit(self, job: Job) -> None:
        """Submit a job."""
        with self._daemon.client() as client:
            client.submit(
                name=job.group,
                command=["bash", "-c", job_script(job, self._folder), "job", job.id],
                instances=job.demand.instances,
                gpus=job.demand.gpus,
                gpu_range=job.gpu_range,
                reshapable=job.reshapable,
                time_limit=job.time_limit,
                cpus=1,
                memory_gib=0.1,
                export="NONE",
            )


def job_script(job: Job, folder: Path) -> str:
    """Return the script of a job. Its first argument is the name of its records."""
    gpus = job.demand.instances * job.demand.gpus
    return JOB.format(folder=folder, gpus=gpus, work=f"{job.work or 0.0:.3f}")


def _play(jobs: Sequence[Job], folder: Path, submit: Callable[[Job], None]) -> list[JobTimes]:
    """Submit each job when it is due, and wait until all have ended."""
    began, submitted = time.time(), {}
    for job in jobs:
        time.sleep(max(0.0, began + job.submitted - time.time()))
        submitted[job.id] = time.time()
        submit(job)
    deadline, count = time.monotonic() + STALL_SECONDS, -1
    while (ended := len([*folder.glob("*.end")])) < len(jobs):
        if ended != count:
            deadline, count = time.monotonic() + STALL_SECONDS, ended
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(jobs) - ended} jobs have not ended, and none has for {STALL_SECONDS:g} s")
        time.sleep(0.5)

    def read(job: Job, kind: str) -> float:
        return float((folder / f"{job.id}.{kind}").read_text()) - began

    return [JobTimes(submitted[job.id] - began, read(job, "start"), read(job, "end")) for job in jobs]


def trace_table(replay: Replay, found: dict[str, Waits], predicted: dict[str, Waits]) -> list[str]:
    """Return a Markdown table: what was measured, against Slurm, and against the simulator."""
    slurm = next(iter(found.values()))
    lines = [
        f"{replay.size} jobs of Philly of at most {MAX_DURATION / HOUR:g} h, every {STRIDE}th from number {FIRST:,},"
        f" on {NODES} nodes of {GPUS} GPUs, {replay.speed_up:g} times as fast; times of the trace",
        "",
        "| | mean wait, h | to Slurm | p99 wait, h | to Slurm | median wait, h | mean completion, h | makespan, h |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        is_first = row is slurm
        lines.append(
            f"| {name} | {row.mean / HOUR:.2f} | {_change(row.mean, slurm.mean, is_first)} | {row.p99 / HOUR:.2f} |"
            f" {_change(row.p99, slurm.p99, is_first)} | {row.median / HOUR:.2f} | {row.completion / HOUR:.2f} |"
            f" {row.makespan / HOUR:.1f} |"
        )
    lines += ["", "| simulated | mean wait, h | measured | p99 wait, h | measured |", "|---|---|---|---|---|"]
    for name, row in predicted.items():
        lines.append(
            f"| {name} | {row.mean / HOUR:.2f} | {_change(found[name].mean, row.mean)} | {row.p99 / HOUR:.2f} |"
            f" {_change(found[name].p99, row.p99)} |"
        )
    return lines


def _change(value: float, base: float, is_base: bool = False) -> str:
    return "" if is_base or not base else f"{value / base - 1:+.1%}"


def measure_trace(replay: Replay) -> list[str]:
    """Play the jobs in three ways; return tables."""
    found = {"Slurm, backfill": played(replay, pool=False)}
    print(f"Slurm: {found}", file=sys.stderr)
    predicted = {}
    for name, reshapable in (("`refold`, rigid jobs", False), ("`refold`, half of them reshapable", True)):
        predicted[name] = simulated(replay, reshapable=reshapable)
        found[name] = played(replay, reshapable=reshapable, pool=True)
        print(f"{name}: {found[name]}, simulated: {predicted[name]}", file=sys.stderr)
    return trace_table(replay, found, predicted)
