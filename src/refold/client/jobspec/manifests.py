"""Kubernetes manifests: `Job`, and Kubeflow's `TrainJob` and `PyTorchJob`. Ignored fields are noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refold.client.api import MAX_JOB_GPUS, MAX_NAME_CHARS, MAX_TIME_SECONDS
from refold.client.jobspec.builder import LocatedFields, ReadJob, SpecBuilder, SpecSource
from refold.client.jobspec.containers import read_container
from refold.client.jobspec.job_names import make_job_name
from refold.errors import UnknownName
from refold.model import MAX_RETRIES
from refold.model.documents import Part

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
API_VERSIONS = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/", "PyTorchJob": "kubeflow.org/v1"}
"""The supported kinds, and the prefix of their apiVersion."""

Parts = dict[str, Part]


def read_manifest(document: Part, source: SpecSource) -> ReadJob:
    """Read the job that a manifest describes."""
    fields = document.fields()
    kind = _required(document, "kind")
    name = kind.text("a kind")
    if name not in API_VERSIONS:
        raise kind.error(UnknownName("manifest kind", name[:64], API_VERSIONS))
    version = _required(document, "apiVersion")
    if not version.text("a version").startswith(API_VERSIONS[name]):
        raise version.unexpected(
            f"{API_VERSIONS[name]}{'v1alpha1' if API_VERSIONS[name].endswith('/') else ''} for a {name}"
        )
    builder = SpecBuilder(source, document)
    labels = _put_metadata(builder, fields.get("metadata"))
    spec = _required(document, "spec")
    READERS[name](builder, spec)
    _release_for_kueue(builder, labels)
    return ReadJob(builder.submission(), builder.notes)


def _required(part: Part, key: str) -> Part:
    fields = part.fields()
    if key not in fields:
        raise part.error(f"{key} is missing")
    return fields[key]


def _put_metadata(builder: SpecBuilder, metadata: Part | None) -> Parts:
    """Set the name, and the tenant from Kueue's queue label; return the labels."""
    parts = metadata.fields() if metadata is not None else {}
    if name := parts.get("name", parts.get("generateName")):
        builder.put("name", make_job_name(name.text("a name", 253)), name)
    labels = parts["labels"].fields() if "labels" in parts else {}
    if queue := labels.get(QUEUE_LABEL):
        builder.put("tenant", queue.text("a queue name", MAX_NAME_CHARS), queue)
    return labels


def _release_for_kueue(builder: SpecBuilder, labels: Parts) -> None:
    """Ignore `suspend` of jobs with a queue label: Kueue unsuspends them, here the scheduler starts them."""
    if builder.fields.get("hold") and QUEUE_LABEL in labels:
        builder.note(builder.parts["hold"], "suspend is ignored: a job with a queue label is not held")
        builder.fields["hold"] = False


def _job(builder: SpecBuilder, spec: Part) -> None:
    parts = _read_fields(
        builder, spec, ("parallelism", "completions", "template"), ("manualSelector", "completionMode", "selector")
    )
    if "parallelism" in parts:
        builder.put(
            "instances", parts["parallelism"].integer("a whole number ≥ 1", 1, MAX_JOB_GPUS), parts["parallelism"]
        )
    if "completions" in parts:
        completions = parts["completions"].integer("a whole number ≥ 0")
        if completions != builder.fields.get("instances", 1):
            builder.note(parts["completions"], "spec.completions is ignored: each of `parallelism` instances runs once")
    _put_limits(builder, parts)
    container = _read_first_container(builder, _required(spec, "template"))
    _put_container(builder, container)


def _train_job(builder: SpecBuilder, spec: Part) -> None:
    parts = _read_fields(builder, spec, ("trainer",), ("managedBy",))
    _put_limits(builder, parts)
    trainer = _required(spec, "trainer")
    if "numNodes" in trainer.fields():
        nodes = trainer.fields()["numNodes"]
        builder.put("instances", nodes.integer("a whole number ≥ 1", 1, MAX_JOB_GPUS), nodes)
    _put_container(builder, read_container(builder, trainer, "resourcesPerNode", ("numNodes",)))


def _pytorch_job(builder: SpecBuilder, spec: Part) -> None:
    parts = _read_fields(builder, spec, ("pytorchReplicaSpecs", "runPolicy"), ())
    if "runPolicy" in parts:
        policy = _read_fields(builder, parts["runPolicy"], (), ("cleanPodPolicy",))
        _put_limits(builder, policy)
    replicas = _required(spec, "pytorchReplicaSpecs")
    groups = list(replicas.fields(("Master", "Worker")).values())
    if not groups:
        raise replicas.unexpected("a Master, a Worker, or both")
    containers = [_read_first_container(builder, _required(group, "template")) for group in groups]
    for group, container in zip(groups, containers, strict=True):
        if container.fields != containers[0].fields:
            raise group.error("differs in command, env or resources, expected identical replicas")
    builder.put("instances", sum(_replicas(group) for group in groups), replicas)
    _put_container(builder, containers[0])


def _replicas(group: Part) -> int:
    fields = group.fields(("replicas", "template", "restartPolicy"))
    return fields["replicas"].integer("a whole number ≥ 1", 1, MAX_JOB_GPUS) if "replicas" in fields else 1


READERS: dict[str, Callable[[SpecBuilder, Part], None]] = {
    "Job": _job,
    "TrainJob": _train_job,
    "PyTorchJob": _pytorch_job,
}

_LIMIT_FIELDS = ("suspend", "activeDeadlineSeconds", "backoffLimit")
_POD_FIELDS = ("containers", "restartPolicy", "activeDeadlineSeconds")


def _read_fields(builder: SpecBuilder, part: Part, read: Iterable[str], harmless: Iterable[str]) -> Parts:
    """Return the fields of a part, and note those that are neither read nor harmless."""
    parts = part.fields()
    known = {*read, *harmless, *_LIMIT_FIELDS}
    for key, inner in parts.items():
        if key not in known:
            builder.note(inner, f"{inner.path} is ignored")
    return parts


def _put_limits(builder: SpecBuilder, parts: Parts) -> None:
    """Set the time limit, the number of retries, and whether the job is held."""
    if "suspend" in parts:
        builder.put("hold", parts["suspend"].boolean(), parts["suspend"])
    if seconds := parts.get("activeDeadlineSeconds"):
        builder.put("time_limit", float(seconds.integer("whole seconds ≥ 1", 1, MAX_TIME_SECONDS)), seconds)
    if limit := parts.get("backoffLimit"):
        builder.put("retries", limit.integer(f"a whole number from 0 to {MAX_RETRIES}", 0, MAX_RETRIES), limit)


def _read_first_container(builder: SpecBuilder, template: Part) -> LocatedFields:
    """Read the first container of a pod template."""
    pod = _required(template, "spec")
    parts = pod.fields()
    for key, inner in parts.items():
        if key not in _POD_FIELDS:
            builder.note(inner, f"{inner.path} is ignored")
    if "activeDeadlineSeconds" in parts and "time_limit" not in builder.fields:
        _put_limits(builder, {"activeDeadlineSeconds": parts["activeDeadlineSeconds"]})
    containers = _required(pod, "containers")
    entries = containers.entries("a list of containers")
    if not entries:
        raise containers.error("is an empty list, expected one container")
    for other in entries[1:]:
        builder.note(other, f"{other.path} is ignored: only the first container runs")
    return read_container(builder, entries[0], "resources", ())


def _put_container(builder: SpecBuilder, container: LocatedFields) -> None:
    for name, value in container.fields.items():
        builder.put(name, value, container.parts[name])
