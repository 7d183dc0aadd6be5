"""Factories of jobs and clusters for tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec

from refold.model import Cluster, Demand, GpuType, Job, Node, Plan, Tenant, mib_from_gib, milli_from_number, parse_plan


def make_job(
    id: str = "job",
    *,
    at: float = 0.0,
    work: float | None = 100.0,
    instances: int = 1,
    gpus: int = 1,
    share: float = 1.0,
    cpus: float = 0.0,
    memory_gib: float = 0.0,
    types: Iterable[str] = (),
    **more: Any,
) -> Job:
    """Return a job that requests `instances` × `gpus` GPUs.

    Args:
        id: the id of the job.
        at: submission time in seconds.
        work: run time in seconds on the requested resources; None if unknown.
        instances: instances of the gang.
        gpus: GPUs per instance.
        share: fraction of each GPU, such as 0.5.
        cpus: CPUs per instance.
        memory_gib: memory per instance.
        types: accepted GPU types; empty accepts all.
        more: other fields of `Job`, such as `tenant` or `reshapable`.
    """
    demand = Demand(
        instances,
        gpus,
        milli_from_number(share),
        milli_from_number(cpus),
        mib_from_gib(memory_gib),
        tuple(sorted(types)),
    )
    return Job(id, at, demand, work, **more)


def make_cluster(
    *sizes: int,
    types: Iterable[str] | str = "A100",
    cpus: float = 64.0,
    memory_gib: float = 512.0,
    speeds: dict[str, float] | None = None,
) -> Cluster:
    """Return a cluster with one node per size: `make_cluster(8, 8, 4)` has nodes n0, n1, n2 with 8, 8 and 4 GPUs.

    Args:
        sizes: GPUs of each node.
        types: GPU type of all nodes, or one per node.
        cpus: CPUs per node.
        memory_gib: memory per node.
        speeds: relative speeds of GPU types; 1.0 if not given.
    """
    type_names = [types] * len(sizes) if isinstance(types, str) else list(types)
    nodes = tuple(
        Node(f"n{index}", gpus, gpu_type if gpus else "", milli_from_number(cpus), mib_from_gib(memory_gib))
        for index, (gpus, gpu_type) in enumerate(zip(sizes, type_names, strict=True))
    )
    return Cluster(nodes, tuple(GpuType(name, speed=speed) for name, speed in (speeds or {}).items()))


# Small random workloads with all kinds of jobs, for tests of policies.


def seeded_workload(seed: int, jobs: int = 60) -> tuple[list[Job], Cluster]:
    """Return jobs of all kinds, and a small cluster of two GPU types that they fit and keep busy."""
    rng = random.Random(seed)
    cluster = make_cluster(4, 4, 2, 0, types=["A100", "A100", "T4", ""], cpus=16, memory_gib=64)
    generated: list[Job] = []
    now = 0.0
    for number in range(jobs):
        now += rng.choice([0.0, 1.0, 5.0, 30.0])
        kind: dict[str, Any] = rng.choice(
            [
                {"gpus": 1},
                {"gpus": 1, "share": rng.choice([0.25, 0.5, 0.7])},
                {"gpus": 2, "types": ["A100"]},
                {"gpus": 2, "instances": 2},
                {"gpus": 4},
                {"gpus": 1, "instances": 3, "types": ["A100", "T4"]},
                {"gpus": 0, "cpus": 8.0},
            ]
        )
        kind = {"cpus": rng.choice([0.0, 1.0, 2.0]), "memory_gib": rng.choice([0.0, 4.0])} | kind
        work, tenant = rng.choice([0.0, 10.0, 60.0, 200.0]), rng.choice("xyz")
        generated.append(make_job(f"j{number}", at=now, work=work, tenant=tenant, **kind))
    return generated, cluster


REQUESTS: dict[str, tuple[float, tuple[str, ...]]] = {
    "vit": (20.0, ("dp1", "dp2", "dp4", "dp8 zero2")),
    "roberta": (4.0, ("dp1", "dp4", "dp8", "dp2 zero2 accumulate 2")),
    "bert": (8.0, ("dp1", "dp2", "dp8", "dp4 recompute full")),
    "t5": (3.0, ("dp2", "dp4 zero2", "dp1 zero2 offload")),
    "gpt2": (2.0, ("dp4 zero2", "tp4", "tp5", "dp2 zero2 offload", "tp4 pp2")),
    "llama7": (0.3, ("tp8", "dp8 zero2 offload recompute full", "tp8 pp2", "tp4 pp2")),
}
"""By workload: approximate steps per second, and plans that jobs request."""


def reshapable_workload(seed: int, jobs: int = 24) -> tuple[list[Job], Cluster]:
    """Return jobs of known models, most of them reshapable, and three A800 nodes that two tenants share."""
    rng = random.Random(seed)
    nodes = make_cluster(8, 8, 4, types="A800-80GB", cpus=96, memory_gib=1600)
    cluster = msgspec.structs.replace(nodes, tenants=(Tenant("sure", 12.0), Tenant("small", 3.0)))
    generated: list[Job] = []
    now = 0.0
    for number in range(jobs):
        now += rng.choice([0.0, 5.0, 40.0, 200.0])
        generated.append(_reshapable_job(rng, f"j{number}", now))
    return generated, cluster


def _reshapable_job(rng: random.Random, name: str, now: float) -> Job:
    workload = rng.choice(list(REQUESTS))
    steps_per_second, texts = REQUESTS[workload]
    plan, seconds = parse_plan(rng.choice(texts)), rng.choice([3.0, 60.0, 400.0, 2000.0])
    instances = 2 if plan.gpus > 8 else 1
    fields: dict[str, Any] = {
        "workload": workload,
        "plan": plan,
        "reshapable": True,
        "steps": max(1, round(seconds * steps_per_second)),
        "work": None,
    }
    variation: dict[str, Any] = rng.choice(
        [
            *[{}] * 6,
            {"plan": Plan(plan.gpus), "steps": None, "work": seconds},
            {"reshapable": False, "work": seconds},
            {"preemptible": False},
            {"workload": "", "plan": None, "steps": None, "work": seconds},
        ]
    )
    return make_job(
        name,
        at=now,
        instances=instances,
        gpus=plan.gpus // instances,
        cpus=rng.choice([2.0, 8.0]) * plan.gpus / instances,
        tenant=rng.choice(["sure", "small", "guest"]),
        job_class=rng.choice(["guaranteed", "best-effort"]),
        **(fields | variation),
    )
