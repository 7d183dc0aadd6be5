"""JSON types of the API: limits and submissions of jobs, and the environments that they inherit."""

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
    TopologyRequest,
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
MAX_UNIX_SECONDS = 253_402_128_000
"""9999-12-30: later times cannot be formatted in every time zone."""

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
JobState = Literal[
    "held", "waiting", "infeasible", "running", "stopping", "finished", "failed", "timed out", "cancelled"
]
"""The state of a job. `infeasible`: the job does not fit even on the empty cluster."""

Role = Literal["owner", "member", "reader"]


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request to run a job; the daemon assigns its id.

    Each of `instances` instances gets `gpus` GPUs, or the fraction `gpu_share` of one. `cpus` and `memory_gib` of each
    may be `auto`: learned from what earlier jobs of the same user and name have used. `gpu_range`: minimum and maximum
    number of GPUs in total for a job that may be reshaped. `topology`: levels of the cluster, such as `rack`; all
    instances, or each segment of them, are placed in one domain of such a level. `preemptible`: whether the job may be
    stopped or reshaped for other jobs; null: if it is best-effort or reshapable, saves checkpoints, or the daemon's
    configuration says so.
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
    topology: TopologyRequest | None = None
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
        check_name("name", self.name)
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
            check_name("tenant", self.tenant)
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

    def _workload_of(self, user: str) -> str:
        """Return the workload of a job that names none: jobs of one name are equally fast, if their size is open."""
        name = f"{user}/{self.name}" if user else self.name
        return name[:256] if self.gpu_range is not None else ""

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
                topology=self.topology,
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
            workload=self.workload or self._workload_of(user),
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
    return _VARIABLE.fullmatch(name) is not None


def _check_variable_names(names: Iterable[str]) -> None:
    for name in names:
        if not is_variable_name(name):
            raise BadValue(f"environment: {name!r} is not a valid variable name")


def check_name(field: str, name: str) -> None:
    """Raise BadValue if a name has other characters than letters, digits, '.', '_' and '-'."""
    if not _NAME.fullmatch(name):
        raise BadValue(f"{field} is {name!r}, expected letters, digits, '.', '_' and '-'")
