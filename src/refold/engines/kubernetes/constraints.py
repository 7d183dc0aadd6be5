"""Which nodes a pod may be on: node selectors, node affinity, taints and tolerations, and resources."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from refold.engines.kubernetes.objects import ApiNode, Pod, PodSpec, SelectorTerm, Taint
from refold.engines.kubernetes.resources import allocatable, other_requests

LIFECYCLE_TAINT_PREFIX = "node.kubernetes.io/"
"""Taints that say that a node is not ready, cordoned, or under pressure. Such nodes are down, for all pods."""

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")

RESOURCE_PREFIX = "resource "
"""Tells resources from labels, which have no spaces."""

ANY_VALUE = "*"
"""Stands for every value of a label. No label has this value."""


def blocking_taints(node: ApiNode) -> list[Taint]:
    """Return the taints that keep pods off a node, except those of its life cycle."""
    return [
        taint
        for taint in node.spec.taints
        if taint.effect in BLOCKING_EFFECTS and not taint.key.startswith(LIFECYCLE_TAINT_PREFIX)
    ]


def admits(spec: PodSpec, node: ApiNode) -> bool:
    """Whether a pod may be on a node."""
    return (
        all(node.metadata.labels.get(key) == value for key, value in spec.node_selector.items())
        and _matches_affinity(spec, node)
        and all(_is_tolerated(spec, taint) for taint in blocking_taints(node))
        and all(has_resource(node, name, amount) for name, amount in other_requests(spec).items())
    )


def has_resource(node: ApiNode, name: str, amount: Decimal) -> bool:
    """Whether a node has this much of a resource for all of its pods."""
    return allocatable(node, name) >= amount


def constraints_text(spec: PodSpec) -> bytes:
    """Return a text that is equal for pods that may be on the same nodes."""
    others = {name: str(amount) for name, amount in other_requests(spec).items()}
    return msgspec.json.encode((spec.node_selector, spec.affinity.node_affinity, spec.tolerations, others))


def selected_labels(specs: Iterable[PodSpec]) -> dict[str, frozenset[str]]:
    """Return what pods distinguish nodes by: labels, and of each the values that they mention.

    The value '' stands for any other value than those: a pod asks whether the label is there. `ANY_VALUE` stands for
    each value by itself: a pod compares it with a number. A resource other than GPUs, CPUs and memory is an entry with
    `RESOURCE_PREFIX`, and the amounts that pods request.
    """
    labels: dict[str, set[str]] = {}
    for spec in specs:
        for key, value in spec.node_selector.items():
            labels.setdefault(key, set()).add(value)
        for requirement in (entry for term in _terms(spec) for entry in term.match_expressions):
            values = {"Gt": [ANY_VALUE], "Lt": [ANY_VALUE], "Exists": [""], "DoesNotExist": [""]}
            labels.setdefault(requirement.key, set()).update(values.get(requirement.operator, requirement.values))
        for name, amount in other_requests(spec).items():
            labels.setdefault(RESOURCE_PREFIX + name, set()).add(f"{amount:f}")
    return {key: frozenset(values) for key, values in labels.items()}


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
        "affinity.nodeAffinity.matchFields": any(term.match_fields for term in _terms(spec)),
    }
    return [field for field, is_there in found.items() if is_there]


def _terms(spec: PodSpec) -> list[SelectorTerm]:
    required = spec.affinity.node_affinity.required
    return required.node_selector_terms if required is not None else []


def _matches_affinity(spec: PodSpec, node: ApiNode) -> bool:
    """Whether one of the terms matches; a pod without required node affinity matches every node."""
    if spec.affinity.node_affinity.required is None:
        return True
    return any(
        term.match_expressions
        and all(requirement.is_met(node.metadata.labels) for requirement in term.match_expressions)
        for term in _terms(spec)
    )


def _is_tolerated(spec: PodSpec, taint: Taint) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and (
            (toleration.operator == "Exists" and toleration.key in ("", taint.key))
            or (toleration.operator in ("", "Equal") and (toleration.key, toleration.value) == (taint.key, taint.value))
        )
        for toleration in spec.tolerations
    )
