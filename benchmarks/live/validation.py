"""A week of Helios through the daemon and its local back end, faster than it happened, beside the simulation.

`python -m benchmarks.live.validation`: slots stand for GPUs, and a job sleeps for its duration divided by the speed-up.
Live waits are those of the daemon's journal. The simulator gets the same jobs at the times at which they were due, and
what a start costs, as measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.result_page import FOLDER, measurement_parser, publish
from benchmarks.workloads import HELIOS, TRACES, missing
from refold.journal import History, HistoryJournal, read_history
from refold.model import DAY, HOUR, Demand, Job, Seconds
from refold.registry import make_policy
from refold.results import describe_unfinished
from refold.simulator import Costs, simulate
from refold.testing import make_cluster
from refold.traces import read_trace

PAGE = FOLDER / "validation.md"
RUN_POLICIES = ("fifo", "easy", "refold")
SLOTS = 62
WEEK: Seconds = 7 * DAY
SPEED_UP = 1000.0

MAX_DURATION, MAX_GPUS = 12 * HOUR, 32
"""Larger jobs are left out: 62 slots are a small cluster."""

LIMIT_FACTOR, LIMIT_MARGIN = 1.5, 3.0
"""Time limits: this multiple of the duration and, in real time, so many seconds, within which a start is certain."""

WARM_UP_JOBS, WARM_UP_NAME, WARM_UP_SECONDS = 20, "warm-up", 0.1
STALL_SECONDS = 300.0
"""A replay in which no job ends for this long has failed."""

GOAL = 0.02


class Replay(NamedTuple):
    """Every `stride`-th job of the `week`-th week of the trace, up to `length` seconds of it, so many times faster."""

    week: int = 4
    stride: int = 2
    length: Seconds = WEEK
    speed_up: float = SPEED_UP

    def jobs(self) -> list[Job]:
        """Return the jobs, in real time."""
        if absent := missing(HELIOS):
            raise SystemExit(absent)
        found = read_trace(TRACES / HELIOS).jobs
        begin = found[0].submitted + self.week * WEEK
        chosen = [job for job in found if 0 <= job.submitted - begin < WEEK and _fits(job)][:: self.stride]
        in_time = [job for job in chosen if job.submitted - begin < self.length]
        return [self._scaled(job, number, begin) for number, job in enumerate(in_time)]

    def _scaled(self, job: Job, number: int, begin: Seconds) -> Job:
        work = max(1.0, job.work or 0.0) / self.speed_up
        return Job(
            f"j{number}",
            (job.submitted - begin) / self.speed_up,
            Demand(1, round(job.demand.total_gpus)),
            work=work,
            group=job.user or job.tenant,
            preemptible=False,
            time_limit=LIMIT_FACTOR * work + LIMIT_MARGIN,
        )

    def settings(self, policy: str) -> dict[str, float]:
        """Return the settings of a policy that are times, scaled."""
        parameters = signature(type(make_policy(policy))).parameters
        times = {name: parameter.default for name, parameter in parameters.items() if name.endswith("_seconds")}
        return {name: default / self.speed_up for name, default in times.items()}


def _fits(job: Job) -> bool:
    return (job.work or 0.0) <= MAX_DURATION and 1 <= job.demand.total_gpus <= MAX_GPUS


class Waits(NamedTuple):
    """Waiting times in seconds of the trace."""

    mean: Seconds
    median: Seconds
    p90: Seconds
    p99: Seconds
    makespan: Seconds


class Lag(NamedTuple):
    """What the daemon adds, in real time: before the replay, and in it.

    `idle_start`: median time of a run beyond that of its command; `start`, `start_mean`, `start_p99`: in the replay.
    `submission_p99`: from when a job was due to its record in the journal. `cpu`: share of one core that it used.
    """

    idle_start: Seconds
    start: Seconds
    start_mean: Seconds
    start_p99: Seconds
    submission_p99: Seconds
    cpu: float


class Result(NamedTuple):
    """One policy: played, and simulated with the mean cost of a start in the replay, and with that before it."""

    live: Waits
    simulated: Waits
    simulated_idle: Waits
    lag: Lag

    @property
    def difference(self) -> float:
        """The live mean wait relative to the simulated one."""
        return self.live.mean / self.simulated.mean - 1


def run(replay: Replay, policy: str) -> Result:
    """Play the jobs under a policy, and simulate them."""
    jobs = replay.jobs()
    live, lag = _play(replay, jobs, policy)
    with_start, with_idle = (simulated(replay, jobs, policy, start) for start in (lag.start_mean, lag.idle_start))
    return Result(live, with_start, with_idle, lag)


def simulated(replay: Replay, jobs: Sequence[Job], policy: str, start: Seconds) -> Waits:
    """Return what the simulator predicts if a start costs so much, in real time."""
    journal, cluster = HistoryJournal(), make_cluster(SLOTS)
    made = make_policy(policy, replay.settings(policy))
    simulate(jobs, cluster, made, journal=journal, costs=Costs(start=start, stop=0.0, restart=0.0))
    return _waits(journal.history(cluster), np.ones(len(jobs), dtype=np.bool_), replay.speed_up)


def _play(replay: Replay, jobs: Sequence[Job], policy: str) -> tuple[Waits, Lag]:
    settings = [word for name, value in replay.settings(policy).items() for word in ("--set", f"{name}={value}")]
    with run_daemon("--slots", str(SLOTS), "--policy", policy, *settings) as daemon, TemporaryDirectory() as folder:
        for _ in range(WARM_UP_JOBS):
            daemon.client.wait(_submit(daemon, WARM_UP_NAME, 1, WARM_UP_SECONDS, 60.0), STALL_SECONDS)
        cpu_before, began = daemon.cpu_seconds(), time.monotonic()
        for job in jobs:
            time.sleep(max(0.0, began + job.submitted - time.monotonic()))
            assert job.work is not None and job.time_limit is not None
            _submit(daemon, job.group, job.demand.gpus, job.work, job.time_limit)
        _wait_until_all_ended(daemon)
        cpu = (daemon.cpu_seconds() - cpu_before) / (time.monotonic() - began)
        _, history = read_history(daemon.client.journal(Path(folder) / "journal.jsonl"))
    played = np.array([job.group != WARM_UP_NAME for job in history.jobs.jobs])
    return _waits(history, played, replay.speed_up), _lag(history, played, jobs, cpu)


def _submit(daemon: Daemon, name: str, gpus: int, seconds: Seconds, limit: Seconds) -> str:
    command = ["sleep", f"{seconds:.4f}"]
    return daemon.client.submit(command=command, name=name, gpus=gpus, time_limit=limit, export="NONE").id


def _wait_until_all_ended(daemon: Daemon) -> None:
    deadline, last = time.monotonic() + STALL_SECONDS, -1
    while (count := sum(1 for _ in daemon.client.queue())) > 0:
        if count != last:
            deadline, last = time.monotonic() + STALL_SECONDS, count
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} jobs have not ended, and none has for {STALL_SECONDS:g} s")
        time.sleep(1.0)


def _waits(history: History, chosen: NDArray[np.bool_], speed_up: float) -> Waits:
    """Return the waits of jobs that finished; a job that did not is an error."""
    jobs = history.jobs
    if unfinished := describe_unfinished(history):
        raise RuntimeError(unfinished)
    waits = (jobs.first_start - jobs.submitted)[chosen] * speed_up
    makespan = float(jobs.ended[chosen].max() - jobs.submitted[chosen].min()) * speed_up
    median, p90, p99 = np.percentile(waits, (50, 90, 99)).tolist()
    return Waits(float(waits.mean()), median, p90, p99, makespan)


def _lag(history: History, played: NDArray[np.bool_], jobs: Sequence[Job], cpu: float) -> Lag:
    times = history.time_running
    work = np.array([job.work or 0.0 for job in jobs])
    due = np.array([job.submitted for job in jobs])
    extra, submitted = times[played] - work, history.jobs.submitted[played]
    late = (submitted - submitted[0]) - (due - due[0])
    idle = float(np.median(times[~played] - WARM_UP_SECONDS))
    start, start_p99 = np.percentile(extra, (50, 99)).tolist()
    return Lag(idle, start, float(extra.mean()), start_p99, float(np.percentile(late, 99)), cpu)


def page(replay: Replay, found: Mapping[str, Result]) -> str:
    """Return the page."""
    jobs = replay.jobs()
    load = sum((job.work or 0.0) * job.demand.gpus for job in jobs) * replay.speed_up / (SLOTS * replay.length)
    rows = [
        f"| `{name}` | {result.live.mean / HOUR:.3f} | {result.simulated.mean / HOUR:.3f} | {result.difference:+.2%} |"
        f" {result.live.mean / result.simulated_idle.mean - 1:+.2%} |"
        f" {result.live.median / HOUR:.3f} / {result.simulated.median / HOUR:.3f} |"
        f" {result.live.p90 / HOUR:.2f} / {result.simulated.p90 / HOUR:.2f} |"
        f" {result.live.p99 / HOUR:.2f} / {result.simulated.p99 / HOUR:.2f} |"
        f" {result.live.makespan / DAY:.2f} / {result.simulated.makespan / DAY:.2f} |"
        for name, result in found.items()
    ]
    lags = [
        f"| `{name}` | {lag.idle_start * 1e3:.0f} | {lag.start * 1e3:.0f} | {lag.start_mean * 1e3:.0f} |"
        f" {lag.start_p99 * 1e3:.0f} | {lag.submission_p99 * 1e3:.0f} | {lag.cpu:.0%} |"
        for name, (*_, lag) in found.items()
    ]
    met = sum(abs(result.difference) <= GOAL for result in found.values())
    return f"""# A week of Helios, live and simulated

