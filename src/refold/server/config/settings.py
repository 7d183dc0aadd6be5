"""What the owner of a machine has to say about the scheduler on it: `refold.yaml`, read into frozen nouns."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from refold.model import DAY, HOUR, MINUTE, Seconds, Tenant

Kind = Literal[
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
"""What messages are about. A job has `ended` that neither finished nor failed: by a rule, or since another failed."""

Then = Literal["no-retry", "drain-node"]
BadGpuRule = Literal["drain", "warn", "off"]


class ClusterChoice(msgspec.Struct, frozen=True):
    """What there is to share out: GPUs that are found (all, or those of some numbers), or slots that stand in for GPUs.

    `nodes`: this machine as several, so many slots each, to try things out. `cpus` and `memory_gib` are those of each
    node; 0: they are not shared out.
    """

    name: str = "localhost"
    gpus: Literal["auto"] | tuple[int, ...] = "auto"
    slots: int = 0
    nodes: dict[str, int] = {}
    cpus: float = 0.0
    memory_gib: float = 0.0

    @property
    def placeholders(self) -> dict[str, int]:
        """The slots of each node, if there are no real GPUs to be shared out."""
        return self.nodes or ({"localhost": self.slots} if self.slots else {})


class PolicyChoice(msgspec.Struct, frozen=True):
    """Who decides, with which settings."""

    name: str = "easy"
    settings: dict[str, Any] = {}


class IdleRule(msgspec.Struct, frozen=True):
    """A run is idle whose GPUs all had a load below so many percent for so long."""

    load_below: float = 5.0
    seconds: Seconds = 30 * MINUTE


class OutputRule(msgspec.Struct, frozen=True):
    """What follows if a run fails with this in its output."""

    pattern: str
    then: Then


USUAL_RULES: dict[str, Any] = {"beyond_limit": True, "grace": 5 * MINUTE}
"""A time limit that a user gave is held against the job: whoever plans by it counts on that."""


class WatchChoice(msgspec.Struct, frozen=True):
    """What is watched for; `rules` are those of `refold.policies.common.run_watch.Rules`, in seconds; none: {}."""

    rules: dict[str, Any] = msgspec.field(default_factory=lambda: dict(USUAL_RULES))
    idle: IdleRule | None = IdleRule()
    bad_gpus: BadGpuRule = "drain"
    output: tuple[OutputRule, ...] = ()


class NotifyChoice(msgspec.Struct, frozen=True):
    """Whom to tell: `urls` by kind of message, `users` of their own jobs.

    `tell`: what users, and the addresses that jobs came with, are told of.
    """

    urls: dict[Kind, tuple[str, ...]] = {}
    users: dict[str, tuple[str, ...]] = {}
    tell: tuple[Kind, ...] = (
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


class ServeChoice(msgspec.Struct, frozen=True):
    """Where the daemon listens, how long runs may take to stop, and what is kept of their output.

    `names`: by which others reach it, beside the machine's own; what asks it by another name is refused.
    """

    host: str = "127.0.0.1"
    port: int = 7170
    grace: Seconds = 10.0
    most_output: int = 64 * 2**20
    keep_logs_for: Seconds = 30 * DAY
    names: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True):
    """All of `refold.yaml`; what it does not say is as here."""

    cluster: ClusterChoice = ClusterChoice()
    tenants: tuple[Tenant, ...] = ()
    policy: PolicyChoice = PolicyChoice()
    watch: WatchChoice = WatchChoice()
    notify: NotifyChoice = NotifyChoice()
    serve: ServeChoice = ServeChoice()

    @property
    def policy_settings(self) -> dict[str, Any]:
        """The settings to make the policy with: its own, and the rules by which its runs are watched.

        What a job says itself of when it is to be taken to hang always counts.
        """
        return {**self.policy.settings, "watch": {**self.watch.rules, "per_job": True}}
