"""Weeks of Helios through the daemon and its local back end, faster than they happened, beside the simulation.

`python -m benchmarks.live.validation`: slots stand for GPUs, and a job sleeps for its duration divided by the speed-up.
Live waits are those of the daemon's journal. The simulator gets the submission and run times of that journal, or, as a
prediction, those of the trace, and what a start costs on an idle daemon. All replays of the page take 100 minutes.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import markdown
from benchmarks.workloads import HELIOS, TRACES, missing
from refold.journal import History, HistoryJournal, read_history
from refold.model import DAY, HOUR, Demand, Job, Seconds
from refold.simulator import Costs, simulate
from refold.simulator.registry import make_policy
from refold.simulator.results import describe_unfinished
from refold.simulator.traces import read_trace
from refold.testing import make_cluster

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PAGE = Path(__file__).with_name("validation.md")
SETTINGS: dict[str, dict[str, Any]] = {"fifo": {}, "easy": {}, "easy-limits": {"durations": "limit"}, "refold": {}}
"""Policies, and `easy` with time limits instead of predictions."""

SLOTS = 62
WEEK: Seconds = 7 * DAY
NO_COSTS = Costs()

MAX_DURATION, MAX_GPUS, STRIDE = 12 * HOUR, 32, 2
"""Larger jobs, and every second one, are left out: 62 slots are a small cluster."""

LIMIT_FACTOR, LIMIT_MARGIN = 1.5, 3.0
"""Time limits: this multiple of the duration and, in real time, so many seconds, within which a start is certain."""

WARM_UP_JOBS, WARM_UP_NAME, WARM_UP_SECONDS = 20, "warm-up", 0.1
STALL_SECONDS = 900.0
"""A replay in which no job ends for this long has failed."""

SIMULATIONS, JITTER = 10, 0.02
"""A submission that is so much later, in real time, can change what is backfilled, and with it all that follows."""

TICK = 1 / 128
"""The daemon handles events together that it notices within a few milliseconds."""

GOAL = 0.02


class Replay(NamedTuple):
    """Every second job of a week of the trace, up to `length` seconds of it, so many times faster."""

    week: int
    speed_up: float
    length: Seconds = WEEK

    @classmethod
    def parse(cls, text: str) -> Replay:
        """Return the replay of a text like 5@150: the fifth week, 150 times as fast."""
        try:
            week, speed_up = text.split("@")
            return cls(int(week), float(speed_up))
        except ValueError:
            raise ArgumentTypeError(f"{text!r}, expected a week and a speed-up such as 5@150") from None

    def __str__(self) -> str:
        return f"{self.week}@{self.speed_up:g}"

    def jobs(self) -> list[Job]:
        """Return the jobs, in real time."""
        if absent := missing(HELIOS):
            raise SystemExit(absent)
        found = read_trace(TRACES / HELIOS).jobs
        begin = found[0].submitted + (self.week - 1) * WEEK
        chosen = [job for job in found if 0 <= job.submitted - begin < WEEK and _fits(job)][::STRIDE]
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

    def settings(self, policy: str) -> dict[str, Any]:
        """Return the settings of a policy; those that are times are scaled."""
        parameters = signature(type(make_policy(_name(policy)))).parameters
        times = {name: parameter.default for name, parameter in parameters.items() if name.endswith("_seconds")}
        return {name: default / self.speed_up for name, default in times.items()} | SETTINGS[policy]


def _name(policy: str) -> str:
    return policy.partition("-")[0]


REPLAYS = {
    Replay(5, 150.0): ("fifo", "easy", "refold"),
    **{Replay(week, 1000.0): tuple(SETTINGS) for week in (5, 17, 21)},
}
"""Those of the page. In each, the jobs need about two thirds of the slots."""


def _fits(job: Job) -> bool:
    return (job.work or 0.0) <= MAX_DURATION and 1 <= job.demand.total_gpus <= MAX_GPUS


class Waits(NamedTuple):
    """Waiting times in seconds of the trace."""

    mean: Seconds
    median: Seconds
    p99: Seconds


class Lag(NamedTuple):
    """What the daemon adds, in real time: before the replay, and in it.

    `idle_start`: median time of a run beyond that of its command; `start`, `start_mean`, `start_p99`: in the replay.
    `cpu`: share of one core that it used.
    """

    idle_start: Seconds
    start: Seconds
    start_mean: Seconds
    start_p99: Seconds
    cpu: float


class Result(NamedTuple):
    """One policy: played; simulated as recorded, several times, and as predicted before the replay.

    `rounded`: the same with times rounded, so that events coincide that the daemon may handle together. `predicted`:
    jobs arrive as in the trace, and starts take as long as on an idle daemon.
    """

    live: Waits
    simulated: Sequence[Waits]
    rounded: Sequence[Waits]
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
        folder.mkdir(parents=True, exist_ok=True)
        cpu.write_text(str(_play(replay, policy, journal)), encoding="utf-8")
    jobs, (_, history) = replay.jobs(), read_history(journal)
    played = np.array([job.group != WARM_UP_NAME for job in history.jobs.jobs])
    lag = _lag(history, played, jobs, float(cpu.read_text(encoding="utf-8")))

    def simulations(as_recorded: Callable[[History, int], list[Job]]) -> list[Waits]:
        return [simulated(replay, as_recorded(history, seed), policy, played) for seed in range(SIMULATIONS)]

    return Result(
        _waits(history, played, replay.speed_up),
        simulations(_as_recorded),
        simulations(_rounded),
        simulated(replay, jobs, policy, np.ones(len(jobs), dtype=np.bool_), Costs(start=lag.idle_start)),
        lag,
    )


def _as_recorded(history: History, seed: int) -> list[Job]:
    """Return all jobs of a journal with their run times and, except for a random delay, submission times."""
    delay = np.random.default_rng(seed).uniform(0.0, JITTER, len(history.jobs.jobs))
    return _with_times(history, np.maximum.accumulate(history.jobs.submitted + delay), history.time_running)


def _rounded(history: History, seed: int) -> list[Job]:
    """Return the same with both times rounded to ticks, run times up or down at random."""
    random = np.random.default_rng(seed)
    shift, up = random.uniform(0.0, JITTER), random.uniform(size=len(history.jobs.jobs))
    run_time = np.maximum(np.floor(history.time_running / TICK + up), 1.0)
    return _with_times(history, np.ceil((history.jobs.submitted + shift) / TICK) * TICK, run_time * TICK)


def _with_times(history: History, submitted: Floats, run_time: Floats) -> list[Job]:
    times = zip(history.jobs.jobs, submitted.tolist(), run_time.tolist(), strict=True)
    return [replace(job, submitted=at, work=work) for job, at, work in times]


def simulated(replay: Replay, jobs: Sequence[Job], policy: str, chosen: Flags, costs: Costs = NO_COSTS) -> Waits:
    """Return the waits of the chosen jobs in a simulation of all. `costs`: in real time."""
    journal, cluster = HistoryJournal(), make_cluster(SLOTS)
    made = make_policy(_name(policy), replay.settings(policy))
    simulate(jobs, cluster, made, journal=journal, costs=costs)
    return _waits(journal.history(cluster), chosen, replay.speed_up)


def _play(replay: Replay, policy: str, journal: Path) -> float:
    """Play the jobs, save the journal, and return the share of a core that the daemon used."""
    settings = [word for name, value in replay.settings(policy).items() for word in ("--set", f"{name}={value}")]
    with run_daemon("--slots", str(SLOTS), "--policy", _name(policy), *settings) as daemon:
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


def _waits(history: History, chosen: Flags, speed_up: float) -> Waits:
    """Return the waits of jobs that finished; a job that did not is an error."""
    jobs = history.jobs
    if unfinished := describe_unfinished(history):
        raise RuntimeError(unfinished)
    waits = (jobs.first_start - jobs.submitted)[chosen] * speed_up
    median, p99 = np.percentile(waits, (50, 99)).tolist()
    return Waits(float(waits.mean()), median, p99)


def _lag(history: History, played: Flags, jobs: Sequence[Job], cpu: float) -> Lag:
    times = history.time_running
    work = np.array([job.work or 0.0 for job in jobs])
    extra = times[played] - work
    idle = float(np.median(times[~played] - WARM_UP_SECONDS))
    start, start_p99 = np.percentile(extra, (50, 99)).tolist()
    return Lag(idle, start, float(extra.mean()), start_p99, cpu)


def page(found: Mapping[Replay, Mapping[str, Result]]) -> str:
    """Return the page."""
    titles = ("week", "speed-up", "policy", "live, h", "simulated", "range", "difference", "rounded", "prediction")
    results = [(replay, name, result) for replay, by_name in found.items() for name, result in by_name.items()]
    rows = [
        (
            f"{replay.week}",
            f"{replay.speed_up:g}",
            f"`{name}`",
            f"{result.live.mean / HOUR:.3f}",
            f"{result.simulated_mean / HOUR:.3f}",
            _range(result.simulated),
            f"{result.difference:+.2%}",
            _range(result.rounded),
            f"{result.live.mean / result.predicted.mean - 1:+.0%}",
        )
        for replay, name, result in results
    ]
    lag_titles = ("week", "speed-up", "policy", "start, idle", "start, median", "mean", "p99", "CPU of the daemon")
    lags = [
        (
            f"{replay.week}",
            f"{replay.speed_up:g}",
            f"`{name}`",
            *(f"{lag * 1e3:.0f}" for lag in result.lag[:4]),
            f"{result.lag.cpu:.0%}",
        )
        for replay, name, result in results
    ]
    loads = "; ".join(f"week {one.week}: {len(one.jobs()):,} jobs, {_load(one):.0%}" for one in _by_week(found))
    slowest = min(found, key=lambda replay: replay.speed_up)
    fastest = max(found, key=lambda replay: replay.speed_up)
    met, slow_met = (
        sum(abs(result.difference) <= GOAL for replay, _, result in results if replay in chosen)
        for chosen in (found, {slowest})
    )
    return f"""# Weeks of Helios, live and simulated

