"""Factories of jobs and clusters for tests."""

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
