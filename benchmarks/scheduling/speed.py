"""How fast policies decide: `python -m benchmarks.scheduling.speed [--write] [POLICY …]`.

Two questions. What does it cost to simulate the 406 jobs of the random-plan trace, against Rubick's own simulator? And
how long does one decision take on clusters of 64 to 8,192 GPUs, with an eighth as many jobs running as there are GPUs,
and as many waiting? CPU time of one core, in a fresh process for each policy, compiled kernels loaded before.
`--write` keeps the tables in speed.md beside this file.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import count, islice
from math import log
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import in_fresh_process, peak_memory_bytes
from benchmarks.scheduling import world
from benchmarks.scheduling.gap import made_for_this
from benchmarks.table import Row, as_markdown, at_most, markdown
from refold.core import (
    Entry,
    Event,
    JobCancelled,
    JobSubmitted,
    Policy,
    RunFinished,
    RunStopped,
    Scheduler,
    StopRun,
    View,
    Woke,
)
from refold.model import Cluster, Decision, Job, Seconds
from refold.plans import Speeds
from refold.policies.queueing import FifoSkip
from refold.registry import settings_of
from refold.simulator import Costs, simulate

ARTIFACT_SECONDS, ARTIFACT_BYTES = 80.0, 2.7e9
"""What Rubick's released simulator takes for the same trace: CPU time and memory."""

SIMULATED = ("rubick", "refold")
SIMULATION_GOAL = 1 / 50
TIMES = 3

DECIDING = ("refold", "rubick", "sia", "synergy", "tiresias")
MUST_BE_FAST = ("refold", "rubick")
SIZES = (64, 256, 1024, 4096, 8192)
GPUS_PER_NODE = 8
MOST_JOBS = 1000
"""Jobs that run, and jobs that wait, on the largest cluster; on smaller ones in proportion."""

DECISION_GOAL_SECONDS = 0.2
SEED = 11
LARGE_GPUS = 40
"""Jobs that asked for so many GPUs or more are drawn less often, or a thousand would not fit."""

KEPT_OF_LARGE = 0.25
EVENTS = 5
"""How many jobs come, and how many end, one after the other."""

EVENTS_APART: Seconds = 60.0
"""Between two of them; for a policy that decides in longer rounds, a round."""

MOST_STEPS = 60
ENOUGH_SECONDS = 4.0
"""No more decisions of a sort are measured than take so long."""

KEPT = Path(__file__).with_name("speed.md")

HEADING = """# How fast policies decide

CPU time of one core, in a fresh process for each policy, compiled kernels loaded before.
Made by `python -m benchmarks.scheduling.speed --write`.

## A whole trace

406 jobs on 64 GPUs, with the curves that a policy makes of what it knows; Rubick's artifact takes {seconds:g} s and
{gigabytes:g} GB for the same jobs. Medians of three.

TABLE

## One decision

Jobs are drawn from the same trace, with an hour to a day to do. At {gpus:,} GPUs in nodes of eight, {most:,} run as
they asked to and {most:,} wait, on smaller clusters in proportion; the cluster is full. Then a policy takes over that
knows the speeds of such jobs but has seen nobody of these (*cold*), and has its way until it stops nobody any more.
From then on, a minute or a round apart, jobs come and end one by one (*arrival*, *end*); so many run and wait after the
last of them. Stops take no time, and the decisions that only lead to what was decided before are not counted. Medians.

Goals, for `refold` and `rubick`: 200 ms at {gpus:,} GPUs, and growth no worse than that of n log n: {growth:.0f} ×.

TABLE

"""


class Simulated(NamedTuple):
    """What simulating the trace took."""

    policy: str
    cpu_seconds: float
    peak_bytes: int


class Decided(NamedTuple):
    """CPU seconds of one decision: when a policy first sees everybody, when a job comes, when one ends."""

    gpus: int
    running: int
    waiting: int
    cold: float
    arrival: float
    end: float


# The whole trace.


def simulated(policy: str) -> list[object]:
    """Simulate the trace several times, in this process; the curves that a policy makes are part of it."""
    cluster, jobs = world.cluster(), world.jobs("random-plan")
    world.knowledge()
    _simulate(jobs[:10], cluster, policy)
    return list(Simulated(policy, median(_simulate(jobs, cluster, policy) for _ in range(TIMES)), peak_memory_bytes()))


def _simulate(jobs: Sequence[Job], cluster: Cluster, policy: str) -> float:
    before = time.process_time()
    costs = Costs(restart=78.0, report_every=60.0)
    simulate(jobs, cluster, made_for_this(policy), charge=world.charge(cluster), costs=costs)
    return time.process_time() - before


# One decision.


