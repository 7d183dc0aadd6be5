"""Small busy workloads by seed, of all kinds of jobs, for tests of policies."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from refold.model import Cluster, Job, Plan, Tenant, plan_from_text
from refold.testing.makers import make_cluster, make_job


def seeded_workload(seed: int, jobs: int = 60) -> tuple[list[Job], Cluster]:
    """A small busy cluster of two GPU types, and jobs of all kinds that it has room for."""
    chance = random.Random(seed)
    cluster = make_cluster(4, 4, 2, 0, types=["A100", "A100", "T4", ""], cpus=16, memory_gib=64)
    made: list[Job] = []
    now = 0.0
    for number in range(jobs):
        now += chance.choice([0.0, 1.0, 5.0, 30.0])
        kind: dict[str, Any] = chance.choice(
            [
                {"gpus": 1},
                {"gpus": 1, "share": chance.choice([0.25, 0.5, 0.7])},
                {"gpus": 2, "types": ["A100"]},
                {"gpus": 2, "instances": 2},
                {"gpus": 4},
                {"gpus": 1, "instances": 3, "types": ["A100", "T4"]},
                {"gpus": 0, "cpus": 8.0},
            ]
        )
        kind = {"cpus": chance.choice([0.0, 1.0, 2.0]), "memory_gib": chance.choice([0.0, 4.0])} | kind
        work, tenant = chance.choice([0.0, 10.0, 60.0, 200.0]), chance.choice("xyz")
        made.append(make_job(f"j{number}", at=now, work=work, tenant=tenant, **kind))
    return made, cluster


SHAPES: dict[str, tuple[float, tuple[str, ...]]] = {
    "vit": (20.0, ("dp1", "dp2", "dp4", "dp8 zero2")),
    "roberta": (4.0, ("dp1", "dp4", "dp8", "dp2 zero2 accumulate 2")),
    "bert": (8.0, ("dp1", "dp2", "dp8", "dp4 recompute full")),
    "t5": (3.0, ("dp2", "dp4 zero2", "dp1 zero2 offload")),
    "gpt2": (2.0, ("dp4 zero2", "tp4", "tp5", "dp2 zero2 offload", "tp4 pp2")),
    "llama7": (0.3, ("tp8", "dp8 zero2 offload recompute full", "tp8 pp2", "tp4 pp2")),
}
"""By workload: steps in a second, roughly, and plans that may be asked for."""


def reshapable_workload(seed: int, jobs: int = 24) -> tuple[list[Job], Cluster]:
    """Three servers of A800 that two tenants share, and jobs of known models, most of which may be reshaped."""
    chance = random.Random(seed)
    servers = make_cluster(8, 8, 4, types="A800-80GB", cpus=96, memory_gib=1600)
    cluster = msgspec.structs.replace(servers, tenants=(Tenant("sure", 12.0), Tenant("small", 3.0)))
    made: list[Job] = []
    now = 0.0
    for number in range(jobs):
        now += chance.choice([0.0, 5.0, 40.0, 200.0])
        made.append(_reshapable_job(chance, f"j{number}", now))
    return made, cluster


def _reshapable_job(chance: random.Random, name: str, now: float) -> Job:
    workload = chance.choice(list(SHAPES))
    steps_per_second, texts = SHAPES[workload]
    plan, seconds = plan_from_text(chance.choice(texts)), chance.choice([3.0, 60.0, 400.0, 2000.0])
    instances = 2 if plan.gpus > 8 else 1
    asked: dict[str, Any] = {
        "workload": workload,
        "plan": plan,
        "reshapable": True,
        "steps": max(1, round(seconds * steps_per_second)),
        "work": None,
    }
    odd: dict[str, Any] = chance.choice(
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
        cpus=chance.choice([2.0, 8.0]) * plan.gpus / instances,
        tenant=chance.choice(["sure", "small", "nobody"]),
        job_class=chance.choice(["guaranteed", "best-effort"]),
        **(asked | odd),
    )
