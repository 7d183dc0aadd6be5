"""What a run holds: which GPUs (and how much of each), CPUs and memory on which nodes, and the plan it runs there."""

from __future__ import annotations

import msgspec

from refold.model.cluster import Cluster
from refold.model.plan import Plan
from refold.model.units import WHOLE, MiB, Milli


class Share(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instance's part of one node: `gpu_milli` of each of `gpus` (indices on that node), CPUs, memory."""

    node: int
    gpus: tuple[int, ...] = ()
    gpu_milli: Milli = WHOLE
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


Placement = tuple[Share, ...]
"""One share per instance."""


class Allocation(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """A placement, and the plan that computes there (None: whatever the job brings along)."""

    placement: Placement
    plan: Plan | None = None

    @property
    def gpu_milli(self) -> Milli:
        """GPU held in all, in thousandths."""
        total = 0
        for share in self.placement:
            total += len(share.gpus) * share.gpu_milli
        return total

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes it touches."""
        return frozenset(share.node for share in self.placement)

    def text(self, cluster: Cluster) -> str:
        """'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)'."""
        return ", ".join(_share_text(cluster.nodes[share.node].name, share) for share in self.placement)

    @property
    def cpu_milli(self) -> Milli:
        """CPUs held in all, in thousandths."""
        return sum(share.cpu_milli for share in self.placement)

    @property
    def gpus_on_node(self) -> tuple[int, ...]:
        """How many GPUs it has on each node that it touches, the most first."""
        on_node: dict[int, int] = {}
        for share in self.placement:
            if share.gpus:
                on_node[share.node] = on_node.get(share.node, 0) + len(share.gpus)
        return tuple(sorted(on_node.values(), reverse=True))


def _share_text(node: str, share: Share) -> str:
    if not share.gpus:
        return node
    part = "" if share.gpu_milli == WHOLE else f"{share.gpu_milli / WHOLE:g} of "
    return f"{node} ({part}GPU{'s' * (len(share.gpus) != 1)} {', '.join(map(str, share.gpus))})"


def beyond(wanted: Placement, held: Placement) -> Placement:
    """What has to be taken beyond what is held to cover both: for the moment between two shapes of a job."""
    before = _amounts(held)
    shares: list[Share] = []
    for node, (gpus, cpu, memory) in sorted(_amounts(wanted).items()):
        old_gpus, old_cpu, old_memory = before.get(node, ({}, 0, 0))
        shares.append(Share(node, (), WHOLE, max(0, cpu - old_cpu), max(0, memory - old_memory)))
        shares += [
            Share(node, (gpu,), milli - old_gpus.get(gpu, 0))
            for gpu, milli in sorted(gpus.items())
            if milli > old_gpus.get(gpu, 0)
        ]
    return tuple(shares)


def _amounts(placement: Placement) -> dict[int, tuple[dict[int, Milli], Milli, MiB]]:
    """Per node: how much of each GPU, CPUs, memory."""
    amounts: dict[int, tuple[dict[int, Milli], Milli, MiB]] = {}
    for share in placement:
        gpus, cpu, memory = amounts.get(share.node, ({}, 0, 0))
        for gpu in share.gpus:
            gpus[gpu] = gpus.get(gpu, 0) + share.gpu_milli
        amounts[share.node] = (gpus, cpu + share.cpu_milli, memory + share.memory_mib)
    return amounts
