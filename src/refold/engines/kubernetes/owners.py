"""The objects that create the pods of gangs, on an API server: read, suspended, resumed and resized."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from refold.engines.kubernetes.api_server import CONFLICT, MERGE_PATCH, NOT_FOUND, ApiError, ApiServer, as_dict
from refold.engines.kubernetes.gangs import JOBSET_LABEL, GangName
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.owner_specs import (
    QUEUE_LABEL,
    Json,
    Owner,
    OwnerState,
    end_condition,
    is_suspended,
    owner_of_pods,
    pods_created,
    pods_succeeded,
    read_owner,
    resizing,
    suspension,
)
from refold.errors import BadInput

PATHS: Mapping[str, str] = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}",
    "Workload": "/apis/scheduling.k8s.io/v1alpha1/namespaces/{namespace}/workloads/{name}",
    "PodGroup": "/apis/scheduling.k8s.io/{version}/namespaces/{namespace}/podgroups/{name}",
}
_TRAINER_API = re.compile(r"trainer\.kubeflow\.org/v\w+")

ENDED_RUN_ANNOTATION = "refold.dev/ended-run"
"""On a suspended object: the run that was ended by suspending it."""

POD_GROUP_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""The versions of the API group that have stand-alone PodGroups, newest first."""


class _Objects(NamedTuple):
    """The object that creates the pods of a gang, the Jobs of a JobSet, and what suspends and resizes the gang.

    The last is the object itself, or the TrainJob of a JobSet.
    """

    found: Json
    jobs: Sequence[Json]
    kind: str
    path: str
    controller: Json


class Owners:
    """Reads and changes the owners of gangs on an API server. Newer APIs are used if the server has them."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._pod_group_version: str | None = None

    def find(self, name: GangName, pods: list[Pod]) -> Owner | None:
        """Return the owner of a gang, or None if it does not exist any more. Blocks while the API server answers."""
        if name.kind in ("Pod", "Pods"):
            return owner_of_pods(pods) if pods else None
        objects = self._read(name)
        if objects is None:
            self._pod_group_version = None  # the server may have been upgraded
            return None
        owner = read_owner(name.kind, objects.found, name.part, objects.jobs)
        if objects.kind == "TrainJob":
            above = objects.controller
            queue = owner.queue or ((above["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))
            owner = owner._replace(suspended=is_suspended("TrainJob", above["spec"]), queue=queue)
        return owner

    def state(self, name: GangName) -> OwnerState | None:
        """Return the state of a gang's object, or None if it does not exist any more or is being deleted. Blocks."""
        objects = self._read(name)
        if objects is None or "deletionTimestamp" in objects.controller["metadata"]:
            return None
        finished = end_condition(objects.controller) or end_condition(objects.found)
        return OwnerState(
            is_suspended(objects.kind, objects.controller["spec"]),
            finished.get("type", ""),
            finished.get("message", ""),
            (objects.controller["metadata"].get("annotations") or {}).get(ENDED_RUN_ANNOTATION, ""),
            pods_created(name.kind, objects.found),
            pods_succeeded(name.kind, objects.found, objects.jobs),
        )

    def suspend(self, name: GangName, ended_run: str) -> None:
        """Suspend a gang's object, and note on it which run that ends. Blocks."""
        self._change(name, {ENDED_RUN_ANNOTATION: ended_run}, suspended=True)

    def resume(self, name: GangName, pods: int | None = None) -> None:
        """Resume a gang's object, with another number of pods if one is given. Blocks."""
        self._change(name, {}, suspended=False, pods=pods)

    def check_resizable(self, name: GangName) -> None:
        """Raise BadInput if the API server refuses to change the number of pods of a gang. Nothing is changed. Blocks.

        JobSets can be resized with their feature gate ElasticJobSet only, and TrainJobs of some versions.
        """
        objects = self._read(name)
        if objects is None:
            return
        change = resizing(objects.kind, objects.found, pods_created(name.kind, objects.found) + 1)
        query = {"dryRun": "All"}
        try:
            self._api.call("PATCH", objects.path, {"spec": change}, query=query, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.is_transient:
                raise
            raise BadInput(f"the number of pods of {objects.kind} {name.name} cannot be changed: {error}") from None

    def _change(
        self, name: GangName, annotations: Mapping[str, str], *, suspended: bool, pods: int | None = None
    ) -> None:
        while True:
            objects = self._read(name)
            if objects is None:
                raise ApiError(NOT_FOUND, "NotFound", f"{name} does not exist")
            metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
            change = suspension(objects.kind, suspended)
            if pods is not None:  # the list of a JobSet is replaced as a whole, so it must not have changed since
                change |= resizing(objects.kind, objects.found, pods)
                metadata["resourceVersion"] = objects.controller["metadata"]["resourceVersion"]
            try:
                self._api.patch(objects.path, {"metadata": metadata, "spec": change})
                return
            except ApiError as error:
                if error.status != CONFLICT or pods is None:
                    raise

    def _read(self, name: GangName) -> _Objects | None:
        """Read what a gang consists of; None if it does not exist any more."""
        path = self.path(name)
        found = self._get(path)
        if found is None or (name.uid and found["metadata"]["uid"] != name.uid):
            return None
        if name.kind != "JobSet":
            return _Objects(found, (), name.kind, path, found)
        query = {"labelSelector": f"{JOBSET_LABEL}={name.name}"}
        jobs = as_dict(self._api.call("GET", f"/apis/batch/v1/namespaces/{name.namespace}/jobs", query=query))["items"]
        above: Json = next(
            (owner for owner in found["metadata"].get("ownerReferences") or [] if owner.get("controller")), {}
        )
        if above.get("kind") == "TrainJob" and _TRAINER_API.fullmatch(above["apiVersion"]):
            folder = f"/apis/{above['apiVersion']}/namespaces/{name.namespace}/trainjobs"
            path = f"{folder}/{quote(above['name'], safe='')}"
            controller = self._get(path)
            if controller is not None and controller["metadata"]["uid"] == above["uid"]:
                return _Objects(found, jobs, "TrainJob", path, controller)
        return _Objects(found, jobs, name.kind, path, found)

    def _get(self, path: str) -> Json | None:
        try:
            return as_dict(self._api.call("GET", path))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def path(self, name: GangName) -> str:
        version = self._version_of_pod_groups() if name.kind == "PodGroup" else ""
        return PATHS[name.kind].format(namespace=name.namespace, name=quote(name.name, safe=""), version=version)

    def _version_of_pod_groups(self) -> str:
        if self._pod_group_version is None:
            group = as_dict(self._api.call("GET", "/apis/scheduling.k8s.io"))
            served = {entry["version"] for entry in group["versions"]}
            self._pod_group_version = next((name for name in POD_GROUP_VERSIONS if name in served), "v1alpha2")
        return self._pod_group_version
