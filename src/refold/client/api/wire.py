"""JSON types of the API: requests and answers. Times are Unix seconds, durations seconds.

The same structs validate requests, generate the OpenAPI schemas, and are what `refold.Client` returns.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from refold.client.api.submissions import MAX_CHANGED_JOBS, MAX_NAME_CHARS, JobState


class TimeEstimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """An estimated time: probably `at`, unlikely before `soonest` or after `latest`."""

    at: float
    soonest: float | None = None
    latest: float | None = None


class NodeGpus(msgspec.Struct, frozen=True):
    """GPUs of one node that are allocated to a run, and the share of each."""

    node: str
    gpus: list[int]
    share: float = 1.0


class JobStatus(msgspec.Struct, frozen=True):
    """A job and its state. `reason` (a code) and `message` say why it is waiting, or how its last run ended.

    `demand` and `requested_gpus`: the request. `gpus`: the GPUs of the current or last run; those requested before the
    first. `plan`, `steps_done` and `loss` are kept when a job ends. `loss` and
    `samples_per_second`: as the job last reported them. `position`: position in the queue, from 1 (0: not waiting).
    `exit_code`: of the last run; 0 for a finished job. `preemptible`: whether it may be stopped or reshaped for other
    jobs; `consent` says why. `array`: id of the array that the job belongs to. `end_estimate`: when a running or
    waiting job ends, if it is not stopped or reshaped. `cpu_seconds`: of all its ended runs; `peak_memory_mib`: the
    most memory of one of their instances, without what is cached of files; null: not measured. `requested_cpus` and
    `requested_memory_mib`: for each instance, 0 if not requested; `auto` says how they were chosen for the job.
    `domains`: by level of the cluster, the domains in which it runs. `command`, `folder` and `variables`, the names
    of environment variables that the submission sets: only for callers who may read the job. In lists of jobs, long
    commands are cut.
    """

    id: str
    name: str
    state: JobState
    tenant: str
    user: str
    job_class: str
    priority: int
    demand: str
    gpus: float
    submitted: float
    started: float | None = None
    ended: float | None = None
    runs: int = 0
    placement: list[NodeGpus] = []
    plan: str = ""
    reason: str = ""
    message: str = ""
    start_estimate: TimeEstimate | None = None
    steps_done: int = 0
    steps: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    time_limit: float | None = None
    position: int = 0
    warning: str = ""
    exit_code: int | None = None
    instances: int = 1
    array: str = ""
    preemptible: bool = False
    consent: str = ""
    requested_gpus: float = 0.0
    end_estimate: TimeEstimate | None = None
    cpu_seconds: float | None = None
    peak_memory_mib: int | None = None
    requested_cpus: float = 0.0
    requested_memory_mib: int = 0
    auto: list[str] = []
    command: list[str] = []
    folder: str = ""
    variables: list[str] = []
    domains: dict[str, list[str]] = {}


class Jobs(msgspec.Struct, frozen=True):
    """A page of jobs. `total`: number of matching jobs; `next`: pass as `after` for the next page (null: last page)."""

    jobs: list[JobStatus]
    total: int
    next: int | None = None


JobAction = Literal["cancel", "hold", "release"]


class JobChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do to several jobs: those that are named and, with a filter, all active ones that pass it and can change.

    `match` as in `GET /jobs`; '*' is all. `now`: cancelled jobs are killed without their grace period.
    """

    action: JobAction
    jobs: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_CHANGED_JOBS)] = []
    match: Annotated[str, Meta(max_length=256)] = ""
    tenant: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""
    user: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""
    now: bool = False


class ChangedJob(msgspec.Struct, frozen=True):
    """A job that was changed, and its state after that."""

    id: str
    state: JobState


class RejectedChange(msgspec.Struct, frozen=True):
    """A job that was not changed, as it was named, and why."""

    job: str
    error: str


class JobChanges(msgspec.Struct, frozen=True):
    """What became of each job."""

    changed: list[ChangedJob]
    rejected: list[RejectedChange]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the event stream. `kind`: submitted, started, stopped, …; `tenant`, `user`: those of the job."""

    number: int
    at: float
    kind: str
    job: str = ""
    run: int = 0
    text: str = ""
    tenant: str = ""
    user: str = ""


class GpuStatus(msgspec.Struct, frozen=True):
    """A GPU, or a slot on machines without GPUs. `utilisation` is in percent. Readings are null if not available.

    `used_by`: who uses it besides this daemon's jobs. `tenant`, `user`: of the first of its jobs.
    """

    node: str
    index: int
    name: str
    jobs: list[str] = []
    free: float = 1.0
    drain_reason: str = ""
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    utilisation: float | None = None
    celsius: float | None = None
    watts: float | None = None
    used_by: str = ""
    tenant: str = ""
    user: str = ""


class NodeStatus(msgspec.Struct, frozen=True):
    """A node. `up`: jobs may be placed on it; otherwise `reason` says why not, and `drained` whether it was on purpose.

    `free_gpus` does not count GPUs that are drained or down. `rack`: its rack, if it has one, whose power is
    `rack_watts` by the GPUs and CPUs that jobs hold, at most `rack_limit_watts`; null if the power is not known.
    `limits`: whether the CPUs and the memory that jobs request are `enforced` or `counted`; empty: not known.
    `domains`: the name of its domain at each level of the cluster, outermost first.
    """

    name: str
    up: bool
    gpus: int
    gpu_type: str
    free_gpus: float
    jobs: list[str] = []
    reason: str = ""
    drained: bool = False
    rack: str = ""
    rack_watts: float | None = None
    rack_limit_watts: float | None = None
    limits: str = ""
    domains: dict[str, str] = {}


AlertKind = Literal["storage", "policy", "node down", "gpu down", "run flagged", "late start", "infeasible"]
"""What an alert is about. `run flagged`: a watch rule suspects a hang, or that the run exceeds its limits."""


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that needs attention now. `job`, `node`: what it concerns; `count`: of such things, if several."""

    kind: AlertKind
    text: str
    job: str = ""
    node: str = ""
    count: int = 1


