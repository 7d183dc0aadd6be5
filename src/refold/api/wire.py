"""What goes over the wire: asked for by clients, answered by the daemon. Times are Unix seconds.

The same structs make the OpenAPI description, check what comes in, and are what `refold.Client` hands out.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from refold.errors import BadValue
from refold.model import (
    WHOLE,
    Demand,
    Job,
    JobClass,
    Launch,
    Plan,
    Seconds,
    StopSignal,
    mib_from_gib,
    milli_from_number,
)

LONGEST_NAME = 64
LONGEST_TEXT = 4096
LONGEST_COMMAND = 128 * 1024
"""Characters of a whole command: a script may come along as one of its words."""

LONGEST_WORD = 128 * 1024 - 1
"""Bytes of one of them: Linux starts no process with a longer one."""

MOST_WORDS = 1024
MOST_VARIABLES = 512
MOST_GPUS = 62 * 1024
MOST_PATTERNS = 16
LONGEST_TIME: Seconds = 10 * 365 * 86400.0
LARGEST_NUMBER = 2**40
LARGEST_ID = 10**15
"""No job has a number as large as this."""

_NAME = re.compile(r"[\w.-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
PlainName = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9._-]+$")]
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Count = Annotated[int, Meta(ge=0, le=MOST_GPUS)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST_TIME)]
Pattern = Annotated[str, Meta(max_length=512)]
JobState = Literal["held", "waiting", "infeasible", "running", "stopping", "finished", "failed", "cancelled"]
"""Where a job stands. `never`: the whole cluster, empty, has no room for it."""

Role = Literal["owner", "member", "reader"]


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job as somebody asks for it; the daemon gives it its id.

    Each of `instances` instances gets `gpus` GPUs, or the part `gpu_share` of one. `gpu_range`: how many GPUs in all a
    job can do with, which may then be reshaped. `plan`: `auto` lets the scheduler choose (for a known `workload`),
    `off` leaves it to the command, and a plan pins it. `estimate`: how long its user thinks it takes.
    `secrets` are variables that are kept out of the journal and told to nobody. `request` makes asking twice the same
    as asking once. `hold`: do not look at it until it is released.
    """

    name: Name
    command: Annotated[list[str], Meta(min_length=1, max_length=MOST_WORDS)]
    instances: Annotated[int, Meta(ge=1, le=MOST_GPUS)] = 1
    gpus: Count = 1
    gpu_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    gpu_types: Annotated[list[Name], Meta(max_length=62)] = []
    cpus: Annotated[float, Meta(ge=0, le=2**20)] = 0.0
    memory_gib: Annotated[float, Meta(ge=0, le=2**20)] = 0.0
    gpu_range: tuple[Count, Count] | None = None
    tenant: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""
    job_class: JobClass = "guaranteed"
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0
    preemptible: bool = True
    reshapable: bool = False
    time_limit: Duration | None = None
    estimate: Duration | None = None
    steps: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] | None = None
    workload: Annotated[str, Meta(max_length=256)] = ""
    batch: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] = 0
    sequence: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] = 0
    plan: Literal["auto", "off"] | Plan = "off"
    environment: Annotated[dict[str, Text], Meta(max_length=MOST_VARIABLES)] = {}
    secrets: Annotated[dict[str, Text], Meta(max_length=MOST_VARIABLES)] = {}
    folder: Text = ""
    grace: Duration | None = None
    stop_signal: StopSignal = "TERM"
    retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    progress: Pattern = ""
    no_progress: Duration | None = None
    never_retry: Annotated[list[Pattern], Meta(max_length=MOST_PATTERNS)] = []
    after: Annotated[list[Name], Meta(max_length=256)] = []
    notify: Annotated[list[Text], Meta(max_length=16)] = []
    hold: bool = False
    request: Annotated[str, Meta(max_length=128)] = ""

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        if sum(map(len, self.command)) > LONGEST_COMMAND:
            raise BadValue(f"command has more than {LONGEST_COMMAND:,} characters")
        if any(len(word.encode("utf-8", "surrogatepass")) > LONGEST_WORD for word in self.command):
            raise BadValue(f"a word of command has more than {LONGEST_WORD:,} bytes")
        words = (*self.command, self.folder, *self.environment.values(), *self.secrets.values())
        if any("\0" in word for word in words):
            raise BadValue("command, folder, environment and secrets cannot have a NUL character in them")
        for variable in (*self.environment, *self.secrets):
            if not _VARIABLE.fullmatch(variable):
                raise BadValue(f"environment: {variable!r} is not a name for a variable")
        for number in (self.cpus, self.memory_gib, self.time_limit, self.estimate, self.grace, self.no_progress):
            if number is not None and not math.isfinite(number):
                raise BadValue(f"{number} is not a finite number")
        if self.tenant:
            _check_name("tenant", self.tenant)
        if self.gpu_share < 1 and self.gpus != 1:
            raise BadValue(f"gpu_share is {self.gpu_share:g} of {self.gpus} GPUs, expected a part of one")
        self.to_job("job-1", "default", "", 0.0)

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """Its regular expressions, each with its field. Nothing compiles them here: that can take minutes."""
        progress = [("progress", self.progress)] if self.progress else []
        return [*progress, *(("never_retry", one) for one in self.never_retry)]

    def to_job(self, job_id: str, tenant: str, user: str, submitted: Seconds) -> Job:
        """The noun that the scheduler knows. Jobs of one name resemble each other: they are a group."""
        reshapable = self.reshapable or self.gpu_range is not None or self.plan == "auto"
        return Job(
            id=job_id,
            submitted=submitted,
            demand=Demand(
                self.instances,
                self.gpus,
                max(1, milli_from_number(self.gpu_share)) if self.gpus else WHOLE,
                milli_from_number(self.cpus),
                mib_from_gib(self.memory_gib),
                tuple(sorted(set(self.gpu_types))),
            ),
            tenant=tenant,
            user=user,
            group=self.name,
            job_class=self.job_class,
            priority=self.priority,
            preemptible=self.preemptible,
            reshapable=reshapable,
            time_limit=self.time_limit or None,
            work=self.estimate or None,
            workload=self.workload,
            plan=self.plan if isinstance(self.plan, Plan) else None,
            steps=self.steps,
            batch=self.batch,
            sequence=self.sequence,
            command=tuple(self.command),
            gpu_range=self.gpu_range,
            launch=Launch(
                environment=tuple(sorted(self.environment.items())),
                folder=self.folder,
                grace=self.grace,
                stop_signal=self.stop_signal,
                retries=self.retries,
                progress=self.progress,
                no_progress=self.no_progress or None,
                never_retry=tuple(self.never_retry),
                after=tuple(self.after),
                notify=tuple(self.notify),
            ),
        )


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadValue(f"{field} is {name!r}, expected letters, digits, '.', '_' and '-'")


