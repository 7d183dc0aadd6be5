"""The answer of a policy: what to change now. Jobs that a decision does not mention stay as they are."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from refold.model.allocation import Allocation
from refold.model.job import Demand
from refold.model.units import WHOLE, Seconds, format_count, format_duration

# Why a job waits: one reason from a closed list, with counts.


class Reason(StrEnum):
    """The reasons for which a job waits. `refold queue` prints the values."""

    PRIORITY = "Priority"  # other jobs are ahead of it in the queue
    FAIR_SHARE = "FairShare"  # jobs of users that have used less of their share have started first
    RESOURCES = "Resources"  # it does not fit into the free resources
    INFEASIBLE = "Infeasible"  # it would not fit even into the empty cluster
    RESERVED = "Reserved"  # it fits now, but the resources are reserved for jobs ahead of it
    TOPOLOGY = "Topology"  # it fits now, but would be slower across the domains that have room than in fewer
    RELEASING = "Releasing"  # its resources are being released by runs that are stopping
    HELD = "Held"  # a user holds it until it is released
    BEGIN_TIME = "BeginTime"  # its begin time has not come
    DEPENDENCY = "Dependency"  # the jobs that it depends on have not ended
    ARRAY_LIMIT = "ArrayLimit"  # as many tasks of its array are running as may run at once
    BACKOFF = "Backoff"  # it failed, and is retried after a delay
    LIMIT = "Limit"  # its tenant has reached its GPU limit
    NOT_CONSIDERED = "NotConsidered"  # the policy has not considered it yet


NOT_ALLOWED = "not meet the constraints of the job on nodes"
"""What an engine that knows the constraints may replace by each of them, with counts."""


class Shortage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How many instances and nodes fit, and how many nodes lack which resource for one instance.

    Each node is counted once, under the first resource that it lacks. `too_small` counts nodes that have fewer GPUs
    in total than an instance needs, `not_allowed` those that are not among the job's `allowed_nodes`. `fit_anywhere`:
    the instances that would fit if the job requested no domains, if these are more.
    """

    instances: int = 1
    instances_fit: int = 0
    nodes: int = 0
    nodes_fit: int = 0
    down: int = 0
    wrong_type: int = 0
    too_small: int = 0
    too_few_gpus: int = 0
    too_few_cpus: int = 0
    too_little_memory: int = 0
    at_power_limit: int = 0
    not_allowed: int = 0
    fit_anywhere: int = 0

    def text(self, demand: Demand | None = None) -> str:
        """Format: '0 of 12 nodes fit: 7 have fewer than 8 free GPUs, 4 have a different GPU type, 1 is down or
        drained'.

        Without the `demand`, the text does not mention how many GPUs are needed.
        """
        lacks = (
            (self.too_few_gpus, "has", "have", _free_gpus_text(demand)),
            (self.wrong_type, "has", "have", "a different GPU type"),
            (self.not_allowed, "does", "do", NOT_ALLOWED),
            (self.too_small, "has", "have", _total_gpus_text(demand)),
            (self.too_few_cpus, "has", "have", "too few free CPUs"),
            (self.too_little_memory, "has", "have", "too little free memory"),
            (self.at_power_limit, "is", "are", "at the power limit of the rack"),
            (self.down, "is", "are", "down or drained"),
        )
        reasons = [
            f"{count} {singular if count == 1 else plural} {lack}" for count, singular, plural, lack in lacks if count
        ]
        fit = f"{self.nodes_fit} of {self.nodes} nodes fit"
        if self.instances > 1 and self.instances_fit:
            fit = f"{self.instances_fit} of {self.instances} instances fit on {self.nodes_fit} of {self.nodes} nodes"
        if self.fit_anywhere:
            where = f" {demand.topology}" if demand is not None and demand.topology is not None else " as requested"
            fit = f"{self.instances_fit} of {self.instances} instances fit{where}, {self.fit_anywhere} in any domains"
        return fit + (f": {', '.join(reasons)}" if reasons else "")


