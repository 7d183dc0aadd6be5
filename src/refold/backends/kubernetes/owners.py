"""Sizes and limits of gangs, from the objects that create their pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.backends.kubernetes.api_server import ApiError, ApiServer, as_dict
from refold.backends.kubernetes.gangs import GANG_SIZE_LABEL, GangName
from refold.backends.kubernetes.objects import Pod
from refold.errors import BadValue
from refold.model import MAX_RETRIES, Seconds

NOT_FOUND = 404
_FINISHED = ("Complete", "Failed", "Completed", "Succeeded")

PATHS: Mapping[str, str] = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}",
    "Workload": "/apis/scheduling.k8s.io/v1alpha1/namespaces/{namespace}/workloads/{name}",
    "PodGroup": "/apis/scheduling.k8s.io/{version}/namespaces/{namespace}/podgroups/{name}",
}
ENDED_RUN_ANNOTATION = "refold.dev/ended-run"
"""On a suspended Job: the run that was ended by suspending it."""

POD_GROUP_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""The versions of the API group that have stand-alone PodGroups, newest first."""


class Owner(NamedTuple):
    """What a gang is, according to the object that creates its pods.

    `size`: pods that start together; None: its pods are independent of each other. `retries`: how often the pods are
    created again after failures. `ended`: the object creates no more pods. `elastic`: the number of pods can change.
    """

    size: int | None = 1
    retries: int = 0
    time_limit: Seconds | None = None
    suspended: bool = False
    ended: bool = False
    elastic: bool = False


def owner_of_pods(pods: list[Pod]) -> Owner:
    """Return the owner of plain pods with a gang label, or of a single pod."""
    written = pods[0].metadata.labels.get(GANG_SIZE_LABEL, "")
    if not written:
        return Owner(1)
    if not written.isdecimal() or int(written) < 1:
        raise BadValue(f"the label {GANG_SIZE_LABEL} is {written[:40]!r}, expected a number of pods")
    return Owner(int(written))


def read_owner(kind: str, found: Mapping[str, Any], part: str = "") -> Owner:
    """Return the owner that an object describes. `part`: the pod group of a Workload."""
    spec = found.get("spec") or {}
    match kind:
        case "Job":
            owner = _job(spec, _succeeded(found))
        case "JobSet":
            jobs = spec.get("replicatedJobs") or []
            sizes = [_number(job.get("replicas"), 1) * _parallelism(job["template"].get("spec") or {}) for job in jobs]
            retries = _number((spec.get("failurePolicy") or {}).get("maxRestarts"), 0)
            owner = Owner(sum(sizes), retries, suspended=bool(spec.get("suspend")))
        case "PyTorchJob":
            replicas = (spec.get("pytorchReplicaSpecs") or {}).values()
            policy = spec.get("runPolicy") or {}
            owner = Owner(
                sum(_number(replica.get("replicas"), 1) for replica in replicas),
                _number(policy.get("backoffLimit"), 0),
                policy.get("activeDeadlineSeconds"),
                bool(policy.get("suspend")),
            )
        case "PodGroup":
            owner = Owner(_gang_size(spec.get("schedulingPolicy") or {}))
        case "Workload":
            groups = {group.get("name", ""): group for group in spec.get("podGroups") or []}
            owner = Owner(_gang_size(groups.get(part, {}).get("policy") or {}))
        case _:
            raise BadValue(f"{kind} is not a kind of gang")
    conditions = (found.get("status") or {}).get("conditions") or []
    ended = any(entry.get("type") in _FINISHED and entry.get("status") == "True" for entry in conditions)
    is_deleted = bool((found.get("metadata") or {}).get("deletionTimestamp"))
    return owner._replace(ended=ended or is_deleted, retries=min(owner.retries, MAX_RETRIES))


def _job(spec: Mapping[str, Any], succeeded: int) -> Owner:
    """Read a Job. If it completes more pods than run at a time, its pods are independent of each other.

    Pods that have succeeded are not created again: the gang consists of the others.
    """
    parallelism, completions = _parallelism(spec), spec.get("completions")
    is_gang = completions is None or completions <= parallelism
    size = parallelism if completions is None else max(1, min(parallelism, completions - succeeded))
    return Owner(
        size if is_gang else None,
        _number(spec.get("backoffLimit"), 6),
        spec.get("activeDeadlineSeconds"),
        bool(spec.get("suspend")),
        elastic=spec.get("completionMode") == "Indexed" and completions == parallelism,
    )


