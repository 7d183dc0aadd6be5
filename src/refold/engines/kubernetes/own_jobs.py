"""The Jobs that Refold creates for jobs that were submitted to it: one for each run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple

import msgspec

from refold.core import StartRun
from refold.engines.kubernetes.gangs import (
    BINDING_ANNOTATION,
    DAEMON_ANNOTATION,
    INSTANCE_ANNOTATION,
    JOB_ANNOTATION,
    RUN_ANNOTATION,
    SCHEDULER_NAME,
    DaemonIdentity,
    RunKey,
)
from refold.engines.kubernetes.nodes import PodConstraints
from refold.engines.kubernetes.objects import Pod, PodSpec
from refold.engines.kubernetes.resources import FRACTION_ANNOTATION, GPU_RESOURCE
from refold.errors import BadInput
from refold.model import DAY, WHOLE, Allocation, Job, Plan, Seconds, Share, run_plan
from refold.planning.catalogue import known_model
from refold.planning.plans import LaunchRequest, Workers, gang_variables, launch_settings

SUBMITTED_LABEL = "refold.dev/submitted"
"""The daemon whose job it is. Pods with this label are not gangs of users."""

INSTANCES_ANNOTATION = "refold.dev/instances"
PLAN_ANNOTATION = "refold.dev/plan"
GPUS_ANNOTATION = "refold.dev/gpus"

SECRET_VARIABLE, SECRET_KEY = "REFOLD_RUN_SECRET", "secret"

_CONSTRAINTS = {resource: PodConstraints([PodSpec()], resource) for resource in ("", GPU_RESOURCE)}

VOLUME_PATH = "/refold"
"""Where the volume of `kubernetes.volume_claim` is mounted."""

KEEP_FINISHED_SECONDS = int(DAY)
"""How long Kubernetes keeps a finished Job, with the output of its pods."""

MAX_NAME_CHARS = 52
"""Job names are followed by an index and a random suffix in the names of pods, which have at most 63 characters."""

MASTER_PORT = 29500
"""Where instance 0 of a gang is met by the others. Each pod has its own network address, so all gangs use the same."""


def is_submitted(pod: Pod) -> bool:
    """Whether a pod belongs to a Job that Refold has created."""
    return SUBMITTED_LABEL in pod.metadata.labels


def own_constraints(job: Job) -> PodConstraints:
    """Return what limits the nodes of a submitted job: its pods request this kind of GPU, and tolerate no taints."""
    return _CONSTRAINTS[GPU_RESOURCE if job.demand.gpus else ""]


def object_name(daemon: str, job_id: str, run: int) -> str:
    """Return the name of the Job of a run: that of the job as far as Kubernetes allows it, and a digest."""
    digest = sha256(f"{daemon}/{job_id}/{run}".encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9-]+", "-", f"{job_id}-{run}".lower())
    return f"{name[: MAX_NAME_CHARS - 9].strip('-')}-{digest}"


class PodSettings(NamedTuple):
    """What all Jobs of a daemon have in common: who it is, the image, the grace period, a volume for checkpoints."""

    identity: DaemonIdentity
    namespace: str
    image: str
    grace: Seconds
    volume_claim: str = ""

    @property
    def daemon(self) -> str:
        return self.identity.id

    @property
    def service(self) -> str:
        return f"refold-{self.daemon}"


def service_manifest(settings: PodSettings) -> dict[str, Any]:
    """Return a headless Service: pods of indexed Jobs get the name JOB-INDEX.SERVICE."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": settings.service},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {SUBMITTED_LABEL: settings.daemon},
            "ports": [{"name": "master", "port": MASTER_PORT}],
        },
    }


def secret_manifest(run: RunKey, settings: PodSettings, owner: str) -> dict[str, Any]:
    """Return the Secret by which the agents of a run recognise each other. It is deleted with the Job (uid `owner`)."""
    name = object_name(settings.daemon, *run)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {SUBMITTED_LABEL: settings.daemon}, "ownerReferences": [reference]},
        "stringData": {SECRET_KEY: settings.identity.sign(settings.namespace, "", run, SECRET_KEY)},
    }