`python -m benchmarks.live.validation --write` plays {len(jobs):,} jobs of week {replay.week + 1} of Helios Venus (every
{replay.stride}nd of those with at most {MAX_GPUS} GPUs and {MAX_DURATION / HOUR:g} h) through `refold serve` with
{SLOTS} slots, {replay.speed_up:g} times as fast as they happened: each job is a process that sleeps. They need
{load:.0%} of the slots. All have a time limit of {LIMIT_FACTOR:g} times their duration plus {LIMIT_MARGIN:g} s. The
settings of `refold` that are times are divided by the speed-up; jobs are not preemptible. The simulator gets the same
jobs, policies and settings, and the mean cost of a start in the replay; *to idle starts*: what a start cost on the idle
daemon instead. Times of the trace; goal: mean waits within {GOAL:.0%}. Met by {met} of {len(found)}.

| policy | mean wait live, h | simulated | difference | to idle starts | median, h | p90, h | p99, h | makespan, days |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

The last four columns are live / simulated with the mean cost.

What the daemon adds, in milliseconds of real time; one is {replay.speed_up / 1000:g} s of the trace:

| policy | start, idle | start, median | mean | p99 | submission late by, p99 | CPU of the daemon |
|---|---|---|---|---|---|---|
{chr(10).join(lags)}

A start is the time of a run beyond that of its command: starting the process and noticing its end. The replays ran one
after another, on two cores that other programs used as well.
"""


def main() -> None:
    """Play the week under each policy and print the page."""
    parser = measurement_parser("benchmarks.live.validation", __doc__, "play the first half day of the week only")
    parser.add_argument("--policy", choices=RUN_POLICIES, action="append", help="one policy; can be repeated")
    options = parser.parse_args()
    replay = Replay(length=DAY / 2) if options.quick else Replay()
    found = {}
    for policy in options.policy or RUN_POLICIES:
        found[policy] = run(replay, policy)
        print(f"{policy}: {found[policy]}", file=sys.stderr)
    publish(options, PAGE, page(replay, found), {name: result._asdict() for name, result in found.items()})


if __name__ == "__main__":
    main()
