"""Kubernetes manifests: `Job`, and Kubeflow's `TrainJob` and `PyTorchJob`. Ignored fields are noted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from refold.client.api import MAX_COMMAND_CHARS, MAX_JOB_GPUS, MAX_NAME_CHARS, MAX_TIME_SECONDS
from refold.client.jobspec.builder import LocatedFields, ReadJob, SpecBuilder, SpecSource, make_job_name
from refold.client.jobspec.quantities import EXPECTED_QUANTITY, parse_quantity
from refold.errors import BadValue, UnknownName
from refold.model import MAX_RETRIES, TopologyRequest
from refold.model.documents import Part

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REQUIRED_ANNOTATION = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_ANNOTATION = "kueue.x-k8s.io/podset-preferred-topology"
SLICE_ANNOTATION = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE_ANNOTATION = "kueue.x-k8s.io/podset-slice-size"
"""Annotations of pods, by which Kueue's topology-aware scheduling is requested. Levels are labels of nodes."""

MAX_DIGITS = 10
API_VERSIONS = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/", "PyTorchJob": "kubeflow.org/v1"}
"""The supported kinds, and the prefix of their apiVersion."""

Parts = dict[str, Part]


def read_manifest(document: Part, source: SpecSource) -> ReadJob:
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
    pod = _required(template, "spec")
    _put_topology(builder, template)
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


def _put_topology(builder: SpecBuilder, template: Part) -> None:
    """Set what the annotations of a pod template request of the topology."""
    metadata = template.fields().get("metadata")
    annotations = metadata.fields().get("annotations") if metadata is not None else None
    if annotations is None:
        return
    try:
        request = kueue_topology({key: part.written for key, part in annotations.fields().items()})
    except BadValue as error:
        raise annotations.error(error) from None
    if request is not None:
        builder.put("topology", request, annotations)


def kueue_topology(annotations: Mapping[str, str]) -> TopologyRequest | None:
    """Return what Kueue's annotations of pods request of the topology. Raises BadValue."""
    level, written = annotations.get(SLICE_ANNOTATION, ""), annotations.get(SLICE_SIZE_ANNOTATION, "")
    size = int(written) if written.isdecimal() and len(written) < MAX_DIGITS else 0
    if bool(level) != bool(written) or (written and not size):
        raise BadValue(f"{SLICE_SIZE_ANNOTATION} is {written[:40]!r}, expected pods ≥ 1, with {SLICE_ANNOTATION}")
    required, preferred = annotations.get(REQUIRED_ANNOTATION, ""), annotations.get(PREFERRED_ANNOTATION, "")
    return TopologyRequest(required, preferred, size, level) if required or preferred or size else None


def _put_container(builder: SpecBuilder, container: LocatedFields) -> None:
    for name, value in container.fields.items():
        builder.put(name, value, container.parts[name])


# A container of a Kubernetes manifest, converted to a command that runs directly on the node.

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
IMAGE_NOTE = "image is ignored: the command runs directly on the node"

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_CONTAINER_FIELDS = ("name", "image", "imagePullPolicy", "command", "args", "env", "workingDir")


def read_container(builder: SpecBuilder, part: Part, resources: str, read_elsewhere: Iterable[str]) -> LocatedFields:
    """Read a container. `resources`: the key of its resources; `read_elsewhere`: keys that the caller reads."""
    container = LocatedFields()
    parts = part.fields()
    for key, inner in parts.items():
        if key == "image":
            builder.note(inner, IMAGE_NOTE)
        elif key not in (*_CONTAINER_FIELDS, resources, *read_elsewhere):
            builder.note(inner, f"{inner.path} is ignored")
    if "env" in parts:
        container.put("environment", _variables(builder, parts["env"]), parts["env"])
    _put_command(container, part)
    if "workingDir" in parts:
        container.put("folder", builder.source.folder_at(parts["workingDir"]), parts["workingDir"])
    _put_resources(builder, container, part, parts.get(resources))
    return container


def _variables(builder: SpecBuilder, part: Part) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in part.entries("a list of names and values"):
        fields = entry.fields()
        if "name" not in fields:
            raise entry.error("name is missing, expected a variable name")
        name = fields["name"].text("a variable name")
        if "valueFrom" in fields:
            builder.note(entry, f"{entry.path}: {name[:64]} is not set: valueFrom is not supported")
        elif "value" in fields:
            if not isinstance(fields["value"].value, str):  # Kubernetes rejects `value: 8` too
                raise fields["value"].unexpected("text; quote numbers and booleans")
            variables[name] = expand_references(fields["value"].written, variables)
        else:
            variables[name] = ""
    return variables


def expand_references(text: str, variables: dict[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown variables are left as they are, and `$$` is a literal `$`."""

    def value_of(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value_of, text)


def _put_command(container: LocatedFields, part: Part) -> None:
    parts = part.fields()
    arguments: list[str] = []
    for key in ("command", "args"):
        if key in parts:
            arguments += [_read_argument(entry) for entry in parts[key].entries("a list of arguments")]
    if not parts.get("command") or not arguments:
        raise part.error("command is missing, expected a list of arguments; the command of the image is unknown")
    variables = container.fields.get("environment", {})
    container.put("command", [expand_references(argument, variables) for argument in arguments], parts["command"])


def _read_argument(part: Part) -> str:
    return "" if part.value == "" else part.text("an argument", MAX_COMMAND_CHARS)


def _put_resources(builder: SpecBuilder, container: LocatedFields, whole: Part, part: Part | None) -> None:
    """Set GPUs from the limits; CPUs and memory from the requests, as Kubernetes schedules, else from the limits."""
    container.put("gpus", 0, part or whole)
    if part is None:
        return
    groups = part.fields(("limits", "requests", "claims"))
    if "claims" in groups:
        builder.note(groups["claims"], f"{groups['claims'].path} is ignored")
    amounts = {
        key: amount for group in ("limits", "requests") if group in groups for key, amount in _amounts(groups[group])
    }
    for key, amount in amounts.items():
        if key in GPU_RESOURCES:
            container.put("gpus", _read_integer(amount), amount)
        elif key in _FIELDS:
            name, convert = _FIELDS[key]
            container.put(name, convert(_read_quantity(amount)), amount)
        else:
            builder.note(amount, f"{amount.path} is ignored")


def _amounts(part: Part) -> Iterable[tuple[str, Part]]:
    return part.fields(expected="resources and their quantities").items()


_FIELDS: dict[str, tuple[str, Callable[[float], float]]] = {
    "cpu": ("cpus", lambda cpus: cpus),
    "memory": ("memory_gib", lambda size: size / 2**30),
}


def _read_quantity(part: Part) -> float:
    quantity = part.quantity(parse_quantity, EXPECTED_QUANTITY)
    if quantity < 0:
        raise part.unexpected(EXPECTED_QUANTITY)
    return quantity


def _read_integer(part: Part) -> int:
    quantity = _read_quantity(part)
    if quantity != int(quantity):
        raise part.unexpected("a whole number of GPUs")
    return int(quantity)
