"""A week of Helios through the daemon and its local back end, faster than it happened, beside the simulation.

`python -m benchmarks.live.validation`: slots stand for GPUs, and a job sleeps for its duration divided by the speed-up.
Live waits are those of the daemon's journal. The simulator gets the submission and run times of that journal, or, as a
prediction, those of the trace, and what a start costs on an idle daemon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
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

SIMULATIONS, JITTER = 10, 0.02
"""A submission that is so much later, in real time, can change what is backfilled, and with it all that follows."""

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
    """One policy: played; simulated as recorded, several times, and as predicted before the replay.

    `predicted`: jobs arrive as in the trace, and starts take as long as on an idle daemon.
    """

    live: Waits
    simulated: Sequence[Waits]
    predicted: Waits
    lag: Lag

    @property
    def simulated_mean(self) -> Seconds:
        """The mean wait of all simulations."""
        return float(np.mean([waits.mean for waits in self.simulated]))

    @property
    def difference(self) -> float:
        """The live mean wait relative to the simulated one."""
        return self.live.mean / self.simulated_mean - 1


def run(replay: Replay, policy: str, folder: Path) -> Result:
    """Play the jobs under a policy, unless the folder has the journal, and simulate them."""
    journal, cpu = folder / f"{policy}.jsonl", folder / f"{policy}-cpu.txt"
    if not cpu.exists():
        cpu.write_text(str(_play(replay, policy, journal)), encoding="utf-8")
    jobs, (_, history) = replay.jobs(), read_history(journal)
    played = np.array([job.group != WARM_UP_NAME for job in history.jobs.jobs])
    lag = _lag(history, played, jobs, float(cpu.read_text(encoding="utf-8")))
    return Result(
        _waits(history, played, replay.speed_up),
        [simulated(replay, _as_recorded(history, played, jobs, seed), policy, 0.0) for seed in range(SIMULATIONS)],
        simulated(replay, jobs, policy, lag.idle_start),
        lag,
    )


def _as_recorded(history: History, played: NDArray[np.bool_], jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return the jobs with their recorded run times and, except for a random delay, submission times."""
    delay = np.random.default_rng(seed).uniform(0.0, JITTER, len(jobs))
    submitted = np.maximum.accumulate(history.jobs.submitted[played] + delay)
    times = zip(jobs, submitted.tolist(), history.time_running[played].tolist(), strict=True)
    return [replace(job, submitted=at, work=run_time) for job, at, run_time in times]


def simulated(replay: Replay, jobs: Sequence[Job], policy: str, start: Seconds) -> Waits:
    """Return what the simulator predicts if a start costs so much, in real time."""
    journal, cluster = HistoryJournal(), make_cluster(SLOTS)
    made = make_policy(policy, replay.settings(policy))
    simulate(jobs, cluster, made, journal=journal, costs=Costs(start=start))
    return _waits(journal.history(cluster), np.ones(len(jobs), dtype=np.bool_), replay.speed_up)


def _play(replay: Replay, policy: str, journal: Path) -> float:
    """Play the jobs, save the journal, and return the share of a core that the daemon used."""
    settings = [word for name, value in replay.settings(policy).items() for word in ("--set", f"{name}={value}")]
    with run_daemon("--slots", str(SLOTS), "--policy", policy, *settings) as daemon:
        for _ in range(WARM_UP_JOBS):
            daemon.client.wait(_submit(daemon, WARM_UP_NAME, 1, WARM_UP_SECONDS, 60.0), STALL_SECONDS)
        cpu_before, began = daemon.cpu_seconds(), time.monotonic()
        for job in replay.jobs():
            time.sleep(max(0.0, began + job.submitted - time.monotonic()))
            assert job.work is not None and job.time_limit is not None
            _submit(daemon, job.group, job.demand.gpus, job.work, job.time_limit)
        _wait_until_all_ended(daemon)
        cpu = (daemon.cpu_seconds() - cpu_before) / (time.monotonic() - began)
        daemon.client.journal(journal)
    return cpu


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
        f"| `{name}` | {result.live.mean / HOUR:.3f} | {result.simulated_mean / HOUR:.3f} |"
        f" {_range([waits.mean / HOUR for waits in result.simulated])} | {result.difference:+.2%} |"
        f" {result.live.mean / result.predicted.mean - 1:+.0%} |"
        f" {result.live.median / HOUR:.3f} | {_range([waits.median / HOUR for waits in result.simulated])} |"
        f" {result.live.p99 / HOUR:.2f} | {_range([waits.p99 / HOUR for waits in result.simulated])} |"
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
settings of `refold` that are times are divided by the speed-up; jobs are not preemptible.

Live waits are those of the daemon's journal. The simulator gets the same policy and settings, and the submission and
run times of that journal. A submission that is a few milliseconds later can change what is backfilled, and with it the
waits of all later jobs, so each is simulated {SIMULATIONS} times, with submissions up to {JITTER * 1e3:g} ms
({JITTER * replay.speed_up:g} s of the trace) later; the table has the mean of the means and their range. *To
prediction* compares with a simulation of the trace itself, with starts as on the idle daemon before. Times of the
trace; goal: mean waits within {GOAL:.0%} of the simulated mean. Met by {met} of {len(found)}.

| policy | mean wait live, h | simulated | range | difference | to prediction | median, h | range | p99, h | range |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

What the daemon adds, in milliseconds of real time; one is {replay.speed_up / 1000:g} s of the trace:

| policy | start, idle | start, median | mean | p99 | submission late by, p99 | CPU of the daemon |
|---|---|---|---|---|---|---|
{chr(10).join(lags)}

A start is the time of a run beyond that of its command: starting the process and noticing its end. The replays ran at
the same time, on two cores of an otherwise idle machine. On a busy one, starts and submissions are late: an earlier run
there differed by +0.10, +0.79 and −1.66 % from the simulation of what was played, but by +26, +59 and −4 % from the
prediction.
"""


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f}–{max(values):.3f}"


def main() -> None:
    """Play the week under each policy and print the page."""
    parser = measurement_parser("benchmarks.live.validation", __doc__, "play the first half day of the week only")
    parser.add_argument("--policy", choices=RUN_POLICIES, action="append", help="one policy; can be repeated")
    parser.add_argument("--folder", type=Path, help="keep the journals here, and use those that exist")
    options = parser.parse_args()
    replay = Replay(length=DAY / 2) if options.quick else Replay()
    policies = options.policy or RUN_POLICIES
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(len(policies)) as threads:
        folder = options.folder or Path(temporary)
        found = dict(zip(policies, threads.map(lambda policy: run(replay, policy, folder), policies), strict=True))
    publish(options, PAGE, page(replay, found), {name: result._asdict() for name, result in found.items()})


if __name__ == "__main__":
    main()
