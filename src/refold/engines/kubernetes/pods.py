"""Pods of Kubernetes as submissions: a gang is a job, each of its pods an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from refold.client.api import MAX_NAME_CHARS, MAX_TIME_SECONDS, Submission
from refold.client.jobspec import kueue_topology, make_job_name
from refold.engines.kubernetes.gangs import (
    BINDING_ANNOTATION,
    DAEMON_ANNOTATION,
    GANG_LABEL,
    GANG_SIZE_LABEL,
    INSTANCE_ANNOTATION,
    JOB_ANNOTATION,
    RUN_ANNOTATION,
    GangName,
    controller_of,
    is_run_number,
)
from refold.engines.kubernetes.nodes import PodConstraints
from refold.engines.kubernetes.objects import Metadata, Pod
from refold.engines.kubernetes.own_jobs import GPUS_ANNOTATION, INSTANCES_ANNOTATION, PLAN_ANNOTATION
from refold.engines.kubernetes.owner_specs import QUEUE_LABEL, Owner
from refold.engines.kubernetes.resources import FRACTION_ANNOTATION, largest_need, pod_need
from refold.engines.kubernetes.volumes import PodVolumes
from refold.errors import BadInput, BadValue, UnknownName
from refold.model import WHOLE, JobClass, Seconds, TopologyRequest, parse_duration
from refold.planning.catalogue import find_model

CLASS_LABEL = "refold.dev/class"
PREEMPTIBLE_LABEL = "refold.dev/preemptible"
ESTIMATE_ANNOTATION = "refold.dev/estimate"
TIME_LIMIT_ANNOTATION = "refold.dev/time-limit"
WORKLOAD_ANNOTATION = "refold.dev/workload"
RANGE_ANNOTATION = "refold.dev/gpu-range"
"""The least and the most GPUs of an elastic gang, such as 4..16."""

PREFIX = "refold.dev/"
LABELS = (CLASS_LABEL, PREEMPTIBLE_LABEL, GANG_LABEL, GANG_SIZE_LABEL)
ANNOTATIONS = (ESTIMATE_ANNOTATION, TIME_LIMIT_ANNOTATION, WORKLOAD_ANNOTATION, RANGE_ANNOTATION, FRACTION_ANNOTATION)
WRITTEN = (
    *(DAEMON_ANNOTATION, JOB_ANNOTATION, RUN_ANNOTATION, BINDING_ANNOTATION),
    *(INSTANCE_ANNOTATION, INSTANCES_ANNOTATION, PLAN_ANNOTATION, GPUS_ANNOTATION),
)
"""Annotations of bound pods. A pod that waits may have copies of them, which mean nothing."""


def gang_submission(
    gang: GangName, pods: Sequence[Pod], owner: Owner, request: str, has_levels: bool = False
) -> Submission:
    """Return the submission of a gang. Raises BadInput if its pods cannot be scheduled.

    Every instance gets what the largest pod requests. Labels and annotations are those of the first pod. A pod that
    nothing would create again is not preemptible. Without `has_levels` of the cluster, no topology is requested.
    """
    first = pods[0]
    labels, annotations = first.metadata.labels, first.metadata.annotations
    size = len(pods) if owner.size is None else owner.size
    _check_keys(first.metadata)
    try:
        need = largest_need(pod_need(pod) for pod in pods)
        fields: dict[str, Any] = {
            "name": make_job_name(gang.name),
            "command": _command(first),
            "instances": size,
            "gpus": need.gpus,
            "gpu_share": need.gpu_milli / WHOLE,
            "cpus": need.cpu_milli / WHOLE,
            "memory_gib": need.memory_mib / 1024,
            "tenant": (labels.get(QUEUE_LABEL) or owner.queue or gang.namespace)[:MAX_NAME_CHARS],
            "job_class": _job_class(labels.get(CLASS_LABEL)),
            "priority": first.spec.priority,
            "preemptible": _preemptible(labels.get(PREEMPTIBLE_LABEL), first),
            "time_limit": _seconds(annotations.get(TIME_LIMIT_ANNOTATION), owner.time_limit),
            "estimate": _seconds(annotations.get(ESTIMATE_ANNOTATION), None),
            "workload": _workload(annotations),
            "gpu_range": _gpu_range(annotations.get(RANGE_ANNOTATION), owner),
            "topology": _topology(annotations, owner) if has_levels else None,
            "retries": owner.retries,
            "allow_impossible": True,
            "request": request,
        }
        return Submission(**fields)
    except BadValue as error:
        raise BadInput(f"{gang}: {error}") from None


def _check_keys(metadata: Metadata) -> None:
    """Refuse labels and annotations that would be ignored: misspelt ones, and a label as annotation or vice versa."""
    given = (("label", metadata.labels, LABELS, ANNOTATIONS), ("annotation", metadata.annotations, ANNOTATIONS, LABELS))
    for kind, found, known, others in given:
        for key in found:
            if not key.startswith(PREFIX) or key in known or key in WRITTEN:
                continue
            if key in others:
                raise BadInput(f"{key} is {'a label' if kind == 'annotation' else 'an annotation'}, found as {kind}")
            raise UnknownName(kind, key[:80], known)
    if GANG_SIZE_LABEL in metadata.labels and GANG_LABEL not in metadata.labels:
        raise BadInput(f"the label {GANG_SIZE_LABEL} needs the label {GANG_LABEL}, with the name of the gang")


def _workload(annotations: Mapping[str, str]) -> str:
    """Return the model. Gangs of which the size is open may have names of their own: their speed is measured."""
    name = annotations.get(WORKLOAD_ANNOTATION, "")
    return name if RANGE_ANNOTATION in annotations or not name else find_model(name[:80]).name


def _topology(annotations: Mapping[str, str], owner: Owner) -> TopologyRequest | None:
    return TopologyRequest(owner.level) if owner.level else kueue_topology(annotations)


def pod_constraints(pods: Sequence[Pod], volumes: PodVolumes) -> PodConstraints:
    """Return what limits the nodes on which the pods of a gang may be. Raises BadValue if they need several GPUs."""
    need = largest_need(pod_need(pod) for pod in pods)
    return PodConstraints((volumes.limited(pod) for pod in pods), need.resource)


def _command(pod: Pod) -> list[str]:
    container = pod.spec.containers[0]
    return [*container.command, *container.args] or [container.image or "pod"]


def _job_class(written: str | None) -> JobClass:
    for known in get_args(JobClass):
        if written in (None, known):
            found: JobClass = known
            return found
    raise BadValue(f"the label {CLASS_LABEL} is {written!r}, expected {' or '.join(get_args(JobClass))}")


def _gpu_range(written: str | None, owner: Owner) -> tuple[int, int] | None:
    if written is None:
        return None
    if not owner.elastic:
        raise BadValue(
            f"{RANGE_ANNOTATION} needs a Job, or a JobSet with one Job, with completionMode Indexed and completions ="
            " parallelism, or a PyTorchJob with workers"
        )
    least, _, most = written.partition("..")
    if not (is_run_number(least) and is_run_number(most)):
        raise BadValue(f"{RANGE_ANNOTATION} is {written[:40]!r}, expected the least and the most GPUs, such as 4..16")
    return int(least), int(most)


def _preemptible(written: str | None, pod: Pod) -> bool | None:
    if written not in (None, "true", "false"):
        raise BadValue(f"the label {PREEMPTIBLE_LABEL} is {written!r}, expected true or false")
    if controller_of(pod) is None:
        return False
    return None if written is None else written == "true"


def _seconds(written: str | None, default: Seconds | None) -> Seconds | None:
    seconds = default if written is None else parse_duration(written)
    return None if seconds is None else min(float(seconds), MAX_TIME_SECONDS)
