"""Which nodes a pod may be on: node selectors, node affinity, taints and tolerations, and resources.

`admits` and `refusal` compare a pod with a node as it is, before a pod is bound. `NodeIndex` finds all nodes that admit
a pod, as bit sets, so that a pod which names many labels costs as much as one that names few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import TypeVar

import msgspec

from refold.engines.kubernetes.objects import ApiNode, NodeSelector, Pod, PodSpec, Requirement, SelectorTerm, Taint
from refold.engines.kubernetes.resources import allocatable, amount_of, other_requests

LIFECYCLE_TAINT_PREFIX = "node.kubernetes.io/"
"""Taints that say that a node is not ready, cordoned, or under pressure. Such nodes are down, for all pods."""

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")

NAME_FIELD = "metadata.name"
"""The only field of nodes that pods can select by."""


MAX_REMEMBERED = 1000
"""Amounts of resources for which a `NodeIndex` remembers the answer."""

Key = TypeVar("Key")


def blocking_taints(node: ApiNode) -> list[Taint]:
    """Return the taints that keep pods off a node, except those of its life cycle."""
    return [
        taint
        for taint in node.spec.taints
        if taint.effect in BLOCKING_EFFECTS and not taint.key.startswith(LIFECYCLE_TAINT_PREFIX)
    ]


def admits(spec: PodSpec, node: ApiNode) -> bool:
    """Whether a pod may be on a node."""
    return not refusal(spec, node)


def refusal(spec: PodSpec, node: ApiNode) -> str:
    """Return why a pod may not be on a node; '' if it may."""
    selector, labels = spec.affinity.node_affinity.required, node.metadata.labels
    if not all(labels.get(key) == value for key, value in spec.node_selector.items()):
        return "does not match the node selector"
    if selector is not None and not any(_matches(term, node) for term in selector.node_selector_terms):
        return "does not match the node affinity"
    for taint in blocking_taints(node):
        if not is_tolerated(spec, taint):
            return f"has the taint {taint.key}={taint.value}:{taint.effect}"
    for name, amount in other_requests(spec).items():
        if not has_resource(node, name, amount):
            return f"has fewer than {amount:f} {name}"
    return ""


def refusals(spec: PodSpec, nodes: Sequence[ApiNode], resource: str = "") -> str:
    """Return why a pod may not be on some of the nodes, with their number: '3 have the taint …, 1 does not match …'.

    Each node is counted once. `resource`: the kind of GPU that the pod requests.
    """
    has_gpus = [not resource or amount_of(node.status.capacity, resource) > 0 for node in nodes]
    counts = Counter(refusal(spec, node) for node, has in zip(nodes, has_gpus, strict=True) if has)
    counts[f"has no {resource}"] = has_gpus.count(False)
    del counts[""]
    return ", ".join(f"{count} {_verb(why, count)}" for why, count in counts.most_common() if count)


def _verb(why: str, count: int) -> str:
    verb, _, rest = why.partition(" ")
    return why if count == 1 else f"{'have' if verb == 'has' else 'do'} {rest}"


def has_resource(node: ApiNode, name: str, amount: Decimal) -> bool:
    return allocatable(node, name) >= amount


def constraints_text(spec: PodSpec) -> bytes:
    """Return a text that is equal for pods that may be on the same nodes."""
    others = {name: str(amount) for name, amount in other_requests(spec).items()}
    return msgspec.json.encode((spec.node_selector, spec.affinity.node_affinity, spec.tolerations, others))


def unsupported_fields(pod: Pod) -> list[str]:
    """Return the fields with hard constraints that Refold cannot honour: such a pod is not scheduled."""
    spec = pod.spec
    found = {
        "resourceClaims": bool(spec.resource_claims),
        "affinity.podAffinity": bool(spec.affinity.pod_affinity.required),
        "affinity.podAntiAffinity": bool(spec.affinity.pod_anti_affinity.required),
        "topologySpreadConstraints": any(
            constraint.when_unsatisfiable == "DoNotSchedule" for constraint in spec.topology_spread_constraints
        ),
    }
    return [field for field, is_there in found.items() if is_there]


def _matches(term: SelectorTerm, node: ApiNode) -> bool:
    """Whether a node meets a term; an empty one matches no node."""
    if not (term.match_expressions or term.match_fields):
        return False
    labels, fields = node.metadata.labels, {NAME_FIELD: node.name}
    return all(each.is_met(labels) for each in term.match_expressions) and all(
        each.is_met(fields) for each in term.match_fields
    )


def is_tolerated(spec: PodSpec, taint: Taint) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and (
            (toleration.operator == "Exists" and toleration.key in ("", taint.key))
            or (toleration.operator in ("", "Equal") and (toleration.key, toleration.value) == (taint.key, taint.value))
        )
        for toleration in spec.tolerations
    )


class NodeIndex:
    """The nodes by what pods select them by. A set of nodes is a number, whose bits are the nodes by index."""

    def __init__(self, nodes: Iterable[ApiNode]) -> None:
        self._nodes: list[ApiNode] = []
        self._labels: dict[str, dict[str, int]] = {}
        self._names: dict[str, int] = {}
        self._taints: dict[Taint, int] = {}
        self._with_resource: dict[tuple[str, Decimal], int] = {}
        for index, node in enumerate(nodes):
            self._nodes.append(node)
            self._flip(node, 1 << index)
        self._all = (1 << len(self._nodes)) - 1

    def replace(self, index: int, node: ApiNode) -> None:
        """Take the current state of a node."""
        self._flip(self._nodes[index], 1 << index)
        self._nodes[index] = node
        self._flip(node, 1 << index)
        self._with_resource.clear()

    def admitting(self, spec: PodSpec) -> int:
        """Return the nodes that a pod may be on."""
        found = self._all
        for key, value in spec.node_selector.items():
            found &= self._labels.get(key, {}).get(value, 0)
        if (selector := spec.affinity.node_affinity.required) is not None:
            found &= self._selected(selector)
        for taint, nodes in self._taints.items():
            if found & nodes and not is_tolerated(spec, taint):
                found &= ~nodes
        for name, amount in other_requests(spec).items():
            found &= self._having(name, amount)
        return found

    def _selected(self, selector: NodeSelector) -> int:
        found = 0
        for term in selector.node_selector_terms:
            if term.match_expressions or term.match_fields:
                found |= self._meeting(term.match_expressions, self._labels) & self._meeting(
                    term.match_fields, {NAME_FIELD: self._names}
                )
        return found

    def _meeting(self, requirements: Sequence[Requirement], labels: Mapping[str, Mapping[str, int]]) -> int:
        found = self._all
        for requirement in requirements:
            values = labels.get(requirement.key, {})
            match requirement.operator:
                case "In" | "NotIn":
                    chosen = reduce(or_, (values.get(value, 0) for value in requirement.values), 0)
                case "Exists" | "DoesNotExist":
                    chosen = reduce(or_, values.values(), 0)
                case _:
                    met = (nodes for value, nodes in values.items() if requirement.is_met({requirement.key: value}))
                    chosen = reduce(or_, met, 0)
            found &= ~chosen if requirement.operator in ("NotIn", "DoesNotExist") else chosen
        return found

    def _having(self, name: str, amount: Decimal) -> int:
        found = self._with_resource.get((name, amount))
        if found is None:
            if len(self._with_resource) >= MAX_REMEMBERED:
                self._with_resource.clear()
            nodes = enumerate(self._nodes)
            found = sum(1 << index for index, node in nodes if has_resource(node, name, amount))
            self._with_resource[name, amount] = found
        return found

    def _flip(self, node: ApiNode, bit: int) -> None:
        """Add a node to the sets that it belongs to, or remove it from them."""
        for key, value in node.metadata.labels.items():
            _flip(self._labels.setdefault(key, {}), value, bit)
        _flip(self._names, node.name, bit)
        for taint in set(blocking_taints(node)):
            _flip(self._taints, taint, bit)


def _flip(sets: dict[Key, int], key: Key, bit: int) -> None:
    nodes = sets.get(key, 0) ^ bit
    if nodes:
        sets[key] = nodes
    else:
        del sets[key]