`python -m benchmarks.live.validation --write` plays weeks of Helios Venus through `refold serve` with {SLOTS} slots,
faster than they happened: each job is a process that sleeps. These are every second of the jobs with at most
{MAX_GPUS} GPUs and {MAX_DURATION / HOUR:g} h ({loads} of the slots). All have a time
limit of {LIMIT_FACTOR:g} times their duration plus {LIMIT_MARGIN:g} s. The settings of `refold` that are times are
divided by the speed-up; jobs are not preemptible.

Live waits are those of the daemon's journal. The simulator gets the same policy and settings, and the submission and
run times of that journal. A submission that is a few milliseconds later can change what is backfilled, and with it the
waits of all later jobs, so each week is simulated {SIMULATIONS} times, with submissions up to {JITTER * 1e3:g} ms
later. The table has the mean of the mean waits, in hours of the trace, and their range. Goal: live within {GOAL:.0%} of
it. Met by {slow_met} of {len(found[slowest])} policies at {slowest.speed_up:g} times the speed, and in
{met} of {len(results)} replays in all.

*Rounded*: the range with all times rounded to {TICK * 1e3:.1f} ms. The daemon handles events together that it notices
within milliseconds; two GPUs that are released together can start a job that two released one after the other do not.
At {fastest.speed_up:g} times the speed, {TICK * 1e3:.1f} ms are {TICK * fastest.speed_up:.1f} s of the trace: such
coincidences are frequent, and the mean wait of `easy`, where one job that is backfilled instead of another changes all
that follow, varies by more than the goal, also with time limits instead of predictions (`easy-limits`).
*Prediction*: live compared with a simulation of the trace itself, with starts as on the idle daemon before.