class Interval(msgspec.Struct, frozen=True, omit_defaults=True):
    """When something is expected: probably `at`, hardly ever before `soonest` or after `latest`."""

    at: float
    soonest: float | None = None
    latest: float | None = None


class Place(msgspec.Struct, frozen=True):
    """GPUs of a node that a run has, and how much of each."""

    node: str
    gpus: list[int]
    share: float = 1.0


class JobStatus(msgspec.Struct, frozen=True):
    """A job, and where it stands. `reason` and `why` tell why it waits, or how its last run ended.

    `exit_code`: 0 of a job that has finished, that of its last run if this has failed.
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
    where: list[Place] = []
    plan: str = ""
    reason: str = ""
    why: str = ""
    start_estimate: Interval | None = None
    steps_done: int = 0
    steps: int | None = None
    time_limit: float | None = None
    place: int = 0
    warning: str = ""
    exit_code: int | None = None
    instances: int = 1


class Jobs(msgspec.Struct, frozen=True):
    """Some jobs; `total` is how many there are, `next` where the next page begins (none: this was the last)."""

    jobs: list[JobStatus]
    total: int
    next: int | None = None


class Preview(msgspec.Struct, frozen=True):
    """What would become of a submission: nothing has been done."""

    fits: bool
    demand: str
    gpus: float
    plan: str
    starts_now: bool
    waiting_before: int
    start_estimate: Interval | None
    notes: list[str]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened, as the stream of events tells it. `kind`: submitted, started, stopped, …"""

    number: int
    at: float
    kind: str
    job: str = ""
    run: int = 0
    text: str = ""
    tenant: str = ""


class GpuStatus(msgspec.Struct, frozen=True):
    """One GPU, or slot that stands in for one. What cannot be measured is None."""

    node: str
    index: int
    name: str
    jobs: list[str] = []
    free: float = 1.0
    drained: str = ""
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    load: float | None = None
    celsius: float | None = None
    watts: float | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    """One node. `up`: it takes work."""

    name: str
    up: bool
    gpus: int
    gpu_type: str
    free_gpus: float
    jobs: list[str] = []
    why: str = ""


class TenantStatus(msgspec.Struct, frozen=True):
    """One tenant: what it may count on, what it may use at most (0: all), what it uses, what it waits for."""

    name: str
    quota_gpus: float
    limit_gpus: float
    running: int
    gpus: float
    waiting: int
    waiting_gpus: float


class TokenStatus(msgspec.Struct, frozen=True):
    """A token, but for its secret."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that somebody is to get."""

    name: PlainName
    role: Role = "member"
    tenant: PlainName = "default"
    user: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _check_name("tenant", self.tenant)


class MadeToken(msgspec.Struct, frozen=True):
    """A token as it is told once."""

    token: str
    name: str


class DaemonInfo(msgspec.Struct, frozen=True):
    """The daemon itself."""

    version: str
    cluster: str
    policy: str
    nodes: int
    gpus: int
    free_gpus: float
    running: int
    waiting: int
    now: float
    began: float
    storage: str = ""
    role: str = ""
    tenant: str = ""
    user: str = ""


class Logs(msgspec.Struct, frozen=True):
    """A piece of a run's output: `next` is where the one after it begins; `over`: the run has ended."""

    text: str
    run: int
    instance: int
    next: int
    over: bool


class Why(msgspec.Struct, frozen=True):
    """The story of a job, one line after the other; a line has a time, an event and what there is to say."""

    job: JobStatus
    story: list[Event]


class Problem(msgspec.Struct, frozen=True):
    """What went wrong, for people; `field` names the part of the request that was wrong, if one was."""

    error: str
    field: str = ""
