"""JSON types of the API: requests and answers. Times are Unix seconds, durations seconds.

The same structs validate requests, generate the OpenAPI schemas, and are what `refold.Client` returns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from refold.errors import BadValue
from refold.model import (
    AUTO,
    WHOLE,
    AutoRequest,
    AutoResource,
    ChangeLimit,
    Consent,
    Demand,
    Job,
    JobClass,
    Launch,
    LaunchEngine,
    Plan,
    Preemption,
    Seconds,
    StopSignal,
    check_output_pattern,
    find_consent,
    mib_from_gib,
    milli_from_number,
    parse_array,
    parse_dependency,
    saves_checkpoints,
)

MAX_NAME_CHARS = 64
MAX_TEXT_CHARS = 4096
MAX_COMMAND_CHARS = 128 * 1024
"""Maximum length of a whole command. A batch script is passed as one of its arguments."""

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""Maximum size of one argument or variable: the limit of Linux (MAX_ARG_STRLEN, minus the terminating NUL)."""

MAX_ARGUMENTS = 1024
MAX_VARIABLES = 512
MAX_EXPORTED_BYTES = 256 * 1024
"""Maximum size of an exported environment, names and values."""

MAX_JOB_GPUS = 62 * 1024
MAX_PATTERNS = 16
MAX_TIME_SECONDS: Seconds = 10 * 365 * 86400.0
MAX_UNIX_SECONDS = 2**40
MAX_COUNT = 2**40
MAX_COMPARED_POLICIES = 4
MAX_VARIANTS = 32
MAX_CHANGED_JOBS = 10_000
"""Maximum number of jobs that one request names."""

MAX_PLANNED_GPUS = 1024
MAX_LORA_RANK = 65_536
MAX_JOB_NUMBER = 10**15
"""Job numbers are smaller than this."""

