"""Manifests of Kubernetes: `Job`, and `TrainJob` and `PyTorchJob` of Kubeflow. What means nothing here is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from refold.api import LONGEST_NAME, LONGEST_TIME, MOST_GPUS, Submission
from refold.documents import Part
from refold.errors import UnknownName
from refold.jobspec.builder import SpecBuilder, SpecSource, name_from
from refold.jobspec.containers import Container, container_at
from refold.model import MOST_RETRIES

QUEUE = "kueue.x-k8s.io/queue-name"
GROUPS = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/", "PyTorchJob": "kubeflow.org/v1"}
"""Each kind, and how its apiVersion begins."""

Said = dict[str, Part]


def read_manifest(document: Part, source: SpecSource) -> tuple[Submission, list[str]]:
    """The job that a manifest asks for, and what of it is not honoured."""
    fields = document.fields()
    kind = _required(document, "kind")
    name = kind.text("a kind")
    if name not in GROUPS:
        raise kind.refused(UnknownName("kind of manifest that is a job", name[:64], GROUPS))
    version = _required(document, "apiVersion")
    if not version.text("a version").startswith(GROUPS[name]):
        raise version.wrong(f"{GROUPS[name]}{'v1alpha1' if GROUPS[name].endswith('/') else ''} for a {name}")
    draft = SpecBuilder(source, document)
    labels = _put_metadata(draft, fields.get("metadata"))
    spec = _required(document, "spec")
    READERS[name](draft, spec)
    _release_for_kueue(draft, labels)
    return draft.submission(), draft.notes


def _required(part: Part, key: str) -> Part:
    fields = part.fields()
    if key not in fields:
        raise part.refused(f"{key} is absent, expected one")
    return fields[key]


def _put_metadata(draft: SpecBuilder, metadata: Part | None) -> Said:
    """The name, the tenant from the label of Kueue; the labels."""
    said = metadata.fields() if metadata is not None else {}
    if name := said.get("name", said.get("generateName")):
        draft.put("name", name_from(name.text("a name", 253)), name)
    labels = said["labels"].fields() if "labels" in said else {}
    if queue := labels.get(QUEUE):
        draft.put("tenant", queue.text("the name of a queue", LONGEST_NAME), queue)
    return labels


def _release_for_kueue(draft: SpecBuilder, labels: Said) -> None:
    """Jobs for Kueue are written suspended, and Kueue lets them go: here the scheduler does."""
    if draft.fields.get("hold") and QUEUE in labels:
        draft.note(
            draft.said["hold"], "suspend is not taken as a hold: a job with the name of a queue starts in its turn"
        )
        draft.fields["hold"] = False


def _job(draft: SpecBuilder, spec: Part) -> None:
    said = _said(
        draft, spec, ("parallelism", "completions", "template"), ("manualSelector", "completionMode", "selector")
    )
    if "parallelism" in said:
        draft.put("instances", said["parallelism"].whole("a whole number ≥ 1", 1, MOST_GPUS), said["parallelism"])
    if "completions" in said:
        completions = said["completions"].whole("a whole number ≥ 0")
        if completions != draft.fields.get("instances", 1):
            draft.note(
                said["completions"], "spec.completions is not honoured: each of `parallelism` instances runs once"
            )
    _put_limits(draft, said)
    container = _container_of(draft, _required(spec, "template"))
    _put_container(draft, container)


def _train_job(draft: SpecBuilder, spec: Part) -> None:
    said = _said(draft, spec, ("trainer",), ("managedBy",))
    _put_limits(draft, said)
    trainer = _required(spec, "trainer")
    if "numNodes" in trainer.fields():
        nodes = trainer.fields()["numNodes"]
        draft.put("instances", nodes.whole("a whole number ≥ 1", 1, MOST_GPUS), nodes)
    _put_container(draft, container_at(draft, trainer, "resourcesPerNode", ("numNodes",)))


def _pytorch_job(draft: SpecBuilder, spec: Part) -> None:
    said = _said(draft, spec, ("pytorchReplicaSpecs", "runPolicy"), ())
    if "runPolicy" in said:
        policy = _said(draft, said["runPolicy"], (), ("cleanPodPolicy",))
        _put_limits(draft, policy)
    replicas = _required(spec, "pytorchReplicaSpecs")
    groups = list(replicas.fields(("Master", "Worker")).values())
    if not groups:
        raise replicas.wrong("a Master, a Worker, or both")
    containers = [_container_of(draft, _required(group, "template")) for group in groups]
    for group, container in zip(groups, containers, strict=True):
        if container.asked != containers[0].asked:
            raise group.refused(
                "differs from the others in command, env or resources, expected instances that are equal"
            )
    draft.put("instances", sum(_replicas(group) for group in groups), replicas)
    _put_container(draft, containers[0])


def _replicas(group: Part) -> int:
    fields = group.fields(("replicas", "template", "restartPolicy"))
    return fields["replicas"].whole("a whole number ≥ 1", 1, MOST_GPUS) if "replicas" in fields else 1


READERS: dict[str, Callable[[SpecBuilder, Part], None]] = {
    "Job": _job,
    "TrainJob": _train_job,
    "PyTorchJob": _pytorch_job,
}

_LIMITS = ("suspend", "activeDeadlineSeconds", "backoffLimit")
_IN_TEMPLATE = ("containers", "restartPolicy", "activeDeadlineSeconds")


def _said(draft: SpecBuilder, part: Part, read: Iterable[str], without_meaning: Iterable[str]) -> Said:
    """The fields of a part; those that are neither read nor without any meaning are noted."""
    said = part.fields()
    known = {*read, *without_meaning, *_LIMITS}
    for key, inner in said.items():
        if key not in known:
            draft.note(inner, f"{inner.path} is not honoured")
    return said


def _put_limits(draft: SpecBuilder, said: Said) -> None:
    """How long it may take, how often it is tried again, whether it waits to be released."""
    if "suspend" in said:
        draft.put("hold", said["suspend"].truth(), said["suspend"])
    if seconds := said.get("activeDeadlineSeconds"):
        draft.put("time_limit", float(seconds.whole("whole seconds ≥ 1", 1, LONGEST_TIME)), seconds)
    if limit := said.get("backoffLimit"):
        draft.put("retries", limit.whole(f"a whole number from 0 to {MOST_RETRIES}", 0, MOST_RETRIES), limit)


def _container_of(draft: SpecBuilder, template: Part) -> Container:
    """The first container of a template of pods."""
    pod = _required(template, "spec")
    said = pod.fields()
    for key, inner in said.items():
        if key not in _IN_TEMPLATE:
            draft.note(inner, f"{inner.path} is not honoured")
    if "activeDeadlineSeconds" in said and "time_limit" not in draft.fields:
        _put_limits(draft, {"activeDeadlineSeconds": said["activeDeadlineSeconds"]})
    containers = _required(pod, "containers")
    several = containers.entries("a list of containers")
    if not several:
        raise containers.refused("is an empty list, expected a container")
    for other in several[1:]:
        draft.note(other, f"{other.path} is not honoured: the command of the first container runs")
    return container_at(draft, several[0], "resources", ())


def _put_container(draft: SpecBuilder, container: Container) -> None:
    fields: dict[str, Any] = container.asked
    for name, value in fields.items():
        draft.put(name, value, container.said.get(name, container.part))
