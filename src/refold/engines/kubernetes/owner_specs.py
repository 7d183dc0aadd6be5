"""What the objects that create pods say about their gang, and the fields that suspend and resize these objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from refold.engines.kubernetes.gangs import GANG_LABEL, GANG_SIZE_LABEL, is_run_number
from refold.engines.kubernetes.objects import Pod
from refold.errors import BadValue
from refold.model import MAX_RETRIES, Seconds

Json = Mapping[str, Any]

SUSPENDABLE = ("Job", "JobSet", "PyTorchJob")
"""Kinds of gangs that are ended by suspending the object that creates their pods."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"

SUCCEEDED = ("Complete", "Completed", "Succeeded")
_FINISHED = (*SUCCEEDED, "Failed")


class Owner(NamedTuple):
    """What a gang is, according to the object that creates its pods.

    `size`: pods that start together; None: its pods are independent of each other. `retries`: how often the pods are
    created again after failures. `ended`: the object creates no more pods. `elastic`: the number of pods can change.
    `queue`: the LocalQueue of Kueue that it names. `level`: the level of which a PodGroup requires one domain.
    """

    size: int | None = 1
    retries: int = 0
    time_limit: Seconds | None = None
    suspended: bool = False
    ended: bool = False
    elastic: bool = False
    queue: str = ""
    level: str = ""


class OwnerState(NamedTuple):
    """The state of the object that creates the pods of a gang, of a kind that can be suspended.

    `finished`: the condition with which it has ended; '' if it has not. `ended_run`: the run that was ended by
    suspending it, and why if it had failed. `pods`: how many it creates, `succeeded` of which are complete and will not
    be created again.
    """

    suspended: bool
    finished: str
    message: str
    ended_run: str
    pods: int
    succeeded: int = 0

    @property
    def has_succeeded(self) -> bool:
        return self.finished in SUCCEEDED


def owner_of_pods(pods: list[Pod]) -> Owner:
    """Return the owner of plain pods with a gang label, or of a single pod."""
    labels = pods[0].metadata.labels
    if GANG_LABEL not in labels:
        return Owner(1)
    written = labels.get(GANG_SIZE_LABEL, "")
    if not is_run_number(written) or int(written) < 1:
        raise BadValue(f"the label {GANG_SIZE_LABEL} is {written[:40]!r}, expected a number of pods")
    return Owner(int(written))


def read_owner(kind: str, found: Json, part: str = "", jobs: Sequence[Json] = ()) -> Owner:
    """Return the owner that an object describes. `part`: the pod group of a Workload. `jobs`: those of a JobSet."""
    spec = found.get("spec") or {}
    suspended = is_suspended(kind, spec)
    match kind:
        case "Job":
            owner = _job(spec, pods_succeeded(kind, found))
        case "JobSet":
            size = max(1, pods_created(kind, found) - pods_succeeded(kind, found, jobs))
            retries = _number((spec.get("failurePolicy") or {}).get("maxRestarts"), 0)
            stage = _stage(found)
            owner = Owner(size, retries, elastic=len(stage) == 1 and _is_elastic(stage[0]))
        case "PyTorchJob":
            policy = spec.get("runPolicy") or {}
            limit = policy.get("activeDeadlineSeconds")
            elastic = "Worker" in (spec.get("pytorchReplicaSpecs") or {})
            owner = Owner(pods_created(kind, found), _number(policy.get("backoffLimit"), 0), limit, elastic=elastic)
        case "PodGroup":
            constraints = (spec.get("schedulingConstraints") or {}).get("topology") or [{}]
            owner = Owner(_gang_size(spec.get("schedulingPolicy") or {}), level=constraints[0].get("key", ""))
        case "Workload":
            groups = {group.get("name", ""): group for group in spec.get("podGroups") or []}
            owner = Owner(_gang_size(groups.get(part, {}).get("policy") or {}))
        case _:
            raise BadValue(f"{kind} is not a kind of gang")
    metadata = found.get("metadata") or {}
    ended = bool(end_condition(found)) or bool(metadata.get("deletionTimestamp"))
    queue = (metadata.get("labels") or {}).get(QUEUE_LABEL, "")
    retries = min(owner.retries, MAX_RETRIES)
    return owner._replace(suspended=suspended, ended=ended, retries=retries, queue=queue)


def end_condition(found: Json) -> Mapping[str, str]:
    """Return the condition with which an object has ended; an empty one if it has not."""
    conditions = (found.get("status") or {}).get("conditions") or []
    ends = (entry for entry in conditions if entry.get("type") in _FINISHED and entry.get("status") == "True")
    return next(ends, {})


# The numbers of pods.