{markdown(titles, rows)}

What the daemon adds, in milliseconds of real time:

{markdown(lag_titles, lags)}

A start is the time of a run beyond that of its command: starting the process and noticing its end. The policies played
a week at the same time, with other work of lower priority on the same two cores.
"""


def _by_week(replays: Iterable[Replay]) -> Iterable[Replay]:
    """Return one replay of each week."""
    return {replay.week: replay for replay in replays}.values()


def _load(replay: Replay) -> float:
    """Return the part of the slots that the jobs need."""
    needed = sum((job.work or 0.0) * job.demand.gpus for job in replay.jobs()) * replay.speed_up
    return needed / (SLOTS * replay.length)


def _range(simulations: Sequence[Waits]) -> str:
    means = [waits.mean / HOUR for waits in simulations]
    return f"{min(means):.3f}–{max(means):.3f}"


def main() -> None:
    """Play the weeks under each policy and print the page."""
    parser = measurement_parser("benchmarks.live.validation", __doc__, "play the first half day of each week only")
    parser.add_argument("--policy", choices=SETTINGS, action="append", help="one policy; can be repeated")
    parser.add_argument(
        "--replay",
        type=Replay.parse,
        action="append",
        metavar="WEEK@SPEED-UP",
        help=f"one week of the trace, so many times as fast; can be repeated (default: {' '.join(map(str, REPLAYS))})",
    )
    parser.add_argument("--folder", type=Path, help="keep the journals here, and use those that exist")
    options = parser.parse_args()
    found = {}
    with TemporaryDirectory() as temporary, ThreadPoolExecutor() as threads:
        for chosen in options.replay or REPLAYS:
            policies = options.policy or REPLAYS.get(chosen, tuple(SETTINGS))
            replay = chosen._replace(length=DAY / 2) if options.quick else chosen
            folder = (options.folder or Path(temporary)) / str(replay)
            results = threads.map(partial(run, replay, folder=folder), policies)
            found[replay] = dict(zip(policies, results, strict=True))
    numbers = {str(replay): {name: one._asdict() for name, one in by.items()} for replay, by in found.items()}
    publish(options, PAGE, page(found), numbers)


if __name__ == "__main__":
    main()