class TenantStatus(msgspec.Struct, frozen=True):
    """A tenant: guaranteed quota, limit (0: none), running and waiting jobs with their GPUs."""

    name: str
    quota_gpus: float
    limit_gpus: float
    running: int
    gpus: float
    waiting: int
    waiting_gpus: float


class UserStatus(msgspec.Struct, frozen=True):
    """A user of a tenant: running and waiting jobs with their GPUs, and the GPU hours used; older ones count less.

    `used` and `share`: part of the GPU hours and of the shares of all users with jobs; null for a user without jobs.
    `weight`: how many times as much the delay of the user's jobs counts; null if the policy ignores it.
    """

    user: str
    tenant: str
    running: int
    gpus: float
    waiting: int
    waiting_gpus: float
    gpu_hours: float
    used: float | None = None
    share: float | None = None
    weight: float | None = None


class TimelineRun(msgspec.Struct, frozen=True):
    """A run on the timeline. `end` is null while it runs; `ending`: finished, stopped or failed.

    `overhead`: seconds in which it was starting or stopping.
    """

    job: str
    run: int
    tenant: str
    user: str
    start: float
    end: float | None
    ending: str
    placement: list[NodeGpus]
    overhead: float = 0.0


class Timeline(msgspec.Struct, frozen=True):
    """What ran where. `runs`: those that had not ended at `since`, the latest first if there are too many.

    `complete`: none was left out. `busy`: pairs of a time and the sum of the utilisation of all GPUs (1: one GPU at
    100 %), where it is measured, since the daemon was started.
    """

    now: float
    since: float
    runs: list[TimelineRun]
    busy: list[tuple[float, float]]
    complete: bool = True


class StartAccuracy(msgspec.Struct, frozen=True):
    """How good the first start estimates of jobs were, of the latest 1,000 that have started since the daemon did.

    `jobs`: jobs with an estimate; `unknown`: jobs that waited without one. `median_error`: median absolute difference
    to the actual start. `coverage`: share of the `bounded` jobs, those with a latest start, that started by then; jobs
    that wait beyond it count as well.
    """

    jobs: int = 0
    unknown: int = 0
    median_error: float | None = None
    bounded: int = 0
    coverage: float | None = None


class DaemonInfo(msgspec.Struct, frozen=True):
    """The daemon's status. `storage`: why its store cannot be written, or ''; `role`, `tenant`, `user`: the caller.

    `own_jobs_only`: the caller may read and change only its user's jobs, not all of its tenant's.
    `forecasts_starts`: the daemon estimates when waiting jobs start.
    `drained_gpus`: number of GPUs that are drained or down, in use or not; they are not counted in `free_gpus`.
    `held`: number of jobs that wait for something else than the policy, such as a dependency or a user's release.
    `last_event`: number of the last event. `slots`: jobs get CPU slots, in place of the GPUs that there are not.
    """

    version: str
    cluster: str
    policy: str
    nodes: int
    gpus: int
    free_gpus: float
    running: int
    waiting: int
    now: float
    started: float
    storage: str = ""
    role: str = ""
    tenant: str = ""
    user: str = ""
    forecasts_starts: bool = False
    start_accuracy: StartAccuracy = StartAccuracy()
    drained_gpus: int = 0
    held: int = 0
    own_jobs_only: bool = False
    last_event: int = 0
    slots: bool = False


class Logs(msgspec.Struct, frozen=True):
    """A chunk of a run's output. `next`: offset of the following chunk; `ended`: the run has ended, this is all."""

    text: str
    run: int
    instance: int
    next: int
    ended: bool


class JobExplanation(msgspec.Struct, frozen=True):
    """A job and its history in chronological order.

    `first_estimate`: the first estimate of its first start, if the daemon has made one since it was started.
    `gpu_seconds`: GPU time that it has held so far, if it has not ended. `predicted_samples_per_second`: of a running
    job, by the performance model, if it knows the job's model and GPUs.
    """

    job: JobStatus
    events: list[Event]
    first_estimate: TimeEstimate | None = None
    gpu_seconds: float | None = None
    predicted_samples_per_second: float | None = None


class Problem(msgspec.Struct, frozen=True):
    """An error message; `field` names the invalid part of the request, if there is one."""

    error: str
    field: str = ""


class UseSample(msgspec.Struct, frozen=True):
    """What a job used at a time. `cpus`: on average over ten seconds. `utilisation`: of its GPUs, in percent.

    `samples_per_second` and `loss`: as the job last reported them. null: not measured.
    """

    at: float
    cpus: float | None = None
    memory_mib: int | None = None
    utilisation: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None


class JobUse(msgspec.Struct, frozen=True):
    """What a job has used since it started, or since the daemon did."""

    samples: list[UseSample]