class Timed:
    """Asks another policy, which may be exchanged, and keeps how long its last answer took."""

    name = "timed"

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.cpu_seconds = 0.0

    def decide(self, view: View) -> Decision:
        """As the other decides."""
        before = time.process_time()
        decision = self.policy.decide(view)
        self.cpu_seconds = time.process_time() - before
        return decision


def drawn(cluster: Cluster, seed: int = SEED) -> Iterator[Job]:
    """Jobs of the trace without end, drawn at random, each with an hour to a day to do on what it asked for."""
    chance = np.random.default_rng(seed)
    speeds = Speeds(cluster, world.knowledge())
    pool = [job for job in world.jobs("random-plan") if job.demand.total_gpus <= cluster.gpus]
    likely = np.array([KEPT_OF_LARGE if job.demand.total_gpus >= LARGE_GPUS else 1.0 for job in pool])
    for number in count():
        like = pool[int(chance.choice(len(pool), p=likely / likely.sum()))]
        steps = int(3600 * 24 ** chance.random() * speeds.asked(like).steps_per_second) + 1
        yield msgspec.structs.replace(like, id=f"job-{number}", submitted=0.0, steps=steps)


class Crowd(NamedTuple):
    """Who runs on a cluster, as asked; who waits; and who comes later."""

    cluster: Cluster
    running: list[Job]
    waiting: list[Job]
    later: list[Job]


