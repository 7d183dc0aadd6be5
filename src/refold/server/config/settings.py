"""The configuration in `refold.yaml` as frozen types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from refold.model import DAY, HOUR, MINUTE, Seconds, Tenant

NotificationKind = Literal[
    "waiting_long",
    "started",
    "reshaped",
    "stopped",
    "failed",
    "finished",
    "ended",
    "hang_suspected",
    "gpu_idle",
    "gpu_bad",
]
"""Kinds of messages. A job has `ended` if a rule ended it or a dependency failed."""

OutputAction = Literal["no-retry", "drain-node"]
BadGpuRule = Literal["drain", "warn", "off"]


class ClusterConfig(msgspec.Struct, frozen=True):
    """The resources to share: detected GPUs (all, or by number), or CPU slots in place of GPUs.

    `nodes`: slots by node name, to present this machine as several nodes for trials. `cpus` and `memory_gib`: capacity
    of each node; 0: not managed.
    """

    name: str = "localhost"
    gpus: Literal["auto"] | tuple[int, ...] = "auto"
    slots: int = 0
    nodes: dict[str, int] = {}
    cpus: float = 0.0
    memory_gib: float = 0.0

    @property
    def slots_by_node(self) -> dict[str, int]:
        """Slots of each node; empty if real GPUs are shared."""
        return self.nodes or ({"localhost": self.slots} if self.slots else {})


class PolicyConfig(msgspec.Struct, frozen=True):
    """Name and settings of the policy."""

    name: str = "easy"
    settings: dict[str, Any] = {}


class IdleRule(msgspec.Struct, frozen=True):
    """A run is idle if the utilisation of all its GPUs was below a percentage for some time."""

    utilisation_below: float = 5.0
    seconds: Seconds = 30 * MINUTE


class OutputRule(msgspec.Struct, frozen=True):
    """What to do if a run fails and its output matches a pattern."""

    pattern: str
    action: OutputAction


DEFAULT_WATCH_RULES: dict[str, Any] = {"beyond_limit": True, "grace": 5 * MINUTE}
"""Time limits are enforced by default, because policies plan with them."""


class WatchConfig(msgspec.Struct, frozen=True):
    """What is monitored. `rules`: fields of `refold.policies.common.WatchRules`, times in seconds; {}: none."""

    rules: dict[str, Any] = msgspec.field(default_factory=lambda: dict(DEFAULT_WATCH_RULES))
    idle: IdleRule | None = IdleRule()
    bad_gpus: BadGpuRule = "drain"
    output: tuple[OutputRule, ...] = ()


class NotifyConfig(msgspec.Struct, frozen=True):
    """Where notifications go: `urls` by kind for all jobs, `users` by user for their own jobs.

    `kinds`: which kinds are sent to users and to the addresses in job submissions.
    """

    urls: dict[NotificationKind, tuple[str, ...]] = {}
    users: dict[str, tuple[str, ...]] = {}
    kinds: tuple[NotificationKind, ...] = (
        "waiting_long",
        "started",
        "reshaped",
        "stopped",
        "failed",
        "finished",
        "ended",
        "hang_suspected",
        "gpu_idle",
    )
    waiting_long_after: Seconds = 4 * HOUR


class ServeConfig(msgspec.Struct, frozen=True):
    """Listen address, grace period of runs, and limits for their output.

    `allowed_hosts`: host names under which clients may call the daemon, in addition to the machine's own.
    """

    host: str = "127.0.0.1"
    port: int = 7170
    grace: Seconds = 10.0
    max_output: int = 64 * 2**20
    keep_logs_for: Seconds = 30 * DAY
    allowed_hosts: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True):
    """The whole file, with defaults."""

    cluster: ClusterConfig = ClusterConfig()
    tenants: tuple[Tenant, ...] = ()
    policy: PolicyConfig = PolicyConfig()
    watch: WatchConfig = WatchConfig()
    notify: NotifyConfig = NotifyConfig()
    serve: ServeConfig = ServeConfig()

    @property
    def policy_settings(self) -> dict[str, Any]:
        """Settings to create the policy with: its own and the watch rules.

        `per_job` is always on: a job's own `no_progress` limit is enforced.
        """
        return {**self.policy.settings, "watch": {**self.watch.rules, "per_job": True}}
