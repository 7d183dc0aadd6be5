"""Whether nodes can have the pods that are to be bound to them, by the mirror as it is now.

A decision is made from events, and a node may have changed since; and it counts GPUs, CPUs and memory only. So each
binding is checked once more: selectors, taints and state of the node, and whether all pods find room for what they
request.
"""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import NamedTuple

from refold.engines.kubernetes.gangs import RunKey
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import binding_problem
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.resources import all_requests, allocatable, is_accelerator, is_counted, total_amounts

PODS = "pods"

Amounts = dict[str, Decimal]

MAX_REMEMBERED = 20_000
"""Pods whose requests are remembered."""


class Unfit(NamedTuple):
    """Why pods cannot be bound. `lasting`: the decision is outdated, and waiting is of no use."""

    why: str
    lasting: bool = False


class NodeRoom:
    """What is left on nodes. Runs that are being bound claim it, until the mirror shows all of their pods."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._claims: dict[RunKey, dict[str, dict[str, Amounts]]] = {}
        """By run and node: what its pods take, by uid."""
        self._amounts_of: dict[str, tuple[Pod, Amounts]] = {}

    def claim(self, run: RunKey, pods: Collection[tuple[Pod, str]]) -> Unfit | None:
        """Claim what pods request on the nodes that they are to be bound to; or return what forbids to bind them."""
        self.release(run)
        claimed: dict[str, dict[str, Amounts]] = {}
        volumes = self._mirror.volumes
        for pod, name in pods:
            node = self._mirror.nodes.get(name)
            if problem := volumes.problem(pod) or binding_problem(volumes.limited(pod), name, node):
                return Unfit(problem, lasting=True)
            claimed.setdefault(name, {})[pod.metadata.uid] = self._amounts(pod)
        for name, by_pod in claimed.items():
            if unfit := self._find_missing(self._mirror.nodes[name], total_amounts(by_pod.values())):
                return unfit
        self._claims[run] = claimed
        return None

    def release(self, run: RunKey) -> None:
        """Give up the claim of a run: its pods are bound, or will not be."""
        self._claims.pop(run, None)

    def is_overcommitted(self, name: str) -> bool:
        """Whether pods on a node, with those that are being bound to it, request more GPUs than it has."""
        node = self._mirror.nodes.get(name)
        if node is None:
            return False
        gpus = {resource: Decimal(0) for resource in node.status.allocatable if is_accelerator(resource)}
        return self._find_missing(node, gpus) is not None

    def runs_on(self, name: str) -> list[RunKey]:
        return [run for run, claimed in self._claims.items() if name in claimed]

    def _find_missing(self, node: ApiNode, wanted: Amounts) -> Unfit | None:
        by_pod = {uid: amounts for claim in self._claims.values() for uid, amounts in claim.get(node.name, {}).items()}
        for pod in self._mirror.pods_on_node(node.name).values():
            by_pod[pod.metadata.uid] = {} if pod.has_ended else self._amounts(pod)
        used = total_amounts(by_pod.values())
        for resource, amount in wanted.items():
            left = allocatable(node, resource) - used.get(resource, Decimal(0))
            if left < amount and (resource != PODS or PODS in node.status.allocatable):
                why = f"node {node.name} has {left:f} of {resource} left, and {amount:f} are needed"
                return Unfit(why, lasting=is_counted(resource))
        return None

    def _amounts(self, pod: Pod) -> Amounts:
        """Return what a pod takes of a node, remembered until the pod changes."""
        known = self._amounts_of.get(pod.metadata.uid)
        if known is not None and known[0] is pod:
            return known[1]
        if len(self._amounts_of) >= MAX_REMEMBERED:
            self._amounts_of.clear()
        found = {**all_requests(pod), PODS: Decimal(1)}
        self._amounts_of[pod.metadata.uid] = pod, found
        return found
