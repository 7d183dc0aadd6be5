"""The resources of a run: GPUs (or fractions of them), CPUs and memory on nodes, and the parallel plan used there."""

from __future__ import annotations

import msgspec

from refold.model.cluster import Cluster
from refold.model.plan import Plan
from refold.model.units import WHOLE, MiB, Milli, plural


class Share(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The resources of one instance on one node: `gpu_milli` of each of `gpus` (indices on the node), CPUs, memory."""

    node: int
    gpus: tuple[int, ...] = ()
    gpu_milli: Milli = WHOLE
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


Placement = tuple[Share, ...]
"""One share per instance of the job."""


class Allocation(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """A placement and the plan to run on it (None: the job's own plan)."""

    placement: Placement
    plan: Plan | None = None

    @property
    def gpu_milli(self) -> Milli:
        """Total GPUs, in thousandths."""
        total = 0
        for share in self.placement:
            total += len(share.gpus) * share.gpu_milli
        return total

    @property
    def nodes(self) -> frozenset[int]:
        """The indices of the nodes used."""
        return frozenset(share.node for share in self.placement)

    def text(self, cluster: Cluster) -> str:
        """Format the placement: 'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)'."""
        return ", ".join(_format_share(cluster.nodes[share.node].name, share) for share in self.placement)

    @property
    def cpu_milli(self) -> Milli:
        """Total CPUs, in thousandths."""
        return sum(share.cpu_milli for share in self.placement)

    @property
    def gpus_on_node(self) -> tuple[int, ...]:
        """The number of GPUs on each node used, in descending order."""
        on_node: dict[int, int] = {}
        for share in self.placement:
            if share.gpus:
                on_node[share.node] = on_node.get(share.node, 0) + len(share.gpus)
        return tuple(sorted(on_node.values(), reverse=True))


def _format_share(node: str, share: Share) -> str:
    if not share.gpus:
        return node
    part = "" if share.gpu_milli == WHOLE else f"{share.gpu_milli / WHOLE:g} of "
    return f"{node} ({part}{plural(len(share.gpus), 'GPU')} {', '.join(map(str, share.gpus))})"


def additional_shares(wanted: Placement, held: Placement) -> Placement:
    """Return what must be allocated in addition to `held` to cover `wanted` as well.

    While a job is reshaped it holds both: its old allocation, until the old run has stopped, and its next one.
    """
    held_amounts = _amounts_by_node(held)
    shares: list[Share] = []
    for node, (gpus, cpu, memory) in sorted(_amounts_by_node(wanted).items()):
        old_gpus, old_cpu, old_memory = held_amounts.get(node, ({}, 0, 0))
        shares.append(Share(node, (), WHOLE, max(0, cpu - old_cpu), max(0, memory - old_memory)))
        shares += [
            Share(node, (gpu,), milli - old_gpus.get(gpu, 0))
            for gpu, milli in sorted(gpus.items())
            if milli > old_gpus.get(gpu, 0)
        ]
    return tuple(shares)


def _amounts_by_node(placement: Placement) -> dict[int, tuple[dict[int, Milli], Milli, MiB]]:
    """Return, by node: thousandths of each GPU, CPUs, memory."""
    amounts: dict[int, tuple[dict[int, Milli], Milli, MiB]] = {}
    for share in placement:
        gpus, cpu, memory = amounts.get(share.node, ({}, 0, 0))
        for gpu in share.gpus:
            gpus[gpu] = gpus.get(gpu, 0) + share.gpu_milli
        amounts[share.node] = (gpus, cpu + share.cpu_milli, memory + share.memory_mib)
    return amounts
