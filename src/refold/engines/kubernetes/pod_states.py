"""How a run is doing, from the pods that were bound for it; which pods wait; and requests about pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from refold.engines.kubernetes.gangs import pod_order
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import ApiNode, Pod

_LOST_REASONS = ("Evicted", "NodeLost", "NodeAffinity", "NodeShutdown", "Preempting", "Shutdown", "Terminated")
_REJECTED_PREFIXES = ("OutOf", "Unexpected")
"""Reasons for which a kubelet refuses a pod: it has fewer resources than the scheduler thought."""


class PodFailure(NamedTuple):
    """Why a pod has failed. `lost`: not the job but the machine or the scheduler is at fault."""

    why: str
    lost: bool = False
    exit_code: int | None = None


def pod_failure(pod: Pod) -> PodFailure | None:
    """Return why a pod has failed; None if it has not."""
    status = pod.status
    if pod.is_deleted and not status.reason:
        return PodFailure(f"pod {pod.key} was deleted", lost=True)
    if status.phase != "Failed":
        return None
    disrupted = next(
        (entry for entry in status.conditions if entry.type == "DisruptionTarget" and entry.status == "True"), None
    )
    known = status.reason in _LOST_REASONS or status.reason.startswith(_REJECTED_PREFIXES)
    is_lost = known or pod.is_deleted or disrupted is not None
    ended = [entry.state.terminated for entry in status.container_statuses if entry.state.terminated is not None]
    failed = next((entry for entry in ended if entry.exit_code), None)
    if is_lost or failed is None:
        why = ": ".join(filter(None, [status.reason or (disrupted.reason if disrupted else ""), status.message]))
        return PodFailure(f"pod {pod.key} failed: {why or 'no reason given'}", is_lost)
    what = failed.message if failed.reason in ("StartError", "ContainerCannotRun") else f"exit {failed.exit_code}"
    reason = f" ({failed.reason})" if failed.reason not in ("", "Error", "StartError", "ContainerCannotRun") else ""
    return PodFailure(f"pod {pod.key}: {what}{reason}", exit_code=failed.exit_code)


_UNUSABLE = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)
"""Why a container does not start on any node: the pod itself is at fault."""

_UNSPECIFIC = ("", "ContainerCreating", "PodInitializing")


def start_problem(pod: Pod) -> PodFailure | None:
    """Return what the kubelet says about a pod that has not started; None if it has, or runs an init container.

    It says why in an event, rather than here, if it is about a volume, the network, or the node.
    """
    initial = pod.status.init_container_statuses
    if pod.status.phase != "Pending" or any(entry.state.running is not None for entry in initial):
        return None
    statuses = (*initial, *pod.status.container_statuses)
    found = [entry.state.waiting for entry in statuses if entry.state.waiting is not None]
    known = next((entry for entry in found if entry.reason not in _UNSPECIFIC), None)
    if known is None:
        return PodFailure("", lost=True)
    return PodFailure(": ".join(filter(None, (known.reason, known.message))), lost=known.reason not in _UNUSABLE)


def first_failure(pods: Collection[Pod]) -> PodFailure | None:
    """Return why a run has failed: a failure of the job itself, if there is one, else a loss."""
    failures = [failure for pod in pods if (failure := pod_failure(pod)) is not None]
    return next((failure for failure in failures if not failure.lost), failures[0] if failures else None)


def has_finished(pod: Pod) -> bool:
    """Whether a pod has succeeded. One that was told to end may have succeeded only in saving its state."""
    return pod.status.phase == "Succeeded" and not pod.is_deleted


def have_succeeded(pods: Collection[Pod], count: int) -> bool:
    return sum(map(has_finished, pods)) >= count


def have_started(pods: Collection[Pod], count: int) -> bool:
    return sum(pod.status.phase in ("Running", "Succeeded", "Failed") for pod in pods) >= count


def is_over(pod: Pod, nodes: Mapping[str, ApiNode]) -> bool:
    """Whether a pod has ended, or is to be deleted and its node is down, so that its end is never reported."""
    node = nodes.get(pod.spec.node_name)
    return pod.has_ended or (pod.is_deleted and (node is None or bool(down_reason(node))))


def bindable(pods: Mapping[str, Pod]) -> list[Pod]:
    """Return the pods of a gang that wait for a node, in the order of their indices."""
    waiting = [
        pod
        for pod in pods.values()
        if not (pod.is_bound or pod.is_deleted or pod.has_ended or pod.spec.scheduling_gates)
    ]
    return sorted(waiting, key=pod_order)


def pod_path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


class PodTarget(NamedTuple):
    """A pod, the instance that it becomes, and the node that it is bound to."""

    pod: Pod
    instance: int
    node: str


def eviction(pod: Pod) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
    }


def remember(seen: dict[str, Pod], present: Mapping[str, Pod]) -> list[Pod]:
    """Add the pods of a run to those that were seen; return all of them: those that are gone, as they were last."""
    for key, pod in present.items():
        before = seen.get(key)
        if before is None or before.is_deleted or not before.has_ended:  # a pod that has ended may be deleted later
            seen[key] = pod
    return [pod if key in present else _as_gone(pod) for key, pod in seen.items()]


def _as_gone(pod: Pod) -> Pod:
    """Mark a pod as deleted, unless its end was seen."""
    if pod.has_ended or pod.is_deleted:
        return pod
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp="unknown"))