def manifest(job: Job, run: int, allocation: Allocation, settings: PodSettings) -> dict[str, Any]:
    """Return the Job object of a run. Its pods are bound like those of any other gang."""
    labels = {SUBMITTED_LABEL: settings.daemon}
    annotations = {JOB_ANNOTATION: job.id, RUN_ANNOTATION: str(run)}
    name, share = object_name(settings.daemon, job.id, run), _common_share(job, allocation)
    proof = {BINDING_ANNOTATION: settings.identity.sign(settings.namespace, "", (job.id, run))}
    pod_annotations = {**annotations, **_fraction(share)}
    grace = settings.grace if job.launch.grace is None else job.launch.grace
    claim = {"name": "refold", "persistentVolumeClaim": {"claimName": settings.volume_claim}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {**annotations, **proof}},
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
                    "subdomain": settings.service,
                    "terminationGracePeriodSeconds": ceil(grace),
                    "containers": [_container(job, run, allocation, share, settings, grace)],
                    **({"volumes": [claim]} if settings.volume_claim else {}),
                },
            },
        },
    }


def _common_share(job: Job, allocation: Allocation) -> Share:
    """Return what each instance gets: pods of a Job are equal."""
    shares = allocation.placement
    if len({(len(share.gpus), share.gpu_milli) for share in shares}) > 1:
        counts = ", ".join(str(len(share.gpus)) for share in shares)
        raise BadInput(f"{job.id} got {counts} GPUs on its nodes; on Kubernetes all instances have the same number")
    cpu, memory = min(share.cpu_milli for share in shares), min(share.memory_mib for share in shares)
    return Share(shares[0].node, shares[0].gpus, shares[0].gpu_milli, cpu, memory)


def _container(
    job: Job, run: int, allocation: Allocation, share: Share, settings: PodSettings, grace: Seconds
) -> dict[str, Any]:
    given = dict(job.launch.environment)
    variables = _run_variables(job, run, allocation, share, grace)
    if settings.volume_claim and "REFOLD_CHECKPOINT" not in given:
        variables["REFOLD_CHECKPOINT"] = f"{VOLUME_PATH}/checkpoints/{job.id}"
    variables |= _gang_variables(job, run, allocation, settings)
    instance = {"fieldRef": {"fieldPath": f"metadata.annotations['{INSTANCE_ANNOTATION}']"}}
    env = [
        *({"name": name, "value": _escape(value)} for name, value in given.items() if name not in variables),
        {"name": "REFOLD_INSTANCE", "valueFrom": instance},
        *({"name": name, "value": value} for name, value in variables.items()),
        *_secret_variable(job, run, allocation, settings, given),
    ]
    folder = {"workingDir": job.launch.folder} if job.launch.folder else {}
    mounts = {"volumeMounts": [{"name": "refold", "mountPath": VOLUME_PATH}]} if settings.volume_claim else {}
    return {
        "name": "main",
        "image": settings.image,
        "command": [_escape(word) for word in job.command],
        "env": env,
        "resources": _resources(share),
        **folder,
        **mounts,
    }


