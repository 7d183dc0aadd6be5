"""Mixtures of rigid jobs (GPU fractions, several GPU types, tenants with quotas), and jobs of users and tenants.

The traces have no users, and Helios has no tenants, so these are drawn: a job belongs to the same one as the previous
job with probability SESSION, else to a random one, some of which are more active than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from benchmarks.scheduling.unified.slices import SLICES
from benchmarks.scheduling.unified.targets import Target
from benchmarks.scheduling.unified.workload import WITHOUT_FAIR_SHARE, Setup, Workload, feasible, shifted
from benchmarks.workloads import OPENB, trace_slice
from refold.model import Cluster, GpuType, Job, Node, Tenant, mib_from_gib, milli_from_number
from refold.simulator.traces import read_cluster

DRAWS = 3
NOT_KNOWING_DURATIONS = ("fifo", "fifo-skip", "easy", "conservative", "las", "drf", "tiresias")
SESSION = 0.8
USERS_PER_TENANT = 10
HELIOS_TENANTS = 4
OPENB_FIRST, OPENB_TUNING, OPENB_JOBS, OPENB_NODES = 4_000, 2_000, 2_000, 4
LIMITED_SHARE = 0.25
"""The share of jobs that accept only the faster GPU type."""


def draw_groups(count: int, groups: int, rng: np.random.Generator) -> list[int]:
    """Draw the group of each job; groups with low numbers have more jobs."""
    found: list[int] = []
    for _ in range(count):
        stays = bool(found) and rng.random() < SESSION
        found.append(found[-1] if stays else int(groups * rng.random() ** 2))
    return found


def with_tenants(jobs: Sequence[Job], names: Sequence[str], seed: int) -> list[Job]:
    """Return the jobs with random tenants."""
    groups = draw_groups(len(jobs), len(names), np.random.default_rng(seed))
    return [msgspec.structs.replace(job, tenant=names[group]) for job, group in zip(jobs, groups, strict=True)]


def with_users(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return the jobs with random users of their tenants."""
    groups = draw_groups(len(jobs), USERS_PER_TENANT, np.random.default_rng(seed))
    return [msgspec.structs.replace(job, user=f"{job.tenant}-{group}") for job, group in zip(jobs, groups, strict=True)]


def fractions_setup(first: int, draw: int) -> Setup:
    """Return pods of openb, a third of which request a fraction of a GPU, on nodes of its most frequent kind."""
    nodes = [Node(f"g2-{number}", 8, "G2", milli_from_number(96), mib_from_gib(384)) for number in range(OPENB_NODES)]
    cluster = Cluster(tuple(nodes), name="openb")
    return Setup(cluster, shifted(feasible(trace_slice(OPENB, first, OPENB_JOBS), cluster), draw))


def types_setup(first: int, draw: int) -> Setup:
    """Return a slice of Helios on two GPU types, one twice as fast; some jobs accept only that."""
    types = (GpuType("V100"), GpuType("A100", speed=2.0))
    cluster = msgspec.structs.replace(read_cluster("32x8:V100+16x8:A100"), gpu_types=types)
    limited = np.random.default_rng(first).random(len(SLICES["helios"].jobs(first))) < LIMITED_SHARE
    jobs = [
        msgspec.structs.replace(job, demand=msgspec.structs.replace(job.demand, gpu_types=("A100",))) if only else job
        for job, only in zip(SLICES["helios"].jobs(first), limited.tolist(), strict=True)
    ]
    return Setup(cluster, shifted(feasible(jobs, cluster), draw))


def quotas_setup(first: int, draw: int) -> Setup:
    """Return a slice of Helios with two tenants, each with a quota of half of the GPUs."""
    slices = SLICES["helios"]
    tenants = tuple(Tenant(name, slices.cluster.gpus / 2) for name in ("A", "B"))
    jobs = with_tenants(slices.jobs(first), ("A", "B"), seed=first)
    return Setup(msgspec.structs.replace(slices.cluster, tenants=tenants), shifted(jobs, draw))


def fairness_setup(trace: str, first: int, draw: int) -> Setup:
    """Return a slice with users and tenants."""
    slices = SLICES[trace]
    jobs = slices.jobs(first)
    if trace == "helios":
        jobs = with_tenants(jobs, [f"team-{number}" for number in range(HELIOS_TENANTS)], seed=first)
    return Setup(slices.cluster, shifted(with_users(jobs, seed=first), draw))


def mixture_workloads(tuning: bool) -> list[Workload]:
    """Return the mixtures, and the slices on which fairness is measured."""
    helios = SLICES["helios"].tuning[-1] if tuning else SLICES["helios"].reported[0]
    best = (Target("mean", no_worse_than=NOT_KNOWING_DURATIONS),)
    policies = ("refold", *NOT_KNOWING_DURATIONS)
    fair = ("drf", "las")
    fairness = tuple(
        Target(name, no_worse_than=fair) for name in ("jain_users", "jain_tenants", "finish_time_fairness")
    )
    share = (
        Target("finish_time_fairness_p99", at_most=1.5),
        Target("mean", no_worse_than=(WITHOUT_FAIR_SHARE,), factor=1.05),
    )
    return [
        Workload(
            "mixed-fractions", partial(fractions_setup, OPENB_TUNING if tuning else OPENB_FIRST), DRAWS, policies, best
        ),
        Workload("mixed-types", partial(types_setup, helios), DRAWS, policies, best),
        Workload("mixed-tenants", partial(quotas_setup, helios), DRAWS, policies, best),
        *(
            Workload(
                f"fairness-{trace}",
                partial(fairness_setup, trace, slices.tuning[-1] if tuning else slices.reported[0]),
                DRAWS,
                ("refold", WITHOUT_FAIR_SHARE, *fair),
                (*fairness, *share),
                settings={"refold": {"fair_share": 1.0}},
            )
            for trace, slices in SLICES.items()
        ),
    ]
