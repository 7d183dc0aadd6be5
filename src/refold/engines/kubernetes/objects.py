"""The fields of Kubernetes objects that Refold reads. All other fields are skipped while decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Amounts = dict[str, str | int | float]
"""Quantities by resource name."""


class _Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class OwnerReference(_Object, frozen=True):
    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False


class Metadata(_Object, frozen=True):
    """Name, identity, labels and annotations of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Condition(_Object, frozen=True):
    """A condition of a node, pod or Job."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""


# Nodes.


class Taint(_Object, frozen=True):
    """Keeps pods without a matching toleration off a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Object, frozen=True):
    """`unschedulable`: the node is cordoned."""

    unschedulable: bool = False
    taints: list[Taint] = []


class ApiNodeStatus(_Object, frozen=True):
    """Resources and conditions. `allocatable` lacks what is unhealthy or reserved for the system."""

    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: list[Condition] = []


class ApiNode(_Object, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: ApiNodeStatus = ApiNodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name


# Pods.


class Toleration(_Object, frozen=True):
    """Tolerates the taints that it matches."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(_Object, frozen=True):
    """A condition on a label, or on a field of a node."""

    key: str
    operator: str = "In"
    values: list[str] = []

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    def _compares(self, value: str | None) -> bool:
        try:
            found, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return found > bound if self.operator == "Gt" else found < bound


class SelectorTerm(_Object, frozen=True):
    """Requirements that must all be met."""

    match_expressions: list[Requirement] = []
    match_fields: list[Requirement] = []


class NodeSelector(_Object, frozen=True):
    """Terms of which one must be met."""

    node_selector_terms: list[SelectorTerm] = []


class NodeAffinity(_Object, frozen=True):
    """The nodes that a pod must be on."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class PodAffinity(_Object, frozen=True):
    """The pods that a pod must be near, or must not be near."""

    required: list[msgspec.Raw] = msgspec.field(
        default_factory=list, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Object, frozen=True):
    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class SpreadConstraint(_Object, frozen=True):
    """How evenly pods are spread over nodes or zones."""

    when_unsatisfiable: str = ""


class ContainerResources(_Object, frozen=True):
    """What a container requests, and what it may use at most."""

    requests: Amounts = {}
    limits: Amounts = {}


class Container(_Object, frozen=True):
    """A container of a pod. An init container with `restart_policy` Always is a sidecar: it runs beside the others."""

    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    resources: ContainerResources = ContainerResources()
    restart_policy: str = ""


class ClaimReference(_Object, frozen=True):
    """A volume claim, by name."""

    claim_name: str = ""


class PodVolume(_Object, frozen=True):
    """A volume of a pod. `ephemeral`: its claim is created with the pod."""

    name: str = ""
    persistent_volume_claim: ClaimReference | None = None
    ephemeral: dict[str, Any] | None = None


class WorkloadReference(_Object, frozen=True):
    """A pod group within a Workload (scheduling.k8s.io/v1alpha1)."""

    name: str
    pod_group: str = ""


class SchedulingGroup(_Object, frozen=True):
    """A PodGroup (scheduling.k8s.io/v1alpha2 and later)."""

    pod_group_name: str | None = None


class PodSpec(_Object, frozen=True):
    """What is to run, and where it may run."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: Amounts = {}
    volumes: list[PodVolume] = []
    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[SpreadConstraint] = []
    resource_claims: list[msgspec.Raw] = []
    scheduling_gates: list[msgspec.Raw] = []
    priority: int = 0
    workload_ref: WorkloadReference | None = None
    scheduling_group: SchedulingGroup | None = None


class TerminatedState(_Object, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class WaitingState(_Object, frozen=True):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class ContainerState(_Object, frozen=True):
    waiting: WaitingState | None = None
    running: dict[str, Any] | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(_Object, frozen=True):
    """State of a container, by name."""

    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(_Object, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(_Object, frozen=True):
    """A group of containers on one node: one instance of a run."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def claim_names(self) -> list[str]:
        return [
            volume.persistent_volume_claim.claim_name
            if volume.persistent_volume_claim is not None
            else f"{self.metadata.name}-{volume.name}"
            for volume in self.spec.volumes
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None
        ]

    @property
    def is_bound(self) -> bool:
        return bool(self.spec.node_name)

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_deleted(self) -> bool:
        return self.metadata.deletion_timestamp is not None


class ApiEvent(_Object, frozen=True):
    """What a component says about an object, such as a kubelet about a pod."""

    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None


# Objects that create pods.


class ApiJobStatus(_Object, frozen=True):
    """Conditions of a Job: Complete, Failed, Suspended."""

    conditions: list[Condition] = []


class BatchJob(_Object, frozen=True):
    """A batch/v1 Job."""

    metadata: Metadata
    status: ApiJobStatus = ApiJobStatus()

    @property
    def has_ended(self) -> bool:
        return any(entry.type in ("Complete", "Failed") and entry.status == "True" for entry in self.status.conditions)
