"""Start estimates for Slurm's own queue, beside those of `squeue --start`, on a trace that a real Slurm runs.

Slurm schedules alone: multifactor priorities, backfill, licences, limits of a QOS, arrays, dependencies, exclusive nodes.
Snapshots of its queue are taken as `refold snapshot --from slurm` takes them. When all jobs have ended, the
start estimates of each snapshot are compared with what happened. Times are divided by the speed-up.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple

from benchmarks.engines.slurm_trace import slurm_scheduler
from benchmarks.workloads import PHILLY, missing, trace_slice
from refold.engines.slurm import Programs, SlurmSnapshot, observe_slurm
from refold.engines.slurm.programs import Run
from refold.model import HOUR, Job, Seconds

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_accounting import SlurmWithAccounting  # noqa: E402

NODES, GPUS = 4, 8
FIRST, STRIDE = 56_000, 4
"""All jobs of several GPUs from here on, and every fourth with one: there, one in seven has several."""

MAX_DURATION: Seconds = 4 * HOUR
LOAD = 0.95
"""Submissions are closer together than in the trace, so that this part of all GPU hours is requested."""

POPULAR_LIMITS = [hours * HOUR for hours in (1, 2, 4, 8, 12, 24)]
"""What users ask for. The trace has no time limits."""

SNAPSHOT_SECONDS = 10.0
ACCOUNTS = 4
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


def submissions(count: int, speed_up: float, seed: int = 0) -> list[Submission]:
    """Return the jobs of the replay; some have a licence, a capped QOS, a dependency, array tasks or named nodes."""
    if absent := missing(PHILLY):
        raise SystemExit(absent)
    chosen: list[Job] = []
    singles = 0
    for job in trace_slice(PHILLY, FIRST, 5 * count):
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
