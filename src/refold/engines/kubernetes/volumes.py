"""Volume claims: what keeps a pod waiting, on which nodes its volumes can be, and which are made for its node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from refold.engines.kubernetes.objects import (
    Metadata,
    NodeAffinity,
    NodeSelector,
    Pod,
    PodSpec,
    Requirement,
    SelectorTerm,
)

CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a claim of a class with WaitForFirstConsumer: the node of its first pod, for which the volume is made."""

NO_PROVISIONER = "kubernetes.io/no-provisioner"


class _StorageObject(msgspec.Struct, frozen=True, rename="camel"):
    pass


class ClaimSpec(_StorageObject, frozen=True):
    """The volume that was bound to a claim, or the class of the one that it asks for."""

    volume_name: str = ""
    storage_class_name: str | None = None


class ClaimStatus(_StorageObject, frozen=True):
    """`phase`: Pending, Bound or Lost."""

    phase: str = "Pending"


class VolumeClaim(_StorageObject, frozen=True):
    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        return self.status.phase == "Bound"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.metadata.namespace}/persistentvolumeclaims/{self.metadata.name}"


class VolumeAffinity(_StorageObject, frozen=True):
    """The nodes to which a volume can be attached."""

    required: NodeSelector | None = None


class VolumeSpec(_StorageObject, frozen=True):
    """Where a volume can be used."""

    node_affinity: VolumeAffinity = VolumeAffinity()


class Volume(_StorageObject, frozen=True):
    metadata: Metadata
    spec: VolumeSpec = VolumeSpec()


class TopologyTerm(_StorageObject, frozen=True):
    match_label_expressions: list[Requirement] = []


class StorageClass(_StorageObject, frozen=True):
    """How volumes are made, and on which nodes they can be."""

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[TopologyTerm] = []

    @property
    def selector(self) -> NodeSelector | None:
        """The nodes for which it makes volumes; None: all."""
        terms = [SelectorTerm(term.match_label_expressions) for term in self.allowed_topologies]
        return NodeSelector(terms) if terms else None


StorageKind = TypeVar("StorageKind", VolumeClaim, Volume, StorageClass)


class StorageTable(Generic[StorageKind]):
    """Objects of a kind by namespace and name; None until they were listed."""

    found: dict[str, StorageKind] | None = None

    def replace(self, found: Sequence[StorageKind]) -> None:
        self.found = {_key(each): each for each in found}

    def change(self, changed: StorageKind, deleted: bool) -> None:
        assert self.found is not None, "objects are listed before they change"
        self.found[_key(changed)] = changed
        if deleted:
            del self.found[_key(changed)]


def _key(found: StorageKind) -> str:
    return f"{found.metadata.namespace}/{found.metadata.name}"


class PodVolumes:
    """The volumes of pods. Before all claims, volumes and classes were listed, nothing is said about them."""

    def __init__(self) -> None:
        self.claims: StorageTable[VolumeClaim] = StorageTable()
        self.volumes: StorageTable[Volume] = StorageTable()
        self.classes: StorageTable[StorageClass] = StorageTable()

    def problem(self, pod: Pod) -> str:
        """Return why a pod cannot be bound to any node yet; '' if it can."""
        if None in (self.claims.found, self.volumes.found, self.classes.found):
            return ""
        for name in pod.claim_names:
            claim = self._claim(pod, name)
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if claim.metadata.deletion_timestamp is not None:
                return f'persistentvolumeclaim "{name}" is being deleted'
            if not claim.is_bound and (why := self._unbound_problem(claim)):
                return f'persistentvolumeclaim "{name}" {why}'
        return ""

    def _unbound_problem(self, claim: VolumeClaim) -> str:
        found = self._class(claim)
        if claim.status.phase == "Lost":
            return "has lost its volume"
        if found is None or found.volume_binding_mode != "WaitForFirstConsumer":
            return "has no volume yet"
        if found.provisioner == NO_PROVISIONER:
            return f"is of the class {found.metadata.name}, which makes no volumes: name one in spec.volumeName"
        return ""

    def limited(self, pod: Pod) -> PodSpec:
        """Return the spec of a pod, whose node affinity includes that of its volumes."""
        selectors = list(self._selectors(pod))
        if not selectors:
            return pod.spec
        required = reduce(_both, selectors, pod.spec.affinity.node_affinity.required)
        return replace(pod.spec, affinity=replace(pod.spec.affinity, node_affinity=NodeAffinity(required)))

    def to_provision(self, pod: Pod) -> list[VolumeClaim]:
        """Return the claims for which volumes are made once the node of the pod is known."""
        claims = (self._claim(pod, name) for name in pod.claim_names)
        return [claim for claim in claims if claim is not None and not claim.is_bound]

    def _selectors(self, pod: Pod) -> Iterator[NodeSelector]:
        for name in pod.claim_names:
            if (claim := self._claim(pod, name)) is None:
                continue
            volume = (self.volumes.found or {}).get(f"/{claim.spec.volume_name}")
            if volume is not None and volume.spec.node_affinity.required is not None:
                yield volume.spec.node_affinity.required
            found = None if claim.is_bound else self._class(claim)
            if found is not None and found.selector is not None:
                yield found.selector

    def _claim(self, pod: Pod, name: str) -> VolumeClaim | None:
        return (self.claims.found or {}).get(f"{pod.metadata.namespace}/{name}")

    def _class(self, claim: VolumeClaim) -> StorageClass | None:
        return (self.classes.found or {}).get(f"/{claim.spec.storage_class_name}")


def _both(first: NodeSelector | None, second: NodeSelector) -> NodeSelector:
    """Return what selects the nodes that both select. An empty term selects none."""
    if first is None:
        return second
    return NodeSelector(
        [
            SelectorTerm([*a.match_expressions, *b.match_expressions], [*a.match_fields, *b.match_fields])
            for a in first.node_selector_terms
            for b in second.node_selector_terms
            if (a.match_expressions or a.match_fields) and (b.match_expressions or b.match_fields)
        ]
    )