_NAME = re.compile(r"[\w.-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Patterns that only the OpenAPI document has: the checks of `Submission` and `NewEnvironment` explain what is wrong.
NAME_SCHEMA = Meta(extra_json_schema={"pattern": r"^[\w.-]+$"})
NO_NUL_SCHEMA = Meta(extra_json_schema={"pattern": r"^[^\u0000]*$"})
PROGRAM_SCHEMA = Meta(
    extra_json_schema={"prefixItems": [{"type": "string", "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}]}
)
VARIABLES_SCHEMA = Meta(extra_json_schema={"propertyNames": {"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}})
DEPENDENCY_SCHEMA = Meta(extra_json_schema={"pattern": r"^(singleton|((afterok|afterany|afternotok):)?[\w.-]+(_\*)?)$"})
ARRAY_SCHEMA = Meta(
    extra_json_schema={
        "pattern": r"^(RANGE(,RANGE)*(%[1-9]\d{0,6})?)?$".replace("RANGE", r"\d{1,7}(-\d{1,7}(:\d{1,7})?)?")
    }
)

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
PlainName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[A-Za-z0-9._-]+$")]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
PlainText = Annotated[Text, NO_NUL_SCHEMA]
Variables = Annotated[dict[str, PlainText], Meta(max_length=MAX_VARIABLES), VARIABLES_SCHEMA]
Amount = Annotated[float, Meta(ge=0, le=2**20)]
Count = Annotated[int, Meta(ge=0, le=MAX_JOB_GPUS)]
Duration = Annotated[float, Meta(ge=0, le=MAX_TIME_SECONDS)]
Pattern = Annotated[str, Meta(max_length=512)]
DependencyText = Annotated[str, Meta(min_length=1, max_length=2 * MAX_NAME_CHARS), DEPENDENCY_SCHEMA]
JobState = Literal["held", "waiting", "infeasible", "running", "stopping", "finished", "failed", "cancelled"]
"""The state of a job. `infeasible`: the job does not fit even on the empty cluster."""

Role = Literal["owner", "member", "reader"]


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request to run a job; the daemon assigns its id.

    Each of `instances` instances gets `gpus` GPUs, or the fraction `gpu_share` of one. `cpus` and `memory_gib` of each
    may be `auto`: learned from what earlier jobs of the same user and name have used. `gpu_range`: minimum and maximum
    number of GPUs in total for a job that may be reshaped. `preemptible`: whether the job may be stopped or reshaped
    for other jobs; null: if it is best-effort or reshapable, saves checkpoints, or the daemon's configuration says so.
    `reshape_at_most`, `reshape_every`: it is stopped or reshaped at most so many times, so many seconds apart. `plan`:
    `auto` lets the scheduler choose (for a known `workload`), `off` leaves parallelism to the command, a plan pins it.
    `engine`: the training framework of the command, which then gets its arguments in the environment.
    `estimate`: the user's estimate of the run time. `secrets`: environment variables that are neither journalled nor
    shown. `exported`: id of the environment that the job's processes inherit (`POST environments`); empty: the
    daemon's. `request`: an idempotency key; submitting twice with the same key creates one job. `output`, `error`:
    files, with patterns as in Slurm, that receive a copy of the output. `after`: jobs that must end first, as in Slurm:
    `JOB` or `afterok:JOB`, `afterany:JOB`, `afternotok:JOB`, `singleton`. `begin`: Unix time before which the job does
    not start. `array`: task numbers, as in Slurm (`0-9%2`): one job for each; sent to `POST submissions`. `hold`: do
    not start the job until it is released. `allow_impossible`: accept the job even if it does not fit the empty
    cluster, for nodes that will be added.
    """

    name: Annotated[Name, NAME_SCHEMA]
    command: Annotated[
        list[Annotated[str, NO_NUL_SCHEMA]], Meta(min_length=1, max_length=MAX_ARGUMENTS), PROGRAM_SCHEMA
    ]
    instances: Annotated[int, Meta(ge=1, le=MAX_JOB_GPUS)] = 1
    gpus: Count = 1
    gpu_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    gpu_types: Annotated[list[Name], Meta(max_length=62)] = []
    cpus: Amount | Literal["auto"] = 0.0
    memory_gib: Amount | Literal["auto"] = 0.0
    gpu_range: tuple[Count, Count] | None = None
    tenant: Annotated[str, Meta(max_length=MAX_NAME_CHARS, extra_json_schema={"pattern": r"^[\w.-]*$"})] = ""
    job_class: JobClass = "guaranteed"
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0
    preemptible: bool | None = None
    reshapable: bool = False
    reshape_at_most: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    reshape_every: Duration | None = None
    time_limit: Duration | None = None
    estimate: Duration | None = None
    steps: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    workload: Annotated[str, Meta(max_length=256)] = ""
    batch: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    sequence: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0
    engine: LaunchEngine | None = None
    plan: Literal["auto", "off"] | Plan = "off"
    environment: Variables = {}
    secrets: Variables = {}
    exported: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    folder: PlainText = ""
    output: PlainText = ""
    error: PlainText = ""
    grace: Duration | None = None
    stop_signal: StopSignal = "TERM"
    retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    progress: Pattern = ""
    no_progress: Duration | None = None
    never_retry: Annotated[list[Pattern], Meta(max_length=MAX_PATTERNS)] = []
    after: Annotated[list[DependencyText], Meta(max_length=256)] = []
    begin: Annotated[float, Meta(ge=0, le=MAX_UNIX_SECONDS)] | None = None
    array: Annotated[Text, ARRAY_SCHEMA] = ""
    notify: Annotated[list[Text], Meta(max_length=16)] = []
    hold: bool = False
    allow_impossible: bool = False
    request: Annotated[str, Meta(max_length=128)] = ""

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        if not self.command[0].strip():
            raise BadValue("command is empty, expected a program and its arguments")
        if sum(map(len, self.command)) > MAX_COMMAND_CHARS:
            raise BadValue(f"command has more than {MAX_COMMAND_CHARS:,} characters")
        if any(len(argument.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES for argument in self.command):
            raise BadValue(f"an argument of command has more than {MAX_ARGUMENT_BYTES:,} bytes")
        paths = (self.folder, self.output, self.error)
        texts = (*self.command, *paths, *self.environment.values(), *self.secrets.values())
        if any("\0" in text for text in texts):
            raise BadValue("command, folder, output, error, environment and secrets must not contain a NUL character")
        _check_variable_names((*self.environment, *self.secrets))
        for number in (
            _amount(self.cpus),
            _amount(self.memory_gib),
            self.time_limit,
            self.estimate,
            self.grace,
            self.no_progress,
            self.reshape_every,
            self.begin,
        ):
            if number is not None and not math.isfinite(number):
                raise BadValue(f"{number} is not a finite number")
        if self.tenant:
            _check_name("tenant", self.tenant)
        for field, pattern in (("output", self.output), ("error", self.error)):
            try:
                check_output_pattern(pattern)
            except BadValue as error:
                raise BadValue(f"{field}: {error}") from None
        for dependency in self.after:
            parse_dependency(dependency)
        if self.array:
            parse_array(self.array)
        if self.gpu_share < 1 and self.gpus != 1:
            raise BadValue(
                f"gpu_share is {self.gpu_share:g} of {self.gpus} GPUs, expected gpus: 1 with a fractional share"
            )
        self.to_job("job-1", "default", "", 0.0)

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """The regular expressions with their fields. They are not compiled here: clients need no library for that."""
        progress = [("progress", self.progress)] if self.progress else []
        return [*progress, *(("never_retry", pattern) for pattern in self.never_retry)]

    @property
    def may_be_reshaped(self) -> bool:
        """Whether the job says that it is reshapable, or leaves its size or the plan of its model open."""
        may_change_plan = self.plan == "auto" and bool(self.workload)  # without a model there is nothing to choose from
        return self.reshapable or self.gpu_range is not None or may_change_plan

    @property
    def _auto(self) -> tuple[AutoRequest, ...]:
        given: dict[AutoResource, float | str] = {"cpus": self.cpus, "memory": self.memory_gib}
        return tuple(AutoRequest(resource) for resource, amount in given.items() if amount == AUTO)

    @property
    def _change_limit(self) -> ChangeLimit | None:
        if self.reshape_at_most is None and not self.reshape_every:
            return None
        return ChangeLimit(self.reshape_at_most, self.reshape_every or 0.0)

    def consent(self, preemption: Preemption) -> Consent:
        """Return whether the job may be preempted, under the daemon's rule for jobs that do not say so."""
        saves = saves_checkpoints(self.command, self.environment)
        return find_consent(self.preemptible, self.job_class, self.may_be_reshaped, preemption, saves=saves)

    def to_job(
        self, job_id: str, tenant: str, user: str, submitted: Seconds, preemption: Preemption = "consent"
    ) -> Job:
        """Return the job for the scheduler. Jobs of the same name form a group for run-time predictions."""
        return Job(
            id=job_id,
            submitted=submitted,
            demand=Demand(
                self.instances,
                self.gpus,
                max(1, milli_from_number(self.gpu_share)) if self.gpus else WHOLE,
                milli_from_number(_amount(self.cpus)),
                mib_from_gib(_amount(self.memory_gib)),
                tuple(sorted(set(self.gpu_types))),
            ),
            tenant=tenant,
            user=user,
            group=self.name,
            job_class=self.job_class,
            priority=self.priority,
            preemptible=self.consent(preemption).is_given,
            reshapable=self.may_be_reshaped,
            time_limit=self.time_limit or None,
            work=self.estimate or None,
            workload=self.workload,
            plan=self.plan if isinstance(self.plan, Plan) else None,
            steps=self.steps,
            batch=self.batch,
            sequence=self.sequence,
            engine=self.engine,
            command=tuple(self.command),
            gpu_range=self.gpu_range,
            change_limit=self._change_limit,
            launch=Launch(
                environment=tuple(sorted(self.environment.items())),
                exported=self.exported,
                folder=self.folder,
                output=self.output,
                error=self.error,
                grace=self.grace,
                stop_signal=self.stop_signal,
                retries=self.retries,
                progress=self.progress,
                no_progress=self.no_progress or None,
                never_retry=tuple(self.never_retry),
                after=tuple(self.after),
                notify=tuple(self.notify),
                auto=self._auto,
            ),
        )


class NewEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The environment variables of a submitter, for the jobs that name it in `exported`."""

    variables: Annotated[dict[str, Annotated[str, NO_NUL_SCHEMA]], Meta(max_length=8 * MAX_VARIABLES), VARIABLES_SCHEMA]

    def __post_init__(self) -> None:
        _check_variable_names(self.variables)
        if any("\0" in value for value in self.variables.values()):
            raise BadValue("variables must not contain a NUL character")
        sizes = {
            name: len(f"{name}={value}".encode("utf-8", "surrogatepass")) for name, value in self.variables.items()
        }
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        if sum(sizes.values()) > MAX_EXPORTED_BYTES:
            raise BadValue(
                f"variables have {sum(sizes.values()):,} bytes, expected at most {MAX_EXPORTED_BYTES:,}; "
                f"the largest are {', '.join(largest)}"
            )
        if largest and sizes[largest[0]] > MAX_ARGUMENT_BYTES:
            raise BadValue(
                f"{largest[0]} has {sizes[largest[0]]:,} bytes, expected at most {MAX_ARGUMENT_BYTES:,} per variable"
            )


class StoredEnvironment(msgspec.Struct, frozen=True):
    """A stored environment: its id, for `exported`. Equal environments of one user have the same id."""

    id: str


class JobEnvironment(msgspec.Struct, frozen=True):
    """The variables that a job's processes inherit from its submitter. `values` are null except for the job's user."""

    names: list[str]
    values: dict[str, str] | None = None


def _amount(given: float | Literal["auto"]) -> float:
    """Return a requested amount; 0 if it is left to the scheduler."""
    return 0.0 if given == AUTO else given


def is_variable_name(name: str) -> bool:
    """Whether a name is a valid name of an environment variable."""
    return _VARIABLE.fullmatch(name) is not None


def _check_variable_names(names: Iterable[str]) -> None:
    for name in names:
        if not is_variable_name(name):
            raise BadValue(f"environment: {name!r} is not a valid variable name")


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadValue(f"{field} is {name!r}, expected letters, digits, '.', '_' and '-'")


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


class Preview(msgspec.Struct, frozen=True):
    """The expected outcome of a submission, which has not been submitted.

    `preemptible`: whether the job could be stopped or reshaped for other jobs; `consent` says why. `exported`: names of
    the variables that the job would inherit from its submitter.
    """

    fits: bool
    demand: str
    gpus: float
    plan: str
    starts_now: bool
    jobs_ahead: int
    start_estimate: TimeEstimate | None
    notes: list[str]
    exported: list[str] = []
    preemptible: bool = False
    consent: str = ""


class WhatIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Variants of a job that is not submitted, of which the effects are to be estimated. `seed`: of the futures."""

    variants: Annotated[list[Submission], Meta(min_length=1, max_length=MAX_VARIANTS)]
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0


class VariantOutcome(msgspec.Struct, frozen=True):
    """When a variant would start and end; null if that is not known. `fits`: it fits on the empty cluster.

    `mean_delay_of_others`: of the jobs that wait now; `delayed_jobs`: how many of them would start later.
    """

    start: TimeEstimate | None
    end: TimeEstimate | None
    mean_delay_of_others: Seconds
    delayed_jobs: int
    fits: bool
    reason: str = ""


class WhatIfOutcome(msgspec.Struct, frozen=True):
    """The outcome of each variant in a number of simulated futures."""

    now: float
    futures: int
    variants: list[VariantOutcome]


class PolicyQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Policies under which the present jobs are to be simulated, beside that of the daemon. `seed`: of the futures."""

    policies: Annotated[list[Name], Meta(min_length=1, max_length=MAX_COMPARED_POLICIES)]
    futures: Annotated[int, Meta(ge=1, le=40)] = 10
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0


class PolicyForecast(msgspec.Struct, frozen=True):
    """The present jobs under a policy, if no more are submitted: means of the simulated futures.

    `mean_wait`: from now to the starts of the waiting jobs that start under every policy; `mean_completion`: from now
    to the ends of the jobs that end under every policy. `earlier`, `later`: waiting jobs whose starts differ from those
    under the daemon's policy.
    """

    policy: str
    futures: int
    mean_wait: float | None
    mean_completion: float | None
    earlier: int
    later: int


class JobStarts(msgspec.Struct, frozen=True):
    """The mean start of a waiting job under each policy."""

    job: str
    starts: list[float]


class PolicyComparison(msgspec.Struct, frozen=True):
    """The present jobs under several policies, of which the first is the daemon's. `starts`: by the largest shifts.

    `jobs`: that run or wait now; `compared`: of those `waiting`, the ones that start under every policy.
    `knows_run_times`: a job has ended, or all jobs have an estimate or a time limit; otherwise, run times are guessed.
    """

    now: float
    policy: str
    jobs: int
    waiting: int
    compared: int
    forecasts: list[PolicyForecast]
    starts: list[JobStarts]
    knows_run_times: bool = True


class PlanQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training whose best plans are wanted. 0 `nodes`: as few as possible; 0 `batch`, `sequence`, no
    `engine`: those that are usual for the model, the GPUs and what is trained.

    `cp`, `ep`: degrees of context and expert parallelism; 0: the best.
    `lora`: rank of the adapters that are trained, 0 for all weights; `qlora`: frozen weights are stored in 4 bits.
    `precision`: of the matrix products of layers, by default the engine's. `margin`: percentage of GPU memory to leave
    free.
    """

    model: Name
    gpu: Name
    gpus: Annotated[int, Meta(ge=1, le=MAX_PLANNED_GPUS)]
    nodes: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    batch: Annotated[int, Meta(ge=0, le=2**24)] = 0
    sequence: Annotated[int, Meta(ge=0, le=2**24)] = 0
    engine: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""
    offload: bool = True
    cp: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    ep: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    lora: Annotated[int, Meta(ge=0, le=MAX_LORA_RANK)] = 0
    qlora: bool = False
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] | None = None
    margin: Annotated[float, Meta(ge=0, le=90)] = 6


class PlanRow(msgspec.Struct, frozen=True):
    """A plan with its estimates. `seconds` and `memory` (GiB per GPU): by component."""

    plan: str
    step_seconds: float
    samples_per_second: float
    tokens_per_second: float
    mfu: float
    memory_gib: float
    seconds: dict[str, float]
    memory: dict[str, float]


class PlanRejection(msgspec.Struct, frozen=True):
    """Plans that were rejected for the same reason."""

    name: str
    plans: int
    explanation: str
    example: str


class PlanAnswer(msgspec.Struct, frozen=True):
    """The best plans, and why others were rejected. `advice`: what would help if none fits. `engine`: the
    training framework, with its releases."""

    model: str
    gpu: str
    gpus: int
    nodes: int
    batch: int
    sequence: int
    best: list[PlanRow]
    considered: int
    out_of_memory: int
    rejected: list[PlanRejection]
    advice: list[str]
    engine: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """Names of the models, GPUs and training frameworks of the catalogue, and of the policies to compare with."""

    models: list[str]
    gpus: list[str]
    engines: list[str]
    policies: list[str] = []


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
    """A run on the timeline. `end` is null while it runs; `ending`: finished, stopped or failed."""

    job: str
    run: int
    tenant: str
    user: str
    start: float
    end: float | None
    ending: str
    placement: list[NodeGpus]


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


class TokenStatus(msgspec.Struct, frozen=True):
    """An access token, without its secret."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to create an access token."""

    name: PlainName
    role: Role = "member"
    tenant: PlainName = "default"
    user: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _check_name("tenant", self.tenant)


class CreatedToken(msgspec.Struct, frozen=True):
    """A new access token with its text, which is returned only once."""

    token: str
    name: str


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to sign in to the web UI: with a `token`, or the `code` of a one-time link."""

    token: Annotated[str, Meta(max_length=256)] = ""
    code: Annotated[str, Meta(max_length=256)] = ""


class SignInLink(msgspec.Struct, frozen=True):
    """A link that signs in to the web UI once, until it expires."""

    url: str
    expires: float


class SessionStatus(msgspec.Struct, frozen=True):
    """Who is signed in to the web UI. `csrf_token`: the header `X-CSRF-Token` of requests that change something."""

    signed_in: bool = False
    role: str = ""
    tenant: str = ""
    user: str = ""
    own_jobs_only: bool = False
    csrf_token: str = ""


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
    `last_event`: number of the last event.
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
