"""Small controllers of JobSets, TrainJobs and PyTorchJobs for tests: they create Jobs and pods as the real ones do."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from kubernetes_objects import Json

from refold.engines.kubernetes.api_server import ApiError, ApiServer, as_dict
from refold.engines.kubernetes.owner_specs import end_condition, is_suspended

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
TRAINJOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
PYTORCHJOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
FOLDERS = (TRAINJOBS, JOBSETS, PYTORCHJOBS)
POLL_SECONDS = 0.05

KINDS = {JOBSETS: "JobSet", TRAINJOBS: "TrainJob", PYTORCHJOBS: "PyTorchJob"}
IMMUTABLE = [{"rule": "self == oldSelf", "message": "field is immutable"}]


def resource_definition(folder: str) -> Json:
    """Return a CustomResourceDefinition for a kind. As in its current versions, the trainer of a TrainJob is fixed."""
    _, _, group, version, _, _, plural = folder.split("/")
    anything: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    trainer = {**anything, "properties": {"numNodes": {"type": "integer"}}, "x-kubernetes-validations": IMMUTABLE}
    spec = {**anything, "properties": {"trainer": trainer}} if folder == TRAINJOBS else anything
    schema = {"type": "object", "properties": {"spec": spec, "status": anything}}
    names = {"kind": KINDS[folder], "plural": plural, "singular": plural[:-1]}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
    }


class TrainingOperators:
    """The controllers, in a thread."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training-operators", daemon=True)

    def start(self) -> None:
        """Begin to create pods."""
        self._thread.start()

    def stop(self) -> None:
        """Create and delete nothing any more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            with suppress(ApiError):  # an object has changed or is gone: the next round sees that
                for body in self._list(TRAINJOBS):
                    self._control_train_job(body)
                for body in self._list(JOBSETS):
                    self._control_jobset(body)
                for body in self._list(PYTORCHJOBS):
                    self._control_pytorch_job(body)

    def _list(self, folder: str) -> list[Json]:
        items: list[Json] = as_dict(self._api.call("GET", folder))["items"]
        return items

    def _control_train_job(self, train: Json) -> None:
        """A TrainJob has one JobSet, with one Job of as many pods as it has nodes."""
        name, nodes = train["metadata"]["name"], train["spec"]["trainer"]["numNodes"]
        size = {"parallelism": nodes, "completions": nodes}
        template = {"completionMode": "Indexed", **size, "template": train["spec"]["template"]}
        jobs = [{"name": "node", "replicas": 1, "template": {"spec": template}}]
        spec = {"suspend": is_suspended("TrainJob", train["spec"]), "replicatedJobs": jobs}
        self._keep(JOBSETS, name, {**_owned(train, "trainer.kubeflow.org/v1alpha1", "TrainJob"), "spec": spec})

    def _control_jobset(self, jobset: Json) -> None:
        metadata, suspended = jobset["metadata"], is_suspended("JobSet", jobset["spec"])
        ended = True
        for entry in jobset["spec"]["replicatedJobs"]:
            labels = {
                "jobset.sigs.k8s.io/jobset-name": metadata["name"],
                "jobset.sigs.k8s.io/jobset-uid": metadata["uid"],
                "jobset.sigs.k8s.io/replicatedjob-name": entry["name"],
            }
            body = _owned(jobset, "jobset.x-k8s.io/v1alpha2", "JobSet", labels)
            template = entry["template"]["spec"]["template"]
            pod = {"metadata": {**template.get("metadata", {}), "labels": labels}, "spec": template["spec"]}
            spec = {**entry["template"]["spec"], "suspend": suspended, "template": pod}
            job = self._keep(JOBS, f"{metadata['name']}-{entry['name']}-0", {**body, "spec": spec}, "template")
            ended &= bool(end_condition(job))
        if ended and not end_condition(jobset):
            self._finish(JOBSETS, jobset, "Completed")

    def _control_pytorch_job(self, torch: Json) -> None:
        name, spec = torch["metadata"]["name"], torch["spec"]
        pods = [pod for pod in self._list(PODS) if _is_owned_by(pod, torch)]
        if is_suspended("PyTorchJob", spec) or end_condition(torch):
            for pod in pods:
                if "deletionTimestamp" not in pod["metadata"] and not end_condition(torch):
                    self._api.delete(f"{PODS}/{pod['metadata']['name']}")
            return
        present = {pod["metadata"]["name"] for pod in pods}
        wanted = [
            (f"{name}-{role.lower()}-{index}", replica["template"])
            for role, replica in spec["pytorchReplicaSpecs"].items()
            for index in range(replica["replicas"])
        ]
        for pod_name, template in wanted:
            if pod_name not in present:
                body = _owned(torch, "kubeflow.org/v1", "PyTorchJob")
                body["metadata"] |= {"name": pod_name, **template.get("metadata", {})}
                self._api.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body, "spec": template["spec"]})
        if wanted and sum(pod["status"].get("phase") == "Succeeded" for pod in pods) == len(wanted):
            self._finish(PYTORCHJOBS, torch, "Succeeded")

    def _keep(self, folder: str, name: str, body: Json, *fixed: str) -> Json:
        """Create an object, or change its spec, except fields that are fixed; return it."""
        kind = {JOBS: ("batch/v1", "Job"), JOBSETS: ("jobset.x-k8s.io/v1alpha2", "JobSet")}[folder]
        try:
            found = as_dict(self._api.call("GET", f"{folder}/{name}"))
        except ApiError as error:
            if error.status != 404:
                raise
            body["metadata"]["name"] = name
            return as_dict(self._api.create(folder, {"apiVersion": kind[0], "kind": kind[1], **body}))
        wanted = {key: value for key, value in body["spec"].items() if key not in fixed}
        if any(found["spec"].get(key) != value for key, value in wanted.items()):
            return as_dict(self._api.patch(f"{folder}/{name}", {"spec": wanted}))
        return found

    def _finish(self, folder: str, body: Json, condition: str) -> None:
        status = {"conditions": [{"type": condition, "status": "True"}]}
        self._api.patch(f"{folder}/{body['metadata']['name']}", {"status": status})


def _owned(owner: Json, version: str, kind: str, labels: Json | None = None) -> Json:
    reference = {"apiVersion": version, "kind": kind, "controller": True}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata: dict[str, Any] = {"ownerReferences": [reference], **({"labels": labels} if labels else {})}
    return {"metadata": metadata}


def _is_owned_by(pod: Json, owner: Json) -> bool:
    references = pod["metadata"].get("ownerReferences") or []
    return any(reference["uid"] == owner["metadata"]["uid"] for reference in references)
