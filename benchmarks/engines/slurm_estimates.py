"""Start estimates for Slurm's own queue, beside those of `squeue --start`, on a trace that a real Slurm runs.

Slurm schedules alone, with multifactor priorities, licences, limits of a QOS, arrays, dependencies, and exclusive or
named nodes. Snapshots of its queue are taken as `refold snapshot --from slurm` takes them. When all jobs have ended,
the start estimates of each snapshot are compared with what happened. Times are divided by the speed-up.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.engines.slurm_trace import slurm_scheduler
from benchmarks.workloads import PHILLY, missing, trace_slice
from refold.engines.slurm import Programs, SlurmSnapshot, observe_slurm
from refold.engines.slurm.programs import Run
from refold.model import HOUR, Job, Seconds
from refold.simulator import OTHER_SCHEDULER, StateAt, continue_with_new_policy, simulate_futures
from refold.simulator.registry import make_policy

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_accounting import SlurmWithAccounting  # noqa: E402

NODES, GPUS = 4, 8
FIRST, STRIDE = 64_000, 4
"""All jobs of several GPUs from here on, and every fourth with one. Ranges were calibrated on those from 56,000 on."""

MAX_DURATION: Seconds = 4 * HOUR
LOAD = 0.95
"""Submissions are closer together than in the trace, so that this part of all GPU hours is requested."""

POPULAR_LIMITS = [hours * HOUR for hours in (1, 2, 4, 8, 12, 24)]
"""What users ask for. The trace has no time limits."""

SNAPSHOT_SECONDS = 30.0
FUTURES = 20
SETTINGS = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "PriorityWeightAge": "1000",
    "PriorityWeightFairshare": "2000",
    "PriorityWeightJobSize": "500",
    "PriorityWeightQOS": "1000",
    "PriorityCalcPeriod": "1",
    "Licenses": "solver:3",
}
CAPPED = "small"
"""A QOS whose jobs have at most so many GPUs at once."""
CAPPED_GPUS = 6


class Submission(NamedTuple):
    """A job of the trace in real time, and further options of sbatch. `after`: the job that it depends on."""

    job: Job
    limit_minutes: int
    options: tuple[str, ...]
    after: str = ""
    tasks: int = 0


def submissions(count: int, speed_up: float, first: int = FIRST, seed: int = 0) -> list[Submission]:
    """Return the jobs of the replay; some have a licence, a capped QOS, a dependency, array tasks or named nodes."""
    if absent := missing(PHILLY):
        raise SystemExit(absent)
    chosen: list[Job] = []
    singles = 0
    for job in trace_slice(PHILLY, first, 5 * count):
        gpus = job.demand.instances * job.demand.gpus
        singles += gpus == 1
        if (job.work or 0.0) <= MAX_DURATION and gpus <= NODES * GPUS and (gpus > 1 or singles % STRIDE == 0):
            chosen.append(job)
    return list(_submissions(chosen[:count], speed_up, random.Random(seed)))


def _submissions(jobs: Sequence[Job], speed_up: float, chance: random.Random) -> Iterator[Submission]:
    last: dict[str, str] = {}
    requested = sum(job.demand.total_gpus * (job.work or 0.0) for job in jobs)
    faster = speed_up * jobs[-1].submitted * LOAD * NODES * GPUS / requested
    for number, job in enumerate(jobs):
        limits = [limit for limit in POPULAR_LIMITS if limit >= 1.1 * (job.work or 0.0)]
        limit = limits[min(len(limits) - 1, chance.choice((0, 0, 0, 1, 1, 2, 5)))]
        options, after, tasks = _options(job, chance), "", 0
        if chance.random() < 0.08:
            after = last.get(job.tenant, "")
        elif chance.random() < 0.04:
            tasks = 4
        last[job.tenant] = f"j{number}"
        work = max(1.0, (job.work or 0.0) / speed_up)
        named = Job(f"j{number}", job.submitted / faster, job.demand, work, job.tenant)
        yield Submission(named, max(1, ceil(limit / speed_up / 60)), options, after, tasks)


def _options(job: Job, chance: random.Random) -> tuple[str, ...]:
    drawn = chance.random()
    if drawn < 0.08:
        return ("--licenses=solver:1",)
    if drawn < 0.18:
        return (f"--qos={CAPPED}",) if job.demand.total_gpus <= CAPPED_GPUS else ()
    if drawn < 0.20:
        return ("--exclusive",)
    if drawn < 0.24:
        return (f"--nodelist=n{chance.randrange(NODES)}",)
    return ("--qos=urgent",) if drawn < 0.28 else ()


class Replayed(NamedTuple):
    """Snapshots of the queue, and when each job of Slurm started."""

    snapshots: list[SlurmSnapshot]
    starts: dict[str, Seconds]


def replay(jobs: Sequence[Submission], speed_up: float) -> Replayed:
    """Run the jobs on a Slurm of their own, and observe its queue meanwhile."""
    slurm = SlurmWithAccounting(NODES, GPUS, scheduler=slurm_scheduler(speed_up), settings=slurm_settings(speed_up))
    try:
        slurm.start()
        _add_accounts(slurm, {each.job.tenant for each in jobs})
        return _play(slurm, jobs, Programs(slurm.environment).run)
    finally:
        slurm.stop()


def slurm_settings(speed_up: float) -> dict[str, str]:
    """Return weights of priorities, and their times, scaled."""
    minutes = max(1, round(7 * 24 * 60 / speed_up))
    return {**SETTINGS, "PriorityMaxAge": str(minutes), "PriorityDecayHalfLife": str(minutes)}


def _add_accounts(slurm: SlurmWithAccounting, accounts: set[str]) -> None:
    run, names = partial(slurm.run, "sacctmgr", "--immediate"), sorted(accounts)
    run("add", "qos", CAPPED, f"GrpTRES=gres/gpu={CAPPED_GPUS}")
    run("add", "qos", "urgent", "Priority=10")
    for share, name in enumerate(names, start=1):
        run("add", "account", name, "cluster=refold-test", f"Fairshare={share}", f"QOS=normal,{CAPPED},urgent")
        run("add", "user", slurm.user, f"account={name}", "cluster=refold-test")
    slurm.wait_until(
        lambda: all(name in slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc") for name in names), "associations"
    )


def _play(slurm: SlurmWithAccounting, jobs: Sequence[Submission], run: Run) -> Replayed:
    """Submit each job when it is due, and take snapshots until all have ended."""
    began, ids, snapshots = time.time(), dict[str, str](), list[SlurmSnapshot]()
    observed, left = began, [*reversed(jobs)]
    while left or "|" in slurm.run("squeue", "--noheader", "--format=|%i"):
        while left and began + left[-1].job.submitted <= time.time():
            each = left.pop()
            ids[each.job.id] = _submit(slurm, each, ids)
        if time.time() >= observed + SNAPSHOT_SECONDS:
            observed = time.time()
            snapshots.append(observe_slurm(run, HOUR))
        time.sleep(0.1)
    time.sleep(2.0)  # slurmdbd
    since = f"--starttime={datetime.fromtimestamp(began):%Y-%m-%dT%H:%M:%S}"  # else since midnight
    words = ("--allusers", "--allocations", "--noheader", "--parsable2", since, "--format=JobID,Start")
    rows = run("sacct", *words).splitlines()
    starts = {name: float(start) for name, start in (row.split("|") for row in rows) if start.isdecimal()}
    return Replayed(snapshots, starts)


def _submit(slurm: SlurmWithAccounting, each: Submission, ids: dict[str, str]) -> str:
    """Submit a job; return its id."""
    demand = each.job.demand
    found = slurm.run(
        "sbatch",
        "--parsable",
        f"--account={each.job.tenant}",
        "--job-name=train",
        f"--nodes={demand.instances}",
        f"--ntasks={demand.instances}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{demand.gpus}",
        "--cpus-per-task=1",
        "--mem=100M",
        f"--time={each.limit_minutes}",
        "--output=/dev/null",
        *([f"--dependency=afterany:{ids[each.after]}"] if each.after in ids else []),
        *([f"--array=0-{each.tasks - 1}%2"] if each.tasks else []),
        *each.options,
        "--wrap",
        f"exec sleep {each.job.work:.2f}",
    )
    return found.strip()


class Estimate(NamedTuple):
    """Estimates for a waiting job, and when it started, in seconds since the snapshot. `slurm`: None if it had none."""

    job: str
    ours: Seconds
    soonest: Seconds
    latest: Seconds
    slurm: Seconds | None
    actual: Seconds

    @property
    def is_inside(self) -> bool:
        """Whether the job started in the range; Slurm records whole seconds."""
        return self.soonest - 1.0 <= self.actual <= self.latest + 1.0


def estimates_of(snapshot: SlurmSnapshot, starts: Mapping[str, Seconds], futures: int) -> list[Estimate]:
    """Return the estimates for the jobs that wait in a snapshot and have started later."""
    header, entry = snapshot.header, snapshot.entry
    state = StateAt.from_entries(header.cluster, [entry])
    waiting = [job for job in state.view.waiting if job in starts]
    if not waiting:
        return []
    make_scheduler = continue_with_new_policy(
        state, header.cluster, lambda: [entry], lambda: make_policy(header.policy, header.settings)
    )
    found = simulate_futures(state, make_scheduler, futures=futures, job_ids=waiting, factors=OTHER_SCHEDULER)
    estimates = []
    for job in waiting:
        ours, other = found.start(job), state.view.start_estimate(job)
        if ours is None or ours.soonest is None:
            continue
        now, latest = entry.now, inf if ours.latest is None else ours.latest
        slurm = None if other is None else other.at - now
        estimates.append(Estimate(job, ours.at - now, ours.soonest - now, latest - now, slurm, starts[job] - now))
    return estimates


def estimate_table(found: Sequence[Sequence[Estimate]], jobs: int) -> list[str]:
    """Return a Markdown table: the first estimate for each job, and those of all snapshots."""
    first: dict[str, Estimate] = {}
    for estimates in found:
        for each in estimates:
            first.setdefault(each.job, each)
    lines = [
        f"{jobs} jobs of Philly, {len(first)} of which waited in one of {len(found)} snapshots; seconds of the replay",
        "",
        "| | estimates | within the range | mean error, s | `squeue --start`, s | ratio | median error, s | "
        "`squeue --start`, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in (("first of each job", [*first.values()]), ("all", [each for some in found for each in some])):
        lines.append(f"| {name} | {_measures(rows)} |")
    return lines


def _measures(rows: Sequence[Estimate]) -> str:
    both = [(abs(each.ours - each.actual), abs(each.slurm - each.actual)) for each in rows if each.slurm is not None]
    ours, slurm = ([pair[side] for pair in both] for side in (0, 1))
    inside = sum(each.is_inside for each in rows) / len(rows)
    errors = f"{mean(ours):.0f} | {mean(slurm):.0f} | {mean(ours) / mean(slurm):.2f}"
    return (
        f"{len(rows):,} ({len(both):,} by Slurm) | {inside:.0%} | {errors} | {median(ours):.0f} | {median(slurm):.0f}"
    )


def measure_estimates(jobs: int, speed_up: float) -> list[str]:
    """Run the jobs on Slurm, make the estimates, and return a table."""
    replayed = replay(submissions(jobs, speed_up), speed_up)
    found = [estimates_of(snapshot, replayed.starts, FUTURES) for snapshot in replayed.snapshots]
    return estimate_table(found, jobs)
