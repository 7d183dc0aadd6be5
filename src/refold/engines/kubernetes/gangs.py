"""Pods as gangs: those that start together or not at all."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from refold.engines.kubernetes.objects import OwnerReference, Pod

SCHEDULER_NAME = "refold"
GANG_LABEL = "refold.dev/gang"
GANG_SIZE_LABEL = "refold.dev/gang-size"
"""Plain pods with the same `GANG_LABEL` are a gang of `GANG_SIZE_LABEL` pods."""

DAEMON_ANNOTATION = "refold.dev/daemon"
JOB_ANNOTATION = "refold.dev/job"
RUN_ANNOTATION = "refold.dev/run"
"""A pod that Refold has bound names the daemon, the job and the run that it belongs to."""

BINDING_ANNOTATION = "refold.dev/binding"
"""Proves that this daemon has bound the pod, for this run: anyone may copy the other annotations to another pod."""

INSTANCE_ANNOTATION = "refold.dev/instance"

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
KUBEFLOW_LABEL = "training.kubeflow.org/job-name"
INDEX_LABELS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "apps.kubernetes.io/pod-index",
)

MAX_DIGITS = 12

GangKind = Literal["Pod", "Pods", "Job", "JobSet", "PyTorchJob", "PodGroup", "Workload"]


RunKey = tuple[str, int]
"""A job id and a run number."""


class DaemonIdentity(NamedTuple):
    """Who binds pods: the id of a daemon, and the key with which it signs what it binds. The key is a secret."""

    id: str
    key: str

    def sign(self, namespace: str, uid: str, run: RunKey, instance: str = "") -> str:
        """Return the proof that an object with this uid belongs to a run; '' as the uid: an object by name."""
        said = msgspec.json.encode((self.id, namespace, uid, *run, instance))
        return hmac.digest(self.key.encode(), said, "sha256").hex()[:40]

    def has_signed(self, proof: str, namespace: str, uid: str, run: RunKey, instance: str = "") -> bool:
        return hmac.compare_digest(self.sign(namespace, uid, run, instance).encode(), proof.encode())


class GangName(NamedTuple):
    """What a gang is made of: an object of the API, pods with a label (`Pods`), or a single pod (`Pod`).

    `uid` distinguishes objects of the same name; pods with a label, and older JobSets, have none. `part`: the pod group
    of a Workload.
    """

    kind: GangKind
    namespace: str
    name: str
    uid: str = ""
    part: str = ""

    @property
    def key(self) -> str:
        """A text of limited length that identifies the gang as long as it exists."""
        identity = self.uid or sha256("/".join((self.namespace, self.name)).encode()).hexdigest()[:32]
        return f"{self.kind}/{identity}" + f"/{self.part}" * bool(self.part)

    def text(self) -> str:
        """Return the name as text, which `parse_gang_name` reads. Owners may have any text as name and uid."""
        return "/".join(quote(part, safe="") for part in self)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" + f"/{self.part}" * bool(self.part)


def parse_gang_name(text: str) -> GangName:
    """Return the gang that `GangName.text` has written."""
    kind, namespace, name, uid, part = map(unquote, text.split("/"))
    return GangName(msgspec.convert(kind, GangKind), namespace, name, uid, part)


def gang_name(pod: Pod) -> GangName:
    """Return the gang of a pod. The more explicit grouping counts: PodGroup, label, JobSet, Kubeflow, Job."""
    namespace, labels, spec = pod.metadata.namespace, pod.metadata.labels, pod.spec
    owner = controller_of(pod)
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return GangName("PodGroup", namespace, spec.scheduling_group.pod_group_name)
    if spec.workload_ref is not None:
        return GangName("Workload", namespace, spec.workload_ref.name, part=spec.workload_ref.pod_group)
    if GANG_LABEL in labels:
        return GangName("Pods", namespace, labels[GANG_LABEL])
    if JOBSET_LABEL in labels:
        return GangName("JobSet", namespace, labels[JOBSET_LABEL], labels.get(JOBSET_UID_LABEL, ""))
    if owner is not None and owner.kind == "PyTorchJob":
        return GangName("PyTorchJob", namespace, owner.name, owner.uid)
    if owner is not None and owner.kind == "Job":
        return GangName("Job", namespace, owner.name, owner.uid)
    return single_pod(pod)


def single_pod(pod: Pod) -> GangName:
    return GangName("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the object that creates the pod again if it is deleted."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def is_ours(pod: Pod) -> bool:
    return pod.spec.scheduler_name == SCHEDULER_NAME


def run_of(pod: Pod, daemon: DaemonIdentity) -> RunKey | None:
    metadata, annotations = pod.metadata, pod.metadata.annotations
    job, number = annotations.get(JOB_ANNOTATION, ""), annotations.get(RUN_ANNOTATION, "")
    if not pod.is_bound or annotations.get(DAEMON_ANNOTATION) != daemon.id or not is_run_number(number):
        return None
    run, proof = (job, int(number)), annotations.get(BINDING_ANNOTATION, "")
    instance = annotations.get(INSTANCE_ANNOTATION, "")
    return run if daemon.has_signed(proof, metadata.namespace, metadata.uid, run, instance) else None


def is_run_number(text: str) -> bool:
    """Whether a text is the number of a run. Texts of others may have any length."""
    return len(text) < MAX_DIGITS and text.isascii() and text.isdecimal()


def pod_order(pod: Pod) -> tuple[int, str]:
    """Sort pods by the index that their controller gave them, then by name."""
    written = next((pod.metadata.labels[label] for label in INDEX_LABELS if label in pod.metadata.labels), "")
    return (int(written) if is_run_number(written) else -1, pod.metadata.name)
