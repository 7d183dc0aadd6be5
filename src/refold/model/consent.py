"""Consent to preemption: which submitted jobs may be stopped or reshaped for other jobs.

Jobs of a trace are preemptible unless the trace says otherwise. A submitted job is preemptible only if it consents,
unless the owner of the cluster has decided otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from refold.model.job import ChangeLimit, Job, JobClass
from refold.model.units import Seconds, format_count, format_duration, plural

Preemption = Literal["never", "consent", "always"]
"""The owner's rule: no job is preemptible, those that consent are, or all that do not refuse."""


class PreemptionRules(NamedTuple):
    """The owner's rules; that of a class overrides that of a tenant."""

    default: Preemption = "consent"
    tenants: Mapping[str, Preemption] = {}
    classes: Mapping[JobClass, Preemption] = {}

    def of(self, tenant: str, job_class: JobClass) -> Preemption:
        """Return the rule for a job."""
        return self.classes.get(job_class) or self.tenants.get(tenant) or self.default


class Consent(NamedTuple):
    """Whether a job may be stopped or reshaped for other jobs, and why."""

    is_given: bool
    why: str

    def __str__(self) -> str:
        return f"{'yes' if self.is_given else 'no'}, {self.why}"


def saves_checkpoints(command: Sequence[str], environment: Collection[str]) -> bool:
    """Return whether a job says that it saves checkpoints: by their folder, or by running under `refold.train`."""
    return "REFOLD_CHECKPOINT" in environment or _REFOLD_TRAIN.search(" ".join(command)) is not None


_REFOLD_TRAIN = re.compile(r"-m refold\.train(\s+(?!change\b)|$)")


def find_consent(
    requested: bool | None,
    job_class: JobClass,
    reshapable: bool,
    preemption: Preemption = "consent",
    *,
    saves: bool = False,
) -> Consent:
    """Return whether a submitted job consents to preemption; `requested` is what it says itself, None if nothing.

    `saves`: it saves checkpoints, so that little is lost when it is stopped.
    """
    if preemption == "never":
        return Consent(False, "the daemon's configuration has preemption: never")
    if requested is not None:
        return Consent(requested, "as requested")
    if job_class == "best-effort":
        return Consent(True, "it is best-effort")
    if reshapable:
        return Consent(True, "it is reshapable")
    if saves:
        return Consent(True, "it saves checkpoints")
    if preemption == "always":
        return Consent(True, "the daemon's configuration has preemption: always")
    return Consent(False, "not requested")


def jobs_under(preemption: Preemption, jobs: Sequence[Job], *, has_consent: bool = False) -> list[Job]:
    """Return jobs of which all are preemptible, those that consent, or none.

    `has_consent`: they were submitted to a daemon, which has decided about each. Jobs of a trace are preemptible unless
    the trace says otherwise; they consent if they are best-effort or reshapable too.
    """

    def may_be(job: Job) -> bool:
        if preemption != "consent":
            return preemption == "always"
        if has_consent:
            return job.preemptible
        return find_consent(None if job.preemptible else False, job.job_class, job.reshapable).is_given

    return [
        job if job.preemptible == may_be(job) else msgspec.structs.replace(job, preemptible=may_be(job)) for job in jobs
    ]


def consent_of(job: Job) -> Consent:
    """Return the consent of an admitted job, as far as the job itself shows why."""
    saves = saves_checkpoints(job.command, [name for name, _ in job.launch.environment])
    implied = find_consent(None, job.job_class, job.reshapable, saves=saves)
    why = implied.why if implied.is_given == job.preemptible else "as requested or configured"
    return Consent(job.preemptible, ", ".join([why, *_limits(job)]) if job.preemptible else why)


def _limits(job: Job) -> list[str]:
    limit = job.change_limit or ChangeLimit()
    return [
        *([f"at most {limit.at_most} {plural(limit.at_most, 'time')}"] if limit.at_most is not None else []),
        *([f"{format_duration(limit.every)} apart"] if limit.every else []),
    ]


# Costs and benefits of preemption: how long jobs would have waited if all, some or none of them could be preempted.


class PreemptionOutcome(msgspec.Struct, frozen=True):
    """How long jobs would have waited under a rule. `preemptible`: the number of jobs that could be preempted.

    `overhead_gpu_hours`: held by runs while they were stopping or restarting, or lost.
    """

    rule: Preemption
    preemptible: int
    mean_wait: Seconds | None
    longest_wait: Seconds | None
    preemptions: int
    overhead_gpu_hours: float

    @property
    def waits(self) -> str:
        """The mean and the longest wait."""
        mean, longest = (
            "unknown" if wait is None else format_duration(wait) for wait in (self.mean_wait, self.longest_wait)
        )
        return f"{mean} and {longest}"


class PreemptionOutlook(msgspec.Struct, frozen=True):
    """The same jobs of a history, simulated with one policy under each rule: `always` (all jobs), `consent`, `never`.

    Preempted jobs continue where they were stopped: what jobs without checkpoints would lose is not counted.
    """

    history: str
    policy: str
    jobs: int
    always: PreemptionOutcome
    consent: PreemptionOutcome
    never: PreemptionOutcome

    @property
    def rows(self) -> list[tuple[str, PreemptionOutcome]]:
        """Which jobs may be preempted in words, and the outcome."""
        return [
            (f"all {format_count(self.jobs, 'job')}", self.always),
            (f"those that consent ({self.consent.preemptible:,})", self.consent),
            ("none", self.never),
        ]

    @property
    def sentence(self) -> str:
        """The mean and longest waits in words."""
        some = f"those that consent ({self.consent.preemptible:,} of {self.jobs:,})"
        others = (
            f"if {some}, {self.consent.waits}; if none, {self.never.waits}"
            if self.consent.preemptible
            else f"if none, {self.never.waits} (none of these jobs consents)"
        )
        return f"If all jobs could be preempted, mean and longest wait would be {self.always.waits}; {others}."
