"""What is requested of Slurm for a run: its nodes, and on each of them GPUs, CPUs and memory."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from math import ceil, inf
from typing import NamedTuple

import msgspec

from refold.engines.slurm.nodes import GpuGroup, SlurmCluster
from refold.errors import BadInput
from refold.model import DAY, WHOLE, Allocation, Job, Seconds, Share, format_duration

BLOCK_LEVEL = "block"
"""The innermost level of a cluster with Slurm's topology/block."""

YEAR: Seconds = 365 * DAY
"""Slurm's own time limits are shorter."""


class SlurmSettings(msgspec.Struct, frozen=True):
    """Where jobs are submitted, and further options of sbatch. `partition`: '': those that the nodes are in."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    options: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return the options of sbatch, except the partition."""
        given = {"account": self.account, "qos": self.qos}
        return [*(f"--{name}={value}" for name, value in given.items() if value), *self.options]

    def option(self, name: str) -> str:
        """Return the value of one of the further options, or ''."""
        prefix = f"--{name}="
        return next((each.removeprefix(prefix) for each in reversed(self.options) if each.startswith(prefix)), "")


DEFAULT_SETTINGS = SlurmSettings()


class NodeRequest(NamedTuple):
    """What a run needs on a node. `gres`: GPUs, as Slurm writes them."""

    node: str
    gres: str
    cpus: int
    memory_mib: int

    @property
    def amounts(self) -> tuple[str, int, int]:
        """All but the name of the node."""
        return self[1:]


def node_requests(nodes: SlurmCluster, job: Job, allocation: Allocation) -> list[NodeRequest]:
    """Return what a run needs on each of its nodes, in the order of its instances.

    An instance for which no CPUs or memory are requested gets those that belong to its GPUs.
    """
    shares: dict[str, list[tuple[GpuGroup, Share]]] = {}
    for share in allocation.placement:
        group = nodes.groups[share.node]
        shares.setdefault(group.node.name, []).append((group, share))
    return [_node_request(job, name, found) for name, found in shares.items()]


def _node_request(job: Job, name: str, shares: list[tuple[GpuGroup, Share]]) -> NodeRequest:
    gres = _shard(job, name, shares) if any(map(is_part, (share for _, share in shares))) else _gpus(shares)
    cpus = sum(ceil(share.cpu_milli / WHOLE) or _part(group.node.cpus, group, share) for group, share in shares)
    memory = sum(share.memory_mib or _part(group.node.memory_mib, group, share) for group, share in shares)
    return NodeRequest(name, gres, max(1, cpus), max(1, memory))


def is_part(share: Share) -> bool:
    """Whether an instance has a part of a GPU."""
    return bool(share.gpus) and share.gpu_milli < WHOLE


def _gpus(shares: list[tuple[GpuGroup, Share]]) -> str:
    gpus: dict[str, int] = {}
    for group, share in shares:
        gpus[group.slurm_type] = gpus.get(group.slurm_type, 0) + len(share.gpus)
    return ",".join(_typed("gpu", kind, count) for kind, count in gpus.items() if count)


def _shard(job: Job, name: str, shares: list[tuple[GpuGroup, Share]]) -> str:
    """Return a part of a GPU, rounded up to Slurm's shards. Raises BadInput if there are none."""
    group, share = shares[0]
    shards = group.node.shards // sum(group.node.gpus.values())
    if not shards:
        raise BadInput(
            f"{job.id} requests a part of a GPU, and {name} has no shards: add GresTypes=gpu,shard and "
            "Gres=shard:NUMBER to slurm.conf (docs/slurm.md)"
        )
    if len(shares) > 1:
        raise BadInput(f"{job.id} has several instances on {name}; Slurm gives a job parts of one GPU of a node only")
    return _typed("shard", group.slurm_type, ceil(shards * share.gpu_milli / WHOLE))


def _typed(name: str, kind: str, count: int) -> str:
    return f"{name}:{kind}:{count}" if kind else f"{name}:{count}"


def _part(total: int, group: GpuGroup, share: Share) -> int:
    """Return the part of a node's CPUs or memory that belongs to some of its GPUs."""
    return total * len(share.gpus) * share.gpu_milli // (WHOLE * sum(group.node.gpus.values()))


def components(requests: list[NodeRequest]) -> list[list[NodeRequest]]:
    """Divide the nodes of a run into those with equal requests. Several are a heterogeneous job of Slurm."""
    ordered = sorted(requests, key=lambda request: request.amounts)
    return [list(group) for _, group in groupby(ordered, key=lambda request: request.amounts)]


def partitions_of(nodes: SlurmCluster, requests: list[NodeRequest]) -> list[str]:
    """Return the partitions that have all of these nodes."""
    names = {request.node for request in requests}
    found = [group.node.partitions for group in nodes.groups if group.node.name in names]
    common = [name for name in found[0] if all(name in others for others in found)]
    if not common:
        raise BadInput(f"no partition has all of {', '.join(sorted(names))}")
    return common


def resource_arguments(requests: list[NodeRequest]) -> list[str]:
    """Return the options of sbatch for equal requests: one task on each node."""
    _, gres, cpus, memory = requests[0]
    return [
        f"--nodes={len(requests)}",
        f"--ntasks={len(requests)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        f"--mem={memory}M",
        f"--nodelist={','.join(request.node for request in requests)}",
        *([f"--gres={gres}"] if gres else []),
    ]


def segment_arguments(nodes: SlurmCluster, requests: list[NodeRequest]) -> list[str]:
    """Return what lets a job have nodes in more blocks than it needs; Slurm 24.11 refuses such jobs all the same."""
    if nodes.cluster.level_names[-1:] != (BLOCK_LEVEL,):
        return []
    blocks = {group.node.name: node.domains[-1] for group, node in zip(nodes.groups, nodes.cluster.nodes, strict=True)}
    largest = max(Counter(blocks.values()).values())
    used = {blocks[request.node] for request in requests}
    return ["--segment=1"] if len(used) > ceil(len(requests) / largest) else []


def needed_time(job: Job, grace: Seconds) -> Seconds:
    """Return the time limit that a job needs in Slurm: Refold ends its runs earlier, if it runs then."""
    return inf if job.time_limit is None else job.time_limit + grace + 60


def partition_arguments(nodes: SlurmCluster, partitions: list[str], job: Job, needed: Seconds | None) -> list[str]:
    """Return the partitions that allow a job to take as long as it may, and its time limit there: `needed`, or less.

    None: the time that Slurm gives by itself. So for a job without a limit, unless the default is shorter: a QOS or
    an association may have a limit, beyond which no job starts. Raises BadInput if the job may take longer than the
    partitions allow: Slurm would never start it.
    """
    allowed, limit = max(map(nodes.time_limit, partitions)), inf if job.time_limit is None else job.time_limit
    if allowed < limit < inf:
        names = " or ".join(partitions)
        raise BadInput(
            f"{job.id} has a time limit of {format_duration(limit)}, and partition {names} of Slurm allows "
            f"{format_duration(allowed)}"
        )
    least = min(limit, allowed)
    chosen = [name for name in partitions if nodes.time_limit(name) >= least]
    where = f"--partition={','.join(chosen)}"
    if needed is None or (limit == inf and nodes.short_by_default.isdisjoint(chosen)):
        return [where]
    seconds = min(needed, *map(nodes.time_limit, chosen))
    return [where, *(minutes_argument(seconds) or ["--time=UNLIMITED"])]


def minutes_argument(limit: Seconds | None) -> list[str]:
    """Return a time limit in Slurm's minutes."""
    return [] if limit is None or limit > YEAR else [f"--time={ceil(limit / 60)}"]