def crowd(gpus: int) -> Crowd:
    """Jobs in the order of being drawn: those that fit run until there are enough of them, the others wait."""
    cluster, each = world.cluster(gpus // GPUS_PER_NODE), round(MOST_JOBS * gpus / max(SIZES))
    jobs = drawn(cluster)
    scheduler = Scheduler(cluster, FifoSkip())
    while len(scheduler.view.runs) < each and scheduler.view.free_gpus:
        scheduler.step(0.0, [JobSubmitted(next(jobs))])
    without_place = scheduler.view.waiting.values()
    rest = [*without_place, *islice(jobs, max(0, each + EVENTS - len(without_place)))]
    return Crowd(cluster, list(scheduler.view.active.values()), rest[:each], rest[each : each + EVENTS])


class Busy:
    """A cluster on which a crowd runs as asked, or waits; then a policy takes over."""

    def __init__(self, here: Crowd, policy: Policy, apart: Seconds, begins: Seconds = 0.0) -> None:
        self._apart, self._now = apart, begins
        self._later = list(here.later)
        self._chance = np.random.default_rng(SEED)
        self._timed = Timed(FifoSkip())
        self._scheduler = Scheduler(here.cluster, self._timed)
        self._follow([JobSubmitted(job) for job in here.running])
        self._timed.policy = policy
        self.cold = self._happens([JobSubmitted(job) for job in here.waiting])
        """How long the policy took for everybody, whom it saw for the first time."""
        if self._awaited is not None:
            self._now = self._awaited
            self.cold += self._follow([Woke()])

    def counts(self) -> tuple[int, int]:
        """How many run, and how many wait."""
        return len(self._scheduler.view.runs), len(self._scheduler.view.waiting)

    def arrival(self) -> float:
        """How long the policy takes when one job comes."""
        job = msgspec.structs.replace(self._later.pop(), submitted=self._now + self._apart)
        return self._happens([JobSubmitted(job)])

    def end(self) -> float:
        """How long the policy takes when a job ends, any of those that run."""
        runs = sorted(self._scheduler.view.runs)
        ended = runs[int(self._chance.integers(len(runs)))]
        return self._happens([RunFinished(ended, self._scheduler.view.runs[ended].number)])

    def everybody_leaves(self) -> None:
        """All jobs are withdrawn."""
        view = self._scheduler.view
        self._follow([JobCancelled(job_id) for job_id in [*view.waiting, *view.active]])

    def _happens(self, events: Sequence[Event]) -> float:
        self._now += self._apart
        gc.collect()
        return self._follow([*events, Woke()])

    def _follow(self, events: Sequence[Event]) -> float:
        """A step, and those that follow from it, stops taking no time; how long the first decision took."""
        entry = self._scheduler.step(self._now, events)
        first = self._timed.cpu_seconds
        self._awaited = None if entry.orders else entry.wake_at  # nothing was done, but will be in the next round
        for _ in range(MOST_STEPS):
            stopped = _stopped(entry)
            if not stopped:
                break
            entry = self._scheduler.step(self._now, stopped)
        return first


def _stopped(entry: Entry) -> list[Event]:
    """Who was told to stop has."""
    return [RunStopped(order.job, order.run, 0.0, 0) for order in entry.orders if isinstance(order, StopRun)]


def taken_over(policy: str, here: Crowd) -> Busy:
    """A cluster that a policy has just taken over, which has seen the like before: all speeds are known to it."""
    apart = max(EVENTS_APART, settings_of(policy).get("round_seconds", 0.0))
    running, waiting = ([_earlier(job) for job in jobs] for jobs in (here.running, here.waiting))
    made = made_for_this(policy)
    Busy(Crowd(here.cluster, running, waiting, []), made, apart).everybody_leaves()
    return Busy(here, made, apart, begins=10 * apart)


def _earlier(job: Job) -> Job:
    return msgspec.structs.replace(job, id=f"earlier-{job.id}")


def decided(policy: str, gpus: int) -> Decided:
    """The medians of several decisions of each sort; of slow ones, fewer."""
    here = crowd(gpus)
    busy = taken_over(policy, here)
    cold = [busy.cold]
    while len(cold) < TIMES and sum(cold) < ENOUGH_SECONDS:
        busy = taken_over(policy, here)
        cold.append(busy.cold)
    arrivals, ends = [busy.arrival()], [busy.end()]
    while len(ends) < EVENTS and sum(arrivals + ends) < ENOUGH_SECONDS:
        arrivals.append(busy.arrival())
        ends.append(busy.end())
    return Decided(gpus, *busy.counts(), median(cold), median(arrivals), median(ends))


def decided_at_all_sizes(policy: str) -> list[Decided]:
    """In this process, from the smallest cluster on; the first decisions load what is compiled."""
    taken_over(policy, crowd(SIZES[0])).arrival()
    return [decided(policy, gpus) for gpus in SIZES]


# The report.


def simulation_table(results: Sequence[Simulated]) -> list[Row]:
    """Against Rubick's own simulator."""
    return [
        at_most(
            f"406 jobs, random plans, under {one.policy}",
            one.cpu_seconds / ARTIFACT_SECONDS,
            SIMULATION_GOAL,
            f"{one.cpu_seconds:.2f} s, 1/{ARTIFACT_SECONDS / one.cpu_seconds:.0f} of the artifact's; "
            f"{one.peak_bytes / 1e6:.0f} MB, 1/{ARTIFACT_BYTES / one.peak_bytes:.0f}",
        )
        for one in results
    ]


def decision_table(policy: str, results: Sequence[Decided]) -> list[list[str]]:
    """Three lines for a policy: milliseconds by size, how much that grows, and what is to be said of the largest."""
    lines = []
    for what in ("cold", "arrival", "end"):
        seconds = [float(getattr(one, what)) for one in results]
        lines.append(
            [
                policy,
                what,
                *(_milliseconds(each) for each in seconds),
                f"{seconds[-1] / seconds[0]:.0f} ×",
                _verdict(policy, seconds),
            ]
        )
    counts = [f"{one.running:,} + {one.waiting:,}" for one in results]
    return [*lines, [policy, "run + wait", *counts, "", ""]]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _verdict(policy: str, seconds: Sequence[float]) -> str:
    if policy not in MUST_BE_FAST:
        return ""
    in_time = seconds[-1] <= DECISION_GOAL_SECONDS
    grows = seconds[-1] / seconds[0] <= n_log_n()
    missed = [words for words, met in (("time", in_time), ("growth", grows)) if not met]
    return f"**{' and '.join(missed)} missed**" if missed else "met"


def n_log_n() -> float:
    """By how much n log n grows from the smallest cluster to the largest."""
    return max(SIZES) * log(max(SIZES)) / (min(SIZES) * log(min(SIZES)))


def report(policies: Sequence[str]) -> str:
    """The page that is kept."""
    this = import_module("benchmarks.scheduling.speed")  # by this name the other process can find it
    simulations = [Simulated(*in_fresh_process(this.simulated, name)) for name in policies if name in SIMULATED]
    decisions: list[list[str]] = []
    for name in policies:
        answers = in_fresh_process(this.decided_at_all_sizes, name)
        decisions += decision_table(name, [Decided(*answer) for answer in answers])
    titles = ("policy", "ms of CPU time", *(f"{gpus:,} GPUs" for gpus in SIZES), "growth", "")
    heading = HEADING.format(
        seconds=ARTIFACT_SECONDS, gigabytes=ARTIFACT_BYTES / 1e9, most=MOST_JOBS, gpus=max(SIZES), growth=n_log_n()
    )
    first, second, _ = heading.split("TABLE\n")
    return f"{first}{as_markdown(simulation_table(simulations))}\n{second}{markdown(titles, decisions)}\n"


def main() -> None:
    """Print the tables; keep them with --write."""
    if data_folder() is None:
        print("the published tables are not here: nothing is known of the models (see benchmarks/README.md)")
        return
    text = report([word for word in sys.argv[1:] if not word.startswith("--")] or DECIDING)
    print(text)
    if "--write" in sys.argv[1:]:
        KEPT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