def _free_gpus_text(demand: Demand | None) -> str:
    if demand is None:
        return "too few free GPUs"
    if demand.gpu_milli < WHOLE:
        free = f"with {demand.gpu_milli / WHOLE:g} free"
        return f"no GPU {free}" if demand.gpus == 1 else f"fewer than {demand.gpus} GPUs {free}"
    return "no free GPU" if demand.gpus == 1 else f"fewer than {demand.gpus} free GPUs"


def _total_gpus_text(demand: Demand | None) -> str:
    if demand is None:
        return "too few GPUs in total"
    return "no GPU" if demand.gpus == 1 else f"fewer than {demand.gpus} GPUs in total"


class DomainWait(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a job waits for: fewer domains of a level, expected to be free in some seconds; now it fits into more.

    `slowdown`: its step time across those, divided by that in the fewer.
    """

    seconds: Seconds
    level: str
    domains: int
    domains_now: int
    slowdown: float

    def __str__(self) -> str:
        """Format as 'about 6 min for 1 rack: 31 % faster than across 2'."""
        faster = f"{self.slowdown - 1:.0%}".replace("%", " %")
        few = format_count(self.domains, self.level)
        than = f"than across {self.domains_now}" if self.domains_now > self.domains else "than divided unevenly"
        return f"about {format_duration(self.seconds)} for {few}: {faster} faster {than}"


class Wait(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """The reason why a job waits; `ahead` is the number of jobs ahead of it, `shortage` counts nodes.

    `domains`: what it waits for if it would be slower now.

    If it waits by fair share, `ahead` is the number of jobs that have started first.
    """

    job: str
    reason: Reason
    ahead: int = 0
    shortage: Shortage | None = None
    domains: DomainWait | None = None

    def text(self, demand: Demand | None = None) -> str:
        """Format the counts: '0 of 12 nodes fit: 12 have fewer than 8 free GPUs', '3 jobs ahead'; '' without any."""
        if self.shortage is not None:
            return self.shortage.text(demand)
        if self.domains is not None:
            return str(self.domains)
        jobs = format_count(self.ahead, "job")
        if self.reason is Reason.FAIR_SHARE:
            return f"{jobs} started first, of users that have used less of their share"
        return f"{jobs} ahead" if self.ahead else ""


# The answer of a policy: what to change now.


class Start(msgspec.Struct, gc=False, frozen=True):
    """Start a waiting job on an allocation that is free now."""

    job: str
    allocation: Allocation


class Stop(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Preempt a running job: it stops and is queued again. `why` is shown to users."""

    job: str
    why: str = ""


class Reshape(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Stop a running job and restart it at once on another allocation, of resources that are free or its own.

    `profiling`: for how many seconds of the next run its purpose is to measure its speed; 0: it has no such purpose.
    """

    job: str
    allocation: Allocation
    why: str = ""
    profiling: Seconds = 0.0


FlagRule = Literal["no progress", "time limit", "unusual run time"]
"""What a flag is about: a run makes no progress, is beyond its time limit, or far beyond its predicted run time."""


class End(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Terminate a running job: it stops and is not queued again. `why` is shown to its owner.

    `rule`: the watch rule that the run violates, if there is one.
    """

    job: str
    why: str
    rule: FlagRule | None = None


class Flag(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Warn about a running job: `why` says what is wrong, and what will happen if it persists.

    `rule`: the watch rule that the run violates.
    """

    job: str
    why: str
    rule: FlagRule = "no progress"


class StartEstimate(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """When a waiting job is expected to start: at `at`, and with high probability from `soonest` to `latest`.

    `latest` is an upper bound that 95 of 100 jobs meet.
    """

    job: str
    at: Seconds
    soonest: Seconds | None = None
    latest: Seconds | None = None


class Decision(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """What to change now, why jobs wait, when they are expected to start, and when to call the policy again."""

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    reshapes: tuple[Reshape, ...] = ()
    waits: tuple[Wait, ...] = ()
    start_estimates: tuple[StartEstimate, ...] = ()
    wake_at: Seconds | None = None
    flags: tuple[Flag, ...] = ()
    ends: tuple[End, ...] = ()


NO_CHANGE = Decision()
"""The empty decision."""
