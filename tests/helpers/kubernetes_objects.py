"""Kubernetes objects for tests, decoded from JSON as the API server would send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from refold.engines.kubernetes.gangs import DaemonIdentity
from refold.engines.kubernetes.objects import ApiNode, Pod

Json = dict[str, Any]

DAEMON = DaemonIdentity("daemon", "key")


def node_json(
    name: str,
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    taints: list[Json] | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> Json:
    """Return a node that is ready, with GPUs, 64 CPUs and 512 GiB."""
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": annotations or {},
        },
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def pod_json(name: str, gpus: int = 1, **fields: Any) -> Json:
    """Return a pod of this scheduler; `fields`: labels, annotations, owner (kind, name, uid), and those of its spec."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    metadata: Json = {"name": name, "namespace": fields.pop("namespace", "default")}
    metadata["uid"] = fields.pop("uid", f"uid-{name}")
    for key in ("labels", "annotations", "deletionTimestamp"):
        if key in fields:
            metadata[key] = fields.pop(key)
    if owner := fields.pop("owner", None):
        kind, owner_name, uid = owner
        reference = {"apiVersion": "v1", "kind": kind, "name": owner_name, "uid": uid, "controller": True}
        metadata["ownerReferences"] = [reference]
    status = fields.pop("status", {"phase": "Pending"})
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    spec = {"schedulerName": "refold", "containers": [container], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def binding_of(uid: str, job: str, run: int, instance: int, daemon: DaemonIdentity = DAEMON) -> dict[str, str]:
    """Return the annotations of a pod that a daemon has bound for a run."""
    return {
        "refold.dev/daemon": daemon.id,
        "refold.dev/job": job,
        "refold.dev/run": str(run),
        "refold.dev/instance": str(instance),
        "refold.dev/binding": daemon.sign("default", uid, (job, run), str(instance)),
    }


def make_node(name: str, gpus: int = 8, **fields: Any) -> ApiNode:
    """Return a decoded node."""
    return msgspec.json.decode(msgspec.json.encode(node_json(name, gpus, **fields)), type=ApiNode)


def make_pod(name: str, gpus: int = 1, **fields: Any) -> Pod:
    """Return a decoded pod."""
    return msgspec.json.decode(msgspec.json.encode(pod_json(name, gpus, **fields)), type=Pod)
