"""Jobs and clusters in one short call, for tests that read as sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refold.model import Cluster, Demand, GpuType, Job, Node, mib_from_gib, milli_from_number


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
    """A job of `instances` × `gpus` GPUs that was submitted `at` some time; `more` are fields of Job."""
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
    """One node per size: `make_cluster(8, 8, 4)` has nodes n0, n1, n2 with 8, 8 and 4 GPUs."""
    kinds = [types] * len(sizes) if isinstance(types, str) else list(types)
    nodes = tuple(
        Node(f"n{index}", gpus, kind if gpus else "", milli_from_number(cpus), mib_from_gib(memory_gib))
        for index, (gpus, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    return Cluster(nodes, tuple(GpuType(name, speed=speed) for name, speed in (speeds or {}).items()))
