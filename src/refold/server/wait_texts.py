"""Why jobs wait, in words: counts of nodes, dependencies, limits, and until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property

from refold.core import View
from refold.journal import JobRecord
from refold.model import SINGLETON, WHOLE, Job, Reason, Seconds, Wait, format_count, parse_dependency
from refold.server.job_table import backoff_seconds

MAX_LISTED_DEPENDENCIES = 3

WallTime = Callable[[Seconds], float]
"""Converts journal seconds to Unix seconds."""

RunNote = Callable[[str], str]
"""Returns what the engine says about the run of a job that has not begun, or about its last one."""


def no_note(job: str) -> str:
    """Return ''."""
    del job
    return ""


class WaitTexts:
    """Describes why jobs wait, in the state of a view."""

    def __init__(
        self, view: View, job_table: Mapping[str, JobRecord], wall_time: WallTime, run_note: RunNote = no_note
    ) -> None:
        self._view, self._job_table = view, job_table
        self._wall_time, self._run_note = wall_time, run_note

    def of(self, job: Job, wait: Wait) -> str:
        return wait.text(job.demand) or self._condition(wait.reason, job)

    def _condition(self, reason: Reason, job: Job) -> str:
        """Describe the condition for which a job is held: 'until 2026-11-16 14:05:00', 'afterany:train-7'."""
        launch = job.launch
        match reason:
            case Reason.BEGIN_TIME if launch.begin is not None:
                return f"until {self._clock(launch.begin)}"
            case Reason.DEPENDENCY:
                unmet = [text for text in launch.after if text == SINGLETON or self._may_be_unmet(text)]
                listed = ", ".join(unmet[:MAX_LISTED_DEPENDENCIES])
                more = len(unmet) - MAX_LISTED_DEPENDENCIES
                return f"{listed} and {more:,} more" if more > 0 else listed
            case Reason.ARRAY_LIMIT if launch.array is not None:
                return f"at most {launch.array.limit:,} of its tasks at once"
            case Reason.BACKOFF:
                return self._run_note(job.id) or self._backoff(self._job_table[job.id])
            case Reason.RELEASING:
                return self._releasing
            case Reason.LIMIT:
                return self._limit(job, self._gpu_limits.get(job.tenant, 0.0))
            case _:
                return ""

    def _may_be_unmet(self, text: str) -> bool:
        dependency = parse_dependency(text)
        return bool(dependency.array) or dependency.job in self._job_table

    def _backoff(self, record: JobRecord) -> str:
        """Format 'until 2026-11-16 14:05:00, after 2 failures'."""
        until = self._clock((record.last_run_ended or 0.0) + backoff_seconds(record.failures))
        return f"until {until}, after {format_count(record.failures, 'failure')}"

    def _limit(self, job: Job, limit: float) -> str:
        requested = job.demand.total_gpus
        if requested > limit:
            return f"never starts: it requests {requested:g} GPUs, and tenant {job.tenant!r} may use {limit:g} at once"
        used = self._used_gpus[job.tenant] / WHOLE
        return f"until other jobs of tenant {job.tenant!r} end: it uses {used:g} GPUs, and may use {limit:g} at once"

    def _clock(self, moment: Seconds) -> str:
        return f"{datetime.fromtimestamp(round(self._wall_time(moment))):%Y-%m-%d %H:%M:%S}"

    @cached_property
    def _releasing(self) -> str:
        """What delays the end of runs that are stopping: 'train-3 waits for PodDisruptionBudget lab/keep'."""
        notes = ((run.job, self._run_note(run.job)) for run in self._view.runs.values() if run.stopping)
        return next((f"{job} {note}" for job, note in notes if note), "")

    @cached_property
    def _gpu_limits(self) -> Mapping[str, float]:
        return {tenant.name: tenant.limit_gpus for tenant in self._view.cluster.tenants}

    @cached_property
    def _used_gpus(self) -> Counter[str]:
        """Thousandths of GPUs that each tenant uses."""
        used: Counter[str] = Counter()
        for run in self._view.runs.values():
            used[self._view.active[run.job].tenant] += run.allocation.gpu_milli
        return used
