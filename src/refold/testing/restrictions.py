"""Jobs that may not be placed everywhere: on some nodes only, or in one domain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.model import Cluster, Job, Level, NodeSet, TopologyRequest
from refold.placement import FreeResources


def in_racks(cluster: Cluster) -> Cluster:
    """Put neighbouring nodes into racks, three in each."""
    nodes = [
        msgspec.structs.replace(node, rack=f"rack{index // 3}", domains=(f"rack{index // 3}",))
        for index, node in enumerate(cluster.nodes)
    ]
    return msgspec.structs.replace(cluster, nodes=tuple(nodes), racks=(), levels=(Level("rack"),))


def in_domains(job: Job, number: int, cluster: Cluster) -> Job:
    """Let a gang require one rack, two for some time, or segments of two, if it fits into the empty cluster so."""
    requests = [TopologyRequest("rack"), TopologyRequest(most=2, wait=600.0), TopologyRequest(segment=2)]
    request = requests[number % (2 if job.demand.instances % 2 else 3)]
    demand = msgspec.structs.replace(job.demand, topology=request)
    is_limited = job.demand.instances > 1 and FreeResources(cluster).fits_when_empty(demand)
    return msgspec.structs.replace(job, demand=demand, reshapable=False) if is_limited else job


def limited_to_nodes(jobs: Sequence[Job], cluster: Cluster) -> list[Job]:
    """Limit two of three jobs to every second node, or to all but one, if they fit there."""
    free, count = FreeResources(cluster), len(cluster.nodes)
    limited: list[Job] = []
    for number, job in enumerate(jobs):
        nodes = (
            range(number % 2, count, 2) if number % 3 == 1 else (node for node in range(count) if node != number % 5)
        )
        demand = msgspec.structs.replace(job.demand, allowed_nodes=NodeSet.of(nodes))
        is_limited = number % 3 and free.fits_when_empty(demand)
        limited.append(msgspec.structs.replace(job, demand=demand) if is_limited else job)
    return limited
