"""The owner's limits on the jobs of tenants: checked at submission, and applied to runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from refold.errors import BadInput, TooManyRequests
from refold.journal import JobRecord
from refold.model import Job, format_duration
from refold.server.backend import RunLimits
from refold.server.config import LimitsConfig
from refold.server.subscribers import LoopStep, Subscriber


class JobLimits(Subscriber):
    """The limits, and the number of jobs of each tenant that have not ended. `records`: those at the start.

    `user_problem`: why jobs of a user cannot run here, or ''.
    """

    def __init__(
        self,
        config: LimitsConfig,
        records: Iterable[JobRecord] = (),
        user_problem: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._config = config
        self._user_problem = user_problem
        self._jobs = Counter(record.job.tenant for record in records)

    def apply(self, job: Job) -> Job:
        """Check a new job against the limits of its tenant. One without a time limit gets the maximum."""
        if problem := self._user_problem(job.user):
            raise BadInput(problem)
        limits = self._config.of(job.tenant)
        grace, priority, time = job.launch.grace, job.priority, job.time_limit
        if grace is not None and limits.grace is not None and grace > limits.grace:
            raise _exceeded("grace", format_duration(grace), job.tenant, format_duration(limits.grace))
        if limits.priority is not None and priority > limits.priority:
            raise _exceeded("priority", str(priority), job.tenant, str(limits.priority))
        if limits.time is None:
            return job
        if time is not None and time > limits.time:
            raise _exceeded("time_limit", format_duration(time), job.tenant, format_duration(limits.time))
        return job if time is not None else replace(job, time_limit=limits.time)

    def check_array(self, tenant: str, tasks: int) -> None:
        limit = self._config.of(tenant).array
        if limit is not None and tasks > limit:
            raise _exceeded("array", f"{tasks:,} tasks", tenant, f"{limit:,}")

    def reserve(self, jobs: Iterable[Job]) -> Counter[str]:
        """Count new jobs, if no tenant gets more than its limit; return the count, for `cancel`."""
        new = Counter(job.tenant for job in jobs)
        for tenant, count in new.items():
            limit = self._config.of(tenant).jobs
            if limit is not None and self._jobs[tenant] + count > limit:
                raise TooManyRequests(
                    f"tenant {tenant!r} has {self._jobs[tenant]:,} jobs that have not ended, and may have {limit:,};"
                    f" {count:,} more are too many: submit again when some have ended"
                )
        self._jobs += new
        return new

    def cancel(self, reserved: Counter[str]) -> None:
        """Take back jobs that could not be stored."""
        self._jobs -= reserved

    def after_step(self, step: LoopStep) -> None:
        self._jobs -= Counter(record.job.tenant for record in step.ended)

    def of_run(self, job: Job) -> RunLimits:
        """Return the limits of a job's runs. They also hold for jobs that were submitted before there were limits."""
        limits = self._config.of(job.tenant)
        return RunLimits(limits.grace, limits.output)


def _exceeded(field: str, value: str, tenant: str, limit: str) -> BadInput:
    return BadInput(f"{field} is {value}, but tenant {tenant!r} may use at most {limit}")
