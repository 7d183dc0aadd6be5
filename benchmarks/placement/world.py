"""The pods, tasks and nodes of the placement benchmarks.

openb as FGD's authors play it (ATC'23): pods in an order drawn by a seed, repeated until they ask for 130 % of the
GPUs, none of which ever leaves. openb lists 1,523 nodes, of which 1,213 have GPUs; the authors' scripts name a list of
the latter, but their published figures are met on all of them.

PAI: the published sample enlarged to full load. It says how many GPUs a task has in all, rounded up. Here a task
of n GPUs is a gang of n instances of one GPU each, and what one instance needs (the share of a GPU, CPUs, memory) is
that of an openb pod of one GPU, drawn once for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np

from benchmarks.accuracy.tables import data_folder
from refold.model import DAY, WHOLE, Cluster, Demand, Job
from refold.packing import Placer
from refold.traces import Trace, enlarge, read_cluster, read_trace

VARIANTS = ("default", "gpushare40", "gpushare100", "gpuspec33", "multigpu30")
"""openb's pods as they were; with 40 % and 100 % of GPU pods sharing; 33 % bound to types; 30 % of several GPUs."""

GREEDY = ("first-fit", "round-robin", "tetris", "best-fit", "worst-fit", "random", "fgd")
GENETIC = ("genetic-paper", "genetic")
OURS = ("worth", *GENETIC)
RULES = (*GREEDY, *OURS)
"""Whoever is compared, where there is such a rule."""

SATURATED = 1.3
PAI_SAMPLE = 0.082
"""The part of all tasks that the PAI file holds."""


def why_not() -> str:
    """Why nothing can be measured here; empty if it can."""
    return "" if data_folder() else "the published traces are not here (see benchmarks/README.md)"


def _file(name: str) -> Path:
    folder = data_folder()
    assert folder is not None, why_not()
    return folder / name


@cache
def openb(only_gpu_nodes: bool = False) -> Cluster:
    """The nodes of openb: those with GPUs, or all of them."""
    everything = read_cluster(_file("openb/openb_node_list_all_node.csv.gz"))
    if not only_gpu_nodes:
        return everything
    return msgspec.structs.replace(everything, nodes=tuple(node for node in everything.nodes if node.gpus))


@cache
def pods(variant: str = "default") -> tuple[Job, ...]:
    """The pods of one variant of openb."""
    return read_trace(_file(f"openb/openb_pod_list_{variant}.csv.gz")).jobs


def stream(jobs: Sequence[Job], gpu_milli: int, seed: int) -> list[Job]:
    """Pods in an order drawn by a seed, again and again in another, until they ask for so much GPU in all."""
    chance = np.random.default_rng(seed)
    drawn: list[Job] = []
    asked = 0
    while True:
        for index in chance.permutation(len(jobs)).tolist():
            if asked >= gpu_milli:
                return drawn
            drawn.append(jobs[index])
            asked += jobs[index].demand.total_gpu_milli


def first_asking_for(arrivals: Sequence[Job], gpu_milli: int) -> int:
    """How many of the first arrivals ask for so much GPU in all."""
    asked = 0
    for count, job in enumerate(arrivals):
        if asked >= gpu_milli:
            return count
        asked += job.demand.total_gpu_milli
    return len(arrivals)


def told(placer: Placer, cluster: Cluster, jobs: Sequence[Job]) -> Placer:
    """A placer that has been told what is typical, as FGD's authors tell it: all pods, before the first arrives."""
    placer.observe(SimpleNamespace(cluster=cluster, changes=SimpleNamespace(submitted=jobs)))
    return placer


# --- over a day -----------------------------------------------------------------------------------------------

EVERY = 4
"""Days are played on every fourth node, with a fourth of the tasks: thousands of kinds of tasks wait at full load, and
each is tried again whenever a task ends."""

LONGER = 4.0
"""openb's pods last so many times as long in `openb_days`, and at most a day."""


def _every_fourth(cluster: Cluster) -> Cluster:
    with_gpus = [node for node in cluster.nodes if node.gpus]
    return msgspec.structs.replace(cluster, nodes=tuple(with_gpus[::EVERY]))


@cache
def pai_nodes() -> Cluster:
    """Every fourth of the nodes of PAI that have GPUs."""
    return _every_fourth(read_cluster(_file("traces/nodes_pai2020.csv.gz")))


@cache
def openb_nodes() -> Cluster:
    """Every fourth of the nodes of openb that have GPUs."""
    return _every_fourth(openb())


@cache
def _pai_sample() -> Trace:
    return read_trace(_file("traces/jobs_pai2020_sub60k.csv.gz"), gpus_per_instance=1)


def pai(first_day: int, days: int, seed: int, load: float = 1.0, sharing: float | None = None) -> tuple[Job, ...]:
    """The tasks that PAI's users submitted on some days, enlarged to the full load of `pai_nodes`, or `load` times it.

    `sharing`: which part of the tasks takes a share of a GPU; None: as many as of openb's pods of one GPU.
    """
    begin, end = first_day * DAY, (first_day + days) * DAY
    sample = replace(_pai_sample(), jobs=tuple(job for job in _pai_sample().jobs if begin <= job.submitted < end))
    jobs = enlarge(sample, load / PAI_SAMPLE / EVERY, seed=seed).jobs
    needs = _drawn_needs(len(jobs), np.random.default_rng([seed, 1]), sharing)
    moved = [_with_need(job, need, begin) for job, need in zip(jobs, needs, strict=True)]
    return tuple(sorted(moved, key=lambda job: job.submitted))


def _with_need(job: Job, need: Demand, begin: float) -> Job:
    demand = msgspec.structs.replace(need, instances=job.demand.instances)
    return msgspec.structs.replace(job, demand=demand, submitted=max(0.0, job.submitted - begin))


def _drawn_needs(count: int, chance: np.random.Generator, sharing: float | None) -> list[Demand]:
    """For each task, what a random openb pod of one GPU needs."""
    # PAI's GPU types have other names: nobody asks for one.
    one_gpu = [msgspec.structs.replace(job.demand, gpu_types=()) for job in pods() if job.demand.gpus == 1]
    if sharing is None:
        return [one_gpu[index] for index in chance.integers(len(one_gpu), size=count).tolist()]
    shared = [need for need in one_gpu if need.gpu_milli < WHOLE]
    whole = [need for need in one_gpu if need.gpu_milli == WHOLE]
    kinds = [shared if draw < sharing else whole for draw in chance.random(count).tolist()]
    return [kind[int(draw * len(kind))] for kind, draw in zip(kinds, chance.random(count).tolist(), strict=True)]


def openb_days(days: int, seed: int, load: float = 1.0) -> tuple[Job, ...]:
    """openb's pods in a drawn order, again and again, at random times of some days, until they ask for `load`.

    In the trace they come over 149 days and ask for 0.2 % of the GPUs; a few last for months. Here each lasts four
    times as long as there, and at most a day.
    """
    chance = np.random.default_rng([seed, 2])
    wanted = load * days * DAY * openb_nodes().gpus
    drawn: list[tuple[Job, float]] = []
    asked = 0.0
    while asked < wanted:
        job = pods()[int(chance.integers(len(pods())))]
        work = min(LONGER * (job.work or 0.0), DAY)
        drawn.append((job, work))
        asked += job.demand.total_gpus * work
    times = np.sort(chance.uniform(0.0, days * DAY, len(drawn))).tolist()
    return tuple(
        msgspec.structs.replace(job, id=f"{job.id}.{turn}", submitted=at, work=work)
        for turn, ((job, work), at) in enumerate(zip(drawn, times, strict=True))
    )
