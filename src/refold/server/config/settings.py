"""The configuration in `refold.yaml` as frozen types, which say what the file may contain."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from refold.errors import BadValue, RefoldError
from refold.model import DAY, HOUR, MAX_LEVELS, MINUTE, JobClass, Preemption, PreemptionRules, Tenant
from refold.model.documents import Duration, Part, PositiveDuration, ReadBy, convert
from refold.server.config.limits import HttpConfig, LimitsConfig
from refold.server.config.topology import Topology, read_topology
from refold.server.config.values import (
    AUTO,
    MAX_AMOUNT,
    Addresses,
    AllowedTargets,
    CgroupPath,
    GpuIndex,
    Gpus,
    Name,
    NodeLabel,
    OutputPattern,
    Percent,
    Size,
    Slots,
    SocketPath,
    UserEntry,
)

MAX_NODES = 256
"""Maximum number of simulated nodes on one machine."""

POWER_PLACEMENT = "genetic-power"
POWER_POLICIES = ("fifo", "fifo-skip", "sjf", "srtf", "las", "drf", "tiresias", "easy", "conservative", "refold")
"""Policies that place all jobs by their placement rule, so that they can keep racks within their power limits."""


NotificationKind = Literal[
    "waiting_long",
    "started",
    "reshaped",
    "stopped",
    "failed",
    "finished",
    "ended",
    "hang_suspected",
    "time_limit",
    "gpu_idle",
    "gpu_bad",
]
"""Kinds of messages. A job has `ended` if a rule ended it or a dependency failed."""

OutputAction = Literal["no-retry", "drain-node"]
BadGpuRule = Literal["drain", "warn", "off"]
UsedGpuRule = Literal["avoid", "show", "off"]


class ClusterConfig(msgspec.Struct, frozen=True):
    """The resources to share: detected GPUs (all, or by number), or CPU slots in place of GPUs.

    `nodes`: slots by node name, to present this machine as several nodes for trials. `cpus` and `memory_gib`: capacity
    of each node; 0: not managed.
    """

    name: Name = "localhost"
    gpus: Annotated[Literal["auto"] | tuple[GpuIndex, ...], Meta(description="auto, or GPU numbers such as [0, 1]")] = (
        "auto"
    )
    slots: Slots = 0
    nodes: Annotated[dict[Name, Slots], Meta(max_length=MAX_NODES, description="nodes, such as {a: 4, b: 4}")] = {}
    cpus: Annotated[float, Meta(ge=0, le=MAX_AMOUNT, description="CPUs ≥ 0")] = 0.0
    memory_gib: Annotated[float, Meta(ge=0, le=MAX_AMOUNT, description="GiB ≥ 0")] = 0.0

    def __post_init__(self) -> None:
        if self.gpus != "auto" and (not self.gpus or len(set(self.gpus)) < len(self.gpus)):
            raise BadValue("gpus is invalid, expected at least one GPU, each once")

    @property
    def slots_by_node(self) -> dict[str, int]:
        """Slots of each node; empty if real GPUs are shared."""
        return self.nodes or ({"localhost": self.slots} if self.slots else {})


class PolicyConfig(msgspec.Struct, frozen=True):
    """Name and settings of the policy."""

    name: str = "refold"
    settings: dict[str, Any] = {}


def _read_policy(part: Part) -> PolicyConfig:
    """Read the name of a policy or a policy file, or a name with settings. Creating the policy checks its settings."""
    from refold.simulator import default_settings, make_policy, resolve_policy  # imports the policy

    config = PolicyConfig(part.text()) if isinstance(part.value, str) else convert(part, PolicyConfig)
    try:
        known = default_settings(config.name)
    except RefoldError as error:
        raise part.at("name").error(error) from None
    if config.settings:
        part.at("settings").fields(known)
        try:
            make_policy(config.name, config.settings)
        except RefoldError as error:
            raise part.at("settings").error(error) from None
    return PolicyConfig(*resolve_policy(config.name, config.settings))


class TenantConfig(msgspec.Struct, frozen=True):
    """Quota and limit of a tenant, in GPUs; a limit of 0 means none."""

    quota_gpus: Gpus = 0.0
    limit_gpus: Gpus = 0.0


def _read_tenants(part: Part) -> tuple[Tenant, ...]:
    return tuple(
        _read_tenant(name, part.at(name), config) for name, config in convert(part, dict[Name, TenantConfig]).items()
    )


def _read_tenant(name: str, part: Part, config: TenantConfig) -> Tenant:
    if 0 < config.limit_gpus < config.quota_gpus:
        raise part.at("limit_gpus").unexpected(f"at least quota_gpus, {config.quota_gpus:g} (0: no limit)")
    return Tenant(name, config.quota_gpus, config.limit_gpus)


class PreemptionConfig(msgspec.Struct, frozen=True):
    """Which jobs may be stopped or reshaped for others: in general, of single tenants, and of job classes."""

    default: Preemption = "consent"
    tenants: dict[Name, Preemption] = {}
    classes: dict[JobClass, Preemption] = {}


def _read_preemption(part: Part) -> PreemptionRules:
    """Read one rule for all jobs, or a default with rules of tenants and classes."""
    if isinstance(part.value, str):
        rule: Any = Preemption
        return PreemptionRules(convert(part, rule))
    config = convert(part, PreemptionConfig)
    return PreemptionRules(config.default, config.tenants, config.classes)


WattAmount = Annotated[float, Meta(ge=0, le=MAX_AMOUNT, description="watts ≥ 0")]


class PowerRange(msgspec.Struct, frozen=True):
    """Power when idle and when all of it is in use, in watts."""

    idle: WattAmount = 0.0
    busy: WattAmount = 0.0

    def __post_init__(self) -> None:
        if self.busy < self.idle:
            raise BadValue(f"busy is {self.busy:g}, expected at least idle, {self.idle:g}")


class RackConfig(msgspec.Struct, frozen=True):
    """A rack: its power limit, and its nodes; none listed: all nodes."""

    limit_watts: Annotated[float, Meta(gt=0, le=MAX_AMOUNT, description="watts > 0")]
    nodes: tuple[Name, ...] = ()


class PowerConfig(msgspec.Struct, frozen=True):
    """Power limits of racks, and the power of each GPU and of each node without its GPUs.

    `gpu_watts`: None: that of the data sheet when busy, and 0 when idle.
    """

    racks: dict[Name, RackConfig] = {}
    gpu_watts: PowerRange | None = None
    node_watts: PowerRange = PowerRange()


class IdleRule(msgspec.Struct, frozen=True):
    """A run is idle if the utilisation of all its GPUs was below a percentage for some time."""

    utilisation_below: Percent = 5.0
    seconds: PositiveDuration = msgspec.field(default=30 * MINUTE, name="for")


class OutputRule(msgspec.Struct, frozen=True):
    """What to do if a run fails and its output matches a pattern."""

    pattern: OutputPattern
    action: OutputAction


def _read_idle(part: Part) -> IdleRule | None:
    if part.value is False:
        return None
    part.fields(expected="off, or a rule such as {utilisation_below: 5, for: 30m}")
    return convert(part, IdleRule)


RULES = (
    "no_progress",
    "beyond_limit",
    "beyond_tail",
    "grace",
    "limit_grace",
)


class WatchConfig(msgspec.Struct, frozen=True):
    """What is monitored. Time limits are enforced by default, and at once, because policies plan with them."""

    no_progress: PositiveDuration | None = None
    beyond_limit: bool = True
    beyond_tail: Annotated[float, Meta(gt=0, le=1e6, description="a factor such as 3")] | None = None
    grace: Duration = 5 * MINUTE
    limit_grace: Duration = 5.0
    """Not 0: after a restart of the daemon, the ends of runs meanwhile are reported first."""
    idle: Annotated[IdleRule | None, ReadBy(_read_idle)] = IdleRule()
    bad_gpus: BadGpuRule = "drain"
    used_gpus: UsedGpuRule = "avoid"
    output: tuple[OutputRule, ...] = ()

    @property
    def rules(self) -> dict[str, Any]:
        """The fields of `refold.policies.common.WatchRules` that are set; {} if no rule is active."""
        if not (self.no_progress or self.beyond_limit or self.beyond_tail):
            return {}
        return {key: value for key in RULES if (value := getattr(self, key)) is not None}


class NotifyConfig(msgspec.Struct, frozen=True):
    """Where notifications go: `urls` by kind for all jobs, `users` by user for their own jobs.

    `kinds`: which kinds are sent to users and to the addresses in job submissions. `allow`: the schemes, or schemes and
    hosts, of the latter; None: all.
    """

    urls: dict[NotificationKind, Addresses] = {}
    users: dict[Name, Addresses] = {}
    kinds: tuple[NotificationKind, ...] = tuple(kind for kind in get_args(NotificationKind) if kind != "gpu_bad")
    waiting_long_after: PositiveDuration = 4 * HOUR
    allow: AllowedTargets | None = None


class ServeConfig(msgspec.Struct, frozen=True):
    """Listen address, grace period of runs, and limits for their output.

    `socket`: path of the Unix socket; auto: in the state folder or, if other users are allowed, where they find it.
    `user`: started by root, the daemon runs as this user, and jobs run as those who submit them.
    Ended jobs are kept for `keep_jobs_for`, at most `keep_jobs` of them. `keep_backups`: of daily backups.
    `allowed_hosts`: host names under which clients may call the daemon, in addition to the machine's own.
    `cgroup`: the cgroup in which those of runs are created; auto: that of the daemon.
    """

    host: Annotated[str, Meta(min_length=1, max_length=255, description="a listen address")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65535 (0: any free port)")] = 7170
    grace: Annotated[Duration, Meta(le=DAY, description="a duration of at most a day, such as 30s")] = 10.0
    max_output: Size = 64 * 2**20
    keep_logs_for: PositiveDuration = 30 * DAY
    allowed_hosts: Annotated[tuple[Name, ...], Meta(description="a list of host names such as [gpus.lab]")] = ()
    socket: SocketPath = AUTO
    user: Annotated[str, Meta(pattern=r"^[\w.-]{0,64}\Z", description="the name of an account for the daemon")] = ""
    keep_jobs_for: PositiveDuration = 365 * DAY
    keep_jobs: Annotated[int, Meta(ge=1000, description="a number of jobs from 1000")] = 200_000
    keep_backups: Annotated[int, Meta(ge=0, le=1000, description="a number from 0 to 1000")] = 3
    cgroup: CgroupPath = AUTO


class UsersConfig(msgspec.Struct, frozen=True):
    """Users of this machine who may use the daemon at its Unix socket, besides its own user and root.

    `allow`: all, or names of users and, after '@', of groups. `tenants`: tenants of users and groups; the first that
    matches counts.
    """

    allow: Annotated[
        Literal["all"] | tuple[UserEntry, ...], Meta(description="all, or a list of users and groups: [ann, '@lab']")
    ] = ()
    tenants: dict[UserEntry, Name] = {}


LevelLabels = Annotated[
    tuple[NodeLabel, ...], Meta(max_length=MAX_LEVELS, description=f"a list of at most {MAX_LEVELS} node labels")
]


class RayConfig(msgspec.Struct, frozen=True):
    """Ray. `levels`: labels of nodes that name their domains, outermost first."""

    levels: LevelLabels = ()


class KubernetesConfig(msgspec.Struct, frozen=True):
    """Where `refold serve --on kubernetes` creates Jobs for submitted commands, and the image of their containers.

    `volume_claim`: a PersistentVolumeClaim in that namespace, for checkpoints. `levels`: labels of nodes that name
    their domains, outermost first; none: those of Kueue's Topology. `start_timeout`: how long bound pods may take to
    start, before their gang is ended.
    """

    namespace: Name = "default"
    image: Annotated[str, Meta(max_length=512, description="an image such as pytorch/pytorch:2.10.0")] = ""
    volume_claim: Annotated[str, Meta(max_length=253, description="the name of a PersistentVolumeClaim")] = ""
    levels: LevelLabels = ()
    start_timeout: PositiveDuration = 10 * MINUTE


class SlurmConfig(msgspec.Struct, frozen=True):
    """How `refold serve --on slurm` submits jobs. `partition`: the nodes to schedule; '': those of all partitions.

    `options`: further options of sbatch. `pool`: nodes to hold, in which runs are started; `pool_time`: the time limit
    of their allocations; `pool_jobs`: allocations of others; `release_idle_after`: how long an allocation may have no
    runs. `as_root`: whether root may start a daemon without `serve.user`, whose jobs are then root's.
    """

    partition: Annotated[str, Meta(pattern=r"^[\w.-]{0,64}\Z", description="the name of a partition")] = ""
    account: Annotated[str, Meta(max_length=64, description="the name of an account")] = ""
    qos: Annotated[str, Meta(max_length=64, description="the name of a QOS")] = ""
    options: Annotated[
        tuple[Annotated[str, Meta(pattern="^--", description="an option such as --constraint=ib")], ...],
        Meta(description="a list of options of sbatch such as [--constraint=ib]"),
    ] = ()
    pool: Annotated[int, Meta(ge=0, le=10_000, description="a number of nodes from 0 to 10000")] = 0
    pool_time: PositiveDuration | None = None
    pool_jobs: Annotated[
        tuple[Annotated[int, Meta(ge=1, description="the id of a job of Slurm")], ...],
        Meta(description="a list of job ids such as [4711]"),
    ] = ()
    release_idle_after: PositiveDuration = 5 * MINUTE
    as_root: bool = False


class Config(msgspec.Struct, frozen=True):
    """The whole file, with defaults."""

    cluster: ClusterConfig = ClusterConfig()
    tenants: Annotated[tuple[Tenant, ...], ReadBy(_read_tenants)] = ()
    policy: Annotated[PolicyConfig, ReadBy(_read_policy)] = PolicyConfig()
    preemption: Annotated[PreemptionRules, ReadBy(_read_preemption)] = PreemptionRules()
    topology: Annotated[Topology, ReadBy(read_topology)] = Topology()
    power: PowerConfig = PowerConfig()
    watch: WatchConfig = WatchConfig()
    notify: NotifyConfig = NotifyConfig()
    serve: ServeConfig = ServeConfig()
    http: HttpConfig = HttpConfig()
    users: UsersConfig = UsersConfig()
    limits: LimitsConfig = LimitsConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    ray: RayConfig = RayConfig()
    slurm: SlurmConfig = SlurmConfig()

    @property
    def policy_settings(self) -> dict[str, Any]:
        """Settings to create the policy with: its own and the watch rules.

        `per_job` is always on: a job's own `no_progress` limit is enforced. New model types are profiled, unless the
        settings say otherwise. Jobs are placed within the power limits of racks, if there are any.
        """
        from refold.simulator import chooses_plans

        profile = {"profile": True} if chooses_plans(self.policy.name) else {}
        placement = {"placement": POWER_PLACEMENT} if self.power.racks else {}
        return {**profile, **placement, **self.policy.settings, "watch": {**self.watch.rules, "per_job": True}}
