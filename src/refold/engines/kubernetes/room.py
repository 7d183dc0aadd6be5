"""Resources that the scheduler does not count: ephemeral storage, devices that are no GPUs, the number of pods.

Nodes that have less of them than a pod requests are not considered for it (`constraints`). Whether several pods find
room on one node is checked when they are bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from refold.engines.kubernetes.gangs import RunKey
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.resources import add_amounts, allocatable, other_requests

PODS = "pods"

Amounts = dict[str, Decimal]


class NodeRoom:
    """What is left on nodes. Runs that are being bound claim it, since the mirror does not show their pods yet."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._claims: dict[RunKey, dict[str, Amounts]] = {}

    def claim(self, run: RunKey, pods: Iterable[tuple[Pod, str]]) -> str:
        """Claim what pods request on the nodes that they are to be bound to; return what is missing, or ''."""
        self.release(run)
        wanted: dict[str, Amounts] = {}
        for pod, name in pods:
            add_amounts(wanted.setdefault(name, {}), _amounts(pod))
        for name, amounts in wanted.items():
            node = self._mirror.nodes.get(name)
            missing = "" if node is None else self._missing(node, amounts)
            if missing:
                return f"node {name} has {missing}"
        self._claims[run] = wanted
        return ""

    def release(self, run: RunKey) -> None:
        """Give up the claim of a run: its pods are bound, or will not be."""
        self._claims.pop(run, None)

    def _missing(self, node: ApiNode, wanted: Amounts) -> str:
        used: Amounts = {}
        for pod in self._mirror.pods_on_node(node.name).values():
            if not pod.has_ended:
                add_amounts(used, _amounts(pod))
        for claim in self._claims.values():
            add_amounts(used, claim.get(node.name, {}))
        for resource, amount in wanted.items():
            left = allocatable(node, resource) - used.get(resource, Decimal(0))
            if left < amount and (resource != PODS or PODS in node.status.allocatable):
                return f"{left:f} of {resource} left, and {amount:f} are needed"
        return ""


def _amounts(pod: Pod) -> Amounts:
    return {**other_requests(pod.spec), PODS: Decimal(1)}
