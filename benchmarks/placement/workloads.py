"""The pods, tasks and nodes of the placement benchmarks.

openb as in the experiments of FGD's authors (ATC'23): pods in random order, repeated until they request 130 % of the
GPUs; no pod ever leaves. openb lists 1,523 nodes, of which 1,213 have GPUs. The authors' scripts name a list of the
latter, but their published figures are reproduced with all nodes.

PAI: the published sample enlarged to full load. It has the total number of GPUs of a task, rounded up. Here a task of n
GPUs is a gang of n instances with one GPU each; the request of an instance (share of a GPU, CPUs, memory) is that of a
random openb pod with one GPU, drawn once per task.
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
from refold.placement import Placer
from refold.simulator.traces import Trace, enlarge, read_cluster, read_trace

VARIANTS = ("default", "gpushare40", "gpushare100", "gpuspec33", "multigpu30")
"""Pod lists of openb: original; 40 % and 100 % of GPU pods share GPUs; 33 % require GPU types; 30 % multi-GPU."""

GREEDY = ("first-fit", "round-robin", "tetris", "best-fit", "worst-fit", "random", "fgd")
GENETIC = ("genetic-paper", "genetic")
OURS = ("worth", *GENETIC)
RULES = (*GREEDY, *OURS)
"""Placement rules to compare, as far as they exist."""

SATURATION_LOAD = 1.3
PAI_SAMPLE = 0.082
"""Share of all tasks that the PAI file contains."""


def missing_data() -> str:
    """Return a message if the published traces are not available; empty if they are."""
    return "" if data_folder() else "the published traces are not available (see benchmarks/README.md)"


def _file(name: str) -> Path:
    folder = data_folder()
    assert folder is not None, missing_data()
    return folder / name


@cache
def openb(only_gpu_nodes: bool = False) -> Cluster:
    """Return the cluster of openb, with all nodes or only those with GPUs."""
    cluster = read_cluster(_file("openb/openb_node_list_all_node.csv.gz"))
    if not only_gpu_nodes:
        return cluster
    return msgspec.structs.replace(cluster, nodes=tuple(node for node in cluster.nodes if node.gpus))


@cache
def pods(variant: str = "default") -> tuple[Job, ...]:
    """Return the pods of a variant of openb."""
    return read_trace(_file(f"openb/openb_pod_list_{variant}.csv.gz")).jobs


def stream(jobs: Sequence[Job], gpu_milli: int, seed: int) -> list[Job]:
    """Return pods in random order, repeated in new random orders until they request `gpu_milli` in total."""
    rng = np.random.default_rng(seed)
    drawn: list[Job] = []
    requested = 0
    while True:
        for index in rng.permutation(len(jobs)).tolist():
            if requested >= gpu_milli:
                return drawn
            drawn.append(jobs[index])
            requested += jobs[index].demand.total_gpu_milli


def count_requesting(arrivals: Sequence[Job], gpu_milli: int) -> int:
    """Return how many of the first arrivals together request `gpu_milli`."""
    requested = 0
    for count, job in enumerate(arrivals):
        if requested >= gpu_milli:
            return count
        requested += job.demand.total_gpu_milli
    return len(arrivals)


def observed(placer: Placer, cluster: Cluster, jobs: Sequence[Job]) -> Placer:
    """Let a placer observe all pods before the first arrives, as FGD's authors do, so that it knows typical pods."""
    placer.observe(SimpleNamespace(cluster=cluster, changes=SimpleNamespace(submitted=jobs)))
    return placer


# --- over a day -----------------------------------------------------------------------------------------------

NODE_STRIDE = 4
"""Days are simulated on every fourth node with a fourth of the tasks: at full load, tasks with thousands of different
requests wait, and each is tried again whenever a task ends."""

DURATION_FACTOR = 4.0
"""Factor on the durations of openb pods in `openb_days`."""


