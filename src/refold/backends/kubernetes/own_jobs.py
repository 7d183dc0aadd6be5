"""The Jobs that Refold creates for jobs that were submitted to it: one for each run."""

from __future__ import annotations

import re
from hashlib import sha256
from math import ceil
from typing import Any

from refold.backends.kubernetes.gangs import SCHEDULER_NAME
from refold.backends.kubernetes.mirror import DAEMON_ANNOTATION, JOB_ANNOTATION, RUN_ANNOTATION
from refold.backends.kubernetes.resources import FRACTION_ANNOTATION, GPU_RESOURCE
from refold.model import DAY, WHOLE, Allocation, Job, Seconds, Share, run_plan

SUBMITTED_LABEL = "refold.dev/submitted"
"""The daemon whose job it is. Pods with this label are not gangs of users."""

INSTANCE_ANNOTATION = "refold.dev/instance"
PLAN_ANNOTATION = "refold.dev/plan"
GPUS_ANNOTATION = "refold.dev/gpus"

KEEP_FINISHED_SECONDS = int(DAY)
"""How long Kubernetes keeps a finished Job, with the output of its pods."""

MAX_NAME_CHARS = 52
"""Job names are followed by an index and a random suffix in the names of pods, which have at most 63 characters."""

_VARIABLES = {
    "REFOLD_JOB": JOB_ANNOTATION,
    "REFOLD_RUN": RUN_ANNOTATION,
    "REFOLD_INSTANCE": INSTANCE_ANNOTATION,
    "REFOLD_PLAN": PLAN_ANNOTATION,
}
"""Variables that a container gets from the annotations of its pod, which are set when it is bound."""


def object_name(daemon: str, job_id: str, run: int) -> str:
    """Return the name of the Job of a run: that of the job as far as Kubernetes allows it, and a digest."""
    digest = sha256(f"{daemon}/{job_id}/{run}".encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9-]+", "-", f"{job_id}-{run}".lower())
    return f"{name[: MAX_NAME_CHARS - 9].strip('-')}-{digest}"


def manifest(job: Job, run: int, allocation: Allocation, daemon: str, image: str, grace: Seconds) -> dict[str, Any]:
    """Return the Job object of a run. Its pods are bound like those of any other gang."""
    labels = {SUBMITTED_LABEL: daemon}
    annotations = {JOB_ANNOTATION: job.id, RUN_ANNOTATION: str(run)}
    share = allocation.placement[0]
    pod_annotations = {**annotations, **_fraction(share)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": object_name(daemon, job.id, run), "labels": labels, "annotations": annotations},
        "spec": {
            "parallelism": len(allocation.placement),
            "completions": len(allocation.placement),
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
            "template": {
                "metadata": {"labels": labels, "annotations": pod_annotations},
                "spec": {
                    "schedulerName": SCHEDULER_NAME,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": ceil(grace if job.launch.grace is None else job.launch.grace),
                    "containers": [_container(job, share, image)],
                },
            },
        },
    }


def _container(job: Job, share: Share, image: str) -> dict[str, Any]:
    from_annotations = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for name, annotation in _VARIABLES.items()
    ]
    given = [{"name": name, "value": value} for name, value in job.launch.environment]
    folder = {"workingDir": job.launch.folder} if job.launch.folder else {}
    return {
        "name": "main",
        "image": image,
        "command": list(job.command),
        "env": [*given, *from_annotations],
        "resources": _resources(share),
        **folder,
    }


def _resources(share: Share) -> dict[str, Any]:
    requests = {"cpu": f"{share.cpu_milli}m", "memory": f"{share.memory_mib}Mi"}
    used = {name: amount for name, amount in requests.items() if not amount.startswith("0")}
    whole = share.gpus and share.gpu_milli == WHOLE
    return {"requests": used, "limits": {GPU_RESOURCE: str(len(share.gpus))} if whole else {}}


def _fraction(share: Share) -> dict[str, str]:
    return {FRACTION_ANNOTATION: f"{share.gpu_milli / WHOLE:g}"} if share.gpus and share.gpu_milli < WHOLE else {}


def binding_annotations(daemon: str, job: Job, run: int, instance: int, allocation: Allocation) -> dict[str, str]:
    """Return what a pod learns when it is bound: its run, instance, plan and GPUs."""
    plan = run_plan(job, allocation)
    gpus = ",".join(map(str, allocation.placement[instance].gpus))
    return {
        DAEMON_ANNOTATION: daemon,
        JOB_ANNOTATION: job.id,
        RUN_ANNOTATION: str(run),
        INSTANCE_ANNOTATION: str(instance),
        PLAN_ANNOTATION: "" if plan is None else str(plan),
        GPUS_ANNOTATION: gpus,
    }