def pods_created(kind: str, found: Json) -> int:
    """Return the number of pods that a Job, JobSet or PyTorchJob creates at present."""
    spec = found.get("spec") or {}
    match kind:
        case "JobSet":
            return sum(_replicas(job) * _parallelism(_template(job)) for job in _stage(found))
        case "PyTorchJob":
            return sum(_replicas(replica) for replica in (spec.get("pytorchReplicaSpecs") or {}).values())
        case _:
            return _parallelism(spec)


def pods_succeeded(kind: str, found: Json, jobs: Sequence[Json] = ()) -> int:
    """Return how many of these pods, or indices, have succeeded and will not be created again.

    A PyTorchJob creates all of its pods again when it is resumed.
    """
    if kind == "JobSet":
        stage = [job.get("name", "") for job in _stage(found)]
        labels = [((job.get("metadata") or {}).get("labels") or {}).get(REPLICATED_JOB_LABEL) for job in jobs]
        return sum(pods_succeeded("Job", job) for job, name in zip(jobs, labels, strict=True) if name in stage)
    has_end = kind == "Job" and (found.get("spec") or {}).get("completions") is not None
    return _number((found.get("status") or {}).get("succeeded"), 0) if has_end else 0


def _job(spec: Json, succeeded: int) -> Owner:
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
        elastic=_is_indexed(spec),
    )


def _stage(jobset: Json) -> list[Json]:
    """Return the replicated jobs of a JobSet that have pods now: those which depend on others come later."""
    spec, status = jobset.get("spec") or {}, (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    jobs = list(spec.get("replicatedJobs") or [])
    counts = {entry.get("name"): entry for entry in status}
    complete = {_name(job) for job in jobs if _count(counts, job, "succeeded") >= _replicas(job)}
    ready = {_name(job) for job in jobs if _count(counts, job, "ready", "succeeded") >= _replicas(job)}
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    found: list[Json] = []
    for number, job in enumerate(jobs):
        needs = [(_name(need), need.get("status") == "Complete") for need in job.get("dependsOn") or []]
        needs += [(_name(jobs[number - 1]), False)] if in_order and number else []
        is_open = all(name in (complete if is_end else ready) for name, is_end in needs)
        found += [job] if is_open and _name(job) not in complete else []
    return found


def _count(counts: Mapping[str, Json], job: Json, *fields: str) -> int:
    entry = counts.get(_name(job)) or {}
    return sum(_number(entry.get(field), 0) for field in fields)


def _name(job: Json) -> str:
    return str(job.get("name", ""))


def _template(job: Json) -> Json:
    spec: Json = (job.get("template") or {}).get("spec") or {}
    return spec


def _is_elastic(job: Json) -> bool:
    """Whether the pods of a replicated job are those of one Job whose size can change."""
    return _replicas(job) == 1 and _is_indexed(_template(job))


def _is_indexed(spec: Json) -> bool:
    return spec.get("completionMode") == "Indexed" and spec.get("completions") == _parallelism(spec)


def _parallelism(spec: Json) -> int:
    return _number(spec.get("parallelism"), 1)


def _replicas(spec: Json) -> int:
    return _number(spec.get("replicas"), 1)


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _gang_size(policy: Json) -> int | None:
    """Return the size of a pod group; None if it is not a gang (policy `basic`)."""
    gang = policy.get("gang")
    return None if gang is None else _number(gang.get("minCount"), 1)


# Suspending and resizing.


def is_suspended(kind: str, spec: Json) -> bool:
    """Whether an object with this spec creates no pods at present."""
    return bool(((spec.get("runPolicy") or {}) if kind == "PyTorchJob" else spec).get("suspend"))


def suspension(kind: str, suspended: bool) -> dict[str, Any]:
    """Return the change of the spec that suspends an object, or resumes it."""
    change = {"suspend": suspended}
    return {"runPolicy": change} if kind == "PyTorchJob" else change


def resizing(kind: str, found: Json, pods: int) -> dict[str, Any]:
    """Return the change of the spec after which an elastic object creates this number of pods."""
    size = {"parallelism": pods, "completions": pods}
    match kind:
        case "TrainJob":
            return {"trainer": {"numNodes": pods}}
        case "PyTorchJob":
            workers = _replicas(found["spec"]["pytorchReplicaSpecs"]["Worker"])
            others = pods_created(kind, found) - workers
            return {"pytorchReplicaSpecs": {"Worker": {"replicas": pods - others}}}
        case "JobSet":
            (stage,) = _stage(found)
            resized = {**stage, "template": {**stage["template"], "spec": {**_template(stage), **size}}}
            return {"replicatedJobs": [resized if job is stage else job for job in found["spec"]["replicatedJobs"]]}
        case _:
            return size