def _every_fourth(cluster: Cluster) -> Cluster:
    with_gpus = [node for node in cluster.nodes if node.gpus]
    return msgspec.structs.replace(cluster, nodes=tuple(with_gpus[::NODE_STRIDE]))


@cache
def pai_nodes() -> Cluster:
    """Return every fourth of the PAI nodes with GPUs."""
    return _every_fourth(read_cluster(_file("traces/nodes_pai2020.csv.gz")))


@cache
def openb_nodes() -> Cluster:
    """Return every fourth of the openb nodes with GPUs."""
    return _every_fourth(openb())


@cache
def _pai_sample() -> Trace:
    return read_trace(_file("traces/jobs_pai2020_sub60k.csv.gz"), gpus_per_instance=1)


def pai(first_day: int, days: int, seed: int, load: float = 1.0, sharing: float | None = None) -> tuple[Job, ...]:
    """Return the PAI tasks submitted on some days, enlarged to `load` times the full load of `pai_nodes`.

    `sharing`: the share of tasks that use a fraction of a GPU; None: as among the one-GPU pods of openb.
    """
    begin, end = first_day * DAY, (first_day + days) * DAY
    sample = replace(_pai_sample(), jobs=tuple(job for job in _pai_sample().jobs if begin <= job.submitted < end))
    jobs = enlarge(sample, load / PAI_SAMPLE / NODE_STRIDE, seed=seed).jobs
    demands = _draw_demands(len(jobs), np.random.default_rng([seed, 1]), sharing)
    shifted = [_with_demand(job, demand, begin) for job, demand in zip(jobs, demands, strict=True)]
    return tuple(sorted(shifted, key=lambda job: job.submitted))


def _with_demand(job: Job, instance: Demand, begin: float) -> Job:
    """Return the job with the request of one instance replaced, and times relative to `begin`."""
    demand = msgspec.structs.replace(instance, instances=job.demand.instances)
    return msgspec.structs.replace(job, demand=demand, submitted=max(0.0, job.submitted - begin))


def _draw_demands(count: int, rng: np.random.Generator, sharing: float | None) -> list[Demand]:
    """Return the requests of `count` random openb pods with one GPU."""
    # The GPU types of PAI have other names, so requests for GPU types are dropped.
    one_gpu = [msgspec.structs.replace(job.demand, gpu_types=()) for job in pods() if job.demand.gpus == 1]
    if sharing is None:
        return [one_gpu[index] for index in rng.integers(len(one_gpu), size=count).tolist()]
    shared = [demand for demand in one_gpu if demand.gpu_milli < WHOLE]
    whole = [demand for demand in one_gpu if demand.gpu_milli == WHOLE]
    kinds = [shared if draw < sharing else whole for draw in rng.random(count).tolist()]
    return [kind[int(draw * len(kind))] for kind, draw in zip(kinds, rng.random(count).tolist(), strict=True)]


def openb_days(days: int, seed: int, load: float = 1.0) -> tuple[Job, ...]:
    """Return random openb pods, submitted at random times of some days, until they request `load` times the GPUs.

    In the trace, pods arrive over 149 days and request 0.2 % of the GPUs; a few run for months. Here each runs four
    times as long as in the trace, but at most a day.
    """
    rng = np.random.default_rng([seed, 2])
    target = load * days * DAY * openb_nodes().gpus
    drawn: list[tuple[Job, float]] = []
    requested = 0.0
    while requested < target:
        job = pods()[int(rng.integers(len(pods())))]
        work = min(DURATION_FACTOR * (job.work or 0.0), DAY)
        drawn.append((job, work))
        requested += job.demand.total_gpus * work
    times = np.sort(rng.uniform(0.0, days * DAY, len(drawn))).tolist()
    return tuple(
        msgspec.structs.replace(job, id=f"{job.id}.{number}", submitted=at, work=work)
        for number, ((job, work), at) in enumerate(zip(drawn, times, strict=True))
    )
