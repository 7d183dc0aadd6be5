"""One simulation, what came out of it, and many of them: in two processes, each kept under build/ once it is done."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.backfill.world import CONTENDERS, Contender, Workload
from benchmarks.measure import REPOSITORY
from benchmarks.placement.kept import say
from refold.journal import History, HistoryJournal
from refold.model import Job
from refold.packing import Ints
from refold.results import Spread, StartEstimateGroup, measure, spread_of
from refold.simulator import Costs, simulate

KEPT = REPOSITORY / "build" / "backfill"
PROCESSES = 2
COSTS = Costs(restart=60.0)
"""Whoever is stopped does no work for so long when it starts again."""

WARMED_BY = 200
"""So many jobs are played before time is measured: kernels are loaded then."""

OWN_LATER = 1.5
"""Where hardly anybody waits there is less to be learned: those runs come later, by so many ranks."""

ONE, SEVERAL, WHOLE_NODES = "one GPU", "several GPUs", "whole nodes"
SIZES = (ONE, SEVERAL, WHOLE_NODES)
WHOLE_NODE = 8


class Run(msgspec.Struct, frozen=True):
    """A policy on a workload."""

    workload: Workload
    contender: Contender


class Outcome(msgspec.Struct, frozen=True):
    """What came out. Times are seconds; `stamp` is of the sources that it came out of."""

    jobs: int
    waiting: Spread
    slowdown: Spread
    sizes: dict[str, Spread]
    passed_over: Spread
    promises: StartEstimateGroup | None
    preemptions: int
    overhead_gpu_hours: float
    gpu_hours: float
    cpu_seconds: float
    stamp: str


Outcomes = Mapping[Run, Outcome]


def run(asked: Run) -> Outcome:
    """Play it from the first arrival to the last end."""
    jobs, cluster = asked.workload.jobs(asked.contender.wants_limits), asked.workload.cluster
    simulate(jobs[:WARMED_BY], cluster, asked.contender.make(), journal=HistoryJournal(), costs=COSTS)
    journal = HistoryJournal()
    began = time.process_time()
    simulate(jobs, cluster, asked.contender.make(), journal=journal, costs=COSTS)
    seconds = time.process_time() - began
    history = journal.history(cluster)
    found = measure(history)
    return Outcome(
        found.jobs,
        found.waiting,
        found.slowdown,
        _waiting_by_size(history),
        found.passed_over,
        found.promises.all if found.promises else None,
        found.preemptions,
        found.overhead_gpu_hours,
        found.gpu_hours,
        seconds,
        stamp(),
    )


def size_of(job: Job) -> int:
    """Which of SIZES a job has; a gang of parts of nodes has several GPUs, however many they are."""
    if job.demand.gpus >= WHOLE_NODE:
        return 2
    return int(job.demand.total_gpus > 1)


def _waiting_by_size(history: History) -> dict[str, Spread]:
    sizes: Ints = np.array([size_of(job) for job in history.jobs.jobs], dtype=np.int64)
    waiting = np.maximum(history.jobs.ended - history.jobs.submitted - history.time_running, 0.0)
    return {name: spread_of(waiting[sizes == number]) for number, name in enumerate(SIZES)}


def outcomes(
    workloads: Sequence[Workload], contenders: Sequence[Contender] = CONTENDERS, again: bool = False
) -> Outcomes:
    """Of every policy on every workload; what is kept is not run again, unless asked. Progress is told on stderr."""
    asked = [Run(workload, contender) for workload in workloads for contender in contenders]
    missing = [one for one in asked if again or not _path(one).exists()]
    missing.sort(key=lambda one: one.contender.rank + (0 if one.workload.busy else OWN_LATER))
    KEPT.mkdir(parents=True, exist_ok=True)
    for done, (one, outcome) in enumerate(_computed(missing), start=1):
        _path(one).write_bytes(msgspec.json.encode(outcome))
        say(f"{done}/{len(missing)}  {one.workload.title}  {one.contender.name}  {outcome.cpu_seconds:.0f} s")
    return kept(workloads, contenders)


def kept(workloads: Sequence[Workload], contenders: Sequence[Contender] = CONTENDERS) -> Outcomes:
    """What has been kept so far; says so where it came out of other sources than those of today."""
    asked = [Run(workload, contender) for workload in workloads for contender in contenders]
    found = {one: msgspec.json.decode(_path(one).read_bytes(), type=Outcome) for one in asked if _path(one).exists()}
    old = sum(outcome.stamp != stamp() for outcome in found.values())
    if old:
        say(f"{old} of {len(found)} kept runs came out of other sources than those of today; --again runs all again")
    return found


def _computed(asked: Sequence[Run]) -> Iterable[tuple[Run, Outcome]]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        begun = {pool.submit(run, one): one for one in asked}
        for answer in as_completed(begun):
            yield begun[answer], answer.result()


def _path(asked: Run) -> Path:
    contender = asked.contender.name.replace(", ", "_").replace(" ", "-")
    return KEPT / f"{asked.workload.key}-{contender}.json"


@cache
def stamp() -> str:
    """A hash of the sources that a run depends on."""
    rooms = ("model", "predict", "packing", "core", "policies", "simulator", "results", "plans")
    files = sorted(path for room in rooms for path in (REPOSITORY / "src" / "refold" / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