def _secret_variable(
    job: Job, run: int, allocation: Allocation, settings: PodSettings, given: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the variable with the secret of a gang. Without the right to create Secrets there is none."""
    if len(allocation.placement) == 1 or SECRET_VARIABLE in given:
        return []
    reference = {"name": object_name(settings.daemon, job.id, run), "key": SECRET_KEY, "optional": True}
    return [{"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": reference}}]


def _escape(text: str) -> str:
    """Protect $(…) from Kubernetes, which replaces the names of variables in it."""
    return text.replace("$(", "$$(")


def _run_variables(job: Job, run: int, allocation: Allocation, share: Share, grace: Seconds) -> dict[str, str]:
    """Return what every process of a run gets on any back end, as far as it is known before pods are bound."""
    plan = plan_text(job, allocation)
    return {
        "REFOLD_JOB": job.id,
        "REFOLD_RUN": str(run),
        "REFOLD_INSTANCES": str(len(allocation.placement)),
        "REFOLD_SLOTS": ",".join(map(str, range(len(share.gpus)))),
        "REFOLD_GPU_SHARE": f"{share.gpu_milli / WHOLE:g}" if share.gpus else "0",
        "REFOLD_STOP_SIGNAL": "TERM",
        "REFOLD_GRACE": f"{grace:g}",
        **({"REFOLD_PLAN": plan} if plan else {}),
    }


def _gang_variables(job: Job, run: int, allocation: Allocation, settings: PodSettings) -> dict[str, str]:
    """Return the variables of a gang, and the plan as arguments of the job's training framework.

    Kubernetes replaces $(REFOLD_INSTANCE) by the number of the instance.
    """
    count, instance = len(allocation.placement), "$(REFOLD_INSTANCE)"
    address = f"{object_name(settings.daemon, job.id, run)}-0.{settings.service}"
    gpus = len(allocation.placement[0].gpus)
    workers = Workers(gpus or 1, count, instance, address, str(MASTER_PORT))
    variables = gang_variables(workers) if count > 1 else {}
    if job.engine is not None:
        plan = run_plan(job, allocation) or Plan(data=max(1, gpus * count))
        model = known_model(job.workload)
        batch = job.batch or (model.batch if model else 0)
        found = launch_settings(job.engine, LaunchRequest(plan, batch, workers, VOLUME_PATH))
        if found.files:
            raise BadInput(f"engine {job.engine} needs configuration files, which Refold does not write on Kubernetes")
        variables |= {"REFOLD_ENGINE": job.engine, **found.variables()}
    return variables


def _resources(share: Share) -> dict[str, Any]:
    requests = {"cpu": f"{share.cpu_milli}m", "memory": f"{share.memory_mib}Mi"}
    used = {name: amount for name, amount in requests.items() if not amount.startswith("0")}
    whole = share.gpus and share.gpu_milli == WHOLE
    return {"requests": used, "limits": {GPU_RESOURCE: str(len(share.gpus))} if whole else {}}


def _fraction(share: Share) -> dict[str, str]:
    return {FRACTION_ANNOTATION: f"{share.gpu_milli / WHOLE:g}"} if share.gpus and share.gpu_milli < WHOLE else {}


def pod_shares(job: Job, allocation: Allocation) -> tuple[Share, ...]:
    """Return what each pod of a run gets. Of a gang that can be scaled, all pods have the same number of GPUs.

    Policies place such a job with any number of GPUs on each node: that is several pods there.
    """
    if not job.launch.gang or job.gpu_range is None:
        return allocation.placement
    each = job.demand.gpus
    shares: list[Share] = []
    for share in allocation.placement:
        if len(share.gpus) % each:
            raise BadInput(f"{len(share.gpus)} GPUs on a node cannot be divided into pods of {each}")
        pods = len(share.gpus) // each
        shares += [
            Share(
                share.node,
                share.gpus[number * each : (number + 1) * each],
                share.gpu_milli,
                share.cpu_milli // pods,
                share.memory_mib // pods,
            )
            for number in range(pods)
        ]
    return tuple(shares)


def binding_annotations(
    daemon: DaemonIdentity, pod: Pod, job: Job, order: StartRun, instance: int, shares: tuple[Share, ...]
) -> dict[str, str]:
    """Return what a pod learns when it is bound: its run, instance, plan and GPUs."""
    run, allocation, metadata = order.run, order.allocation, pod.metadata
    return {
        BINDING_ANNOTATION: daemon.sign(metadata.namespace, metadata.uid, (job.id, run), str(instance)),
        DAEMON_ANNOTATION: daemon.id,
        JOB_ANNOTATION: job.id,
        RUN_ANNOTATION: str(run),
        INSTANCE_ANNOTATION: str(instance),
        INSTANCES_ANNOTATION: str(len(shares)),
        PLAN_ANNOTATION: plan_text(job, allocation),
        GPUS_ANNOTATION: ",".join(map(str, shares[instance].gpus)),
    }


def plan_text(job: Job, allocation: Allocation) -> str:
    """Return the plan of a run as JSON, as REFOLD_PLAN has it; '' without a plan."""
    plan = run_plan(job, allocation)
    return "" if plan is None else msgspec.json.encode(plan).decode()