def _succeeded(job: Mapping[str, Any]) -> int:
    """Return how many pods, or indices, of a Job with a number of completions have succeeded."""
    has_end = (job.get("spec") or {}).get("completions") is not None
    return _number((job.get("status") or {}).get("succeeded"), 0) if has_end else 0


def _parallelism(spec: Mapping[str, Any]) -> int:
    return _number(spec.get("parallelism"), 1)


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _gang_size(policy: Mapping[str, Any]) -> int | None:
    """Return the size of a pod group; None if it is not a gang (policy `basic`)."""
    gang = policy.get("gang")
    return None if gang is None else _number(gang.get("minCount"), 1)


class JobState(NamedTuple):
    """The state of a Job. `ended_run`: the run that was ended by suspending it, and why if it had failed.

    `succeeded`: the number of pods, or indices, that are complete and will not be created again. `parallelism`: the
    number of pods that it creates.
    """

    suspended: bool
    finished: str
    message: str
    ended_run: str
    succeeded: int = 0
    parallelism: int = 1


class Owners:
    """Reads the owners of gangs from an API server. Newer APIs are used if the server has them."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._pod_group_version: str | None = None

    def find(self, name: GangName, pods: list[Pod]) -> Owner | None:
        """Return the owner of a gang, or None if it does not exist any more. Blocks while the API server answers."""
        if name.kind in ("Pod", "Pods"):
            return owner_of_pods(pods) if pods else None
        try:
            found = as_dict(self._api.call("GET", self.path(name)))
        except ApiError as error:
            if error.status == NOT_FOUND:
                self._pod_group_version = None  # the server may have been upgraded
                return None
            raise
        if name.uid and found["metadata"]["uid"] != name.uid:
            return None
        return read_owner(name.kind, found, name.part)

    def job_state(self, name: GangName) -> JobState | None:
        """Return the state of a Job, or None if it does not exist any more or is being deleted. Blocks."""
        try:
            found = as_dict(self._api.call("GET", self.path(name)))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        if found["metadata"]["uid"] != name.uid or "deletionTimestamp" in found["metadata"]:
            return None
        conditions = (found.get("status") or {}).get("conditions") or []
        is_finished = [entry for entry in conditions if entry["type"] in _FINISHED and entry["status"] == "True"]
        finished: Mapping[str, str] = is_finished[0] if is_finished else {}
        return JobState(
            bool(found["spec"].get("suspend")),
            finished.get("type", ""),
            finished.get("message", ""),
            (found["metadata"].get("annotations") or {}).get(ENDED_RUN_ANNOTATION, ""),
            _succeeded(found),
            _parallelism(found["spec"]),
        )

    def suspend(self, name: GangName, ended_run: str) -> None:
        """Suspend a Job, and note on it which run that ends. Blocks."""
        change = {"metadata": {"annotations": {ENDED_RUN_ANNOTATION: ended_run}}, "spec": {"suspend": True}}
        self._api.patch(self.path(name), change)

    def resume(self, name: GangName, size: int | None = None) -> None:
        """Resume a Job, with another number of pods if one is given. Blocks."""
        number = {} if size is None else {"parallelism": size, "completions": size}
        self._api.patch(self.path(name), {"spec": {"suspend": False, **number}})

    def path(self, name: GangName) -> str:
        """Return the path of the object behind a gang."""
        version = self._version_of_pod_groups() if name.kind == "PodGroup" else ""
        return PATHS[name.kind].format(namespace=name.namespace, name=name.name, version=version)

    def _version_of_pod_groups(self) -> str:
        if self._pod_group_version is None:
            group = as_dict(self._api.call("GET", "/apis/scheduling.k8s.io"))
            served = {entry["version"] for entry in group["versions"]}
            self._pod_group_version = next((name for name in POD_GROUP_VERSIONS if name in served), "v1alpha2")
        return self._pod_group_version
