"""The records of a job and of its runs."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from refold.core import RunFailed, RunStopped
from refold.model import Allocation, Job, MiB, Reason, RunUsage, Seconds

RecordState = Literal["waiting", "running", "finished", "failed", "timed out", "cancelled"]
"""State of a job. Held and infeasible jobs are waiting; a job that is cancelled while it runs ends with its run."""


class Ending(IntEnum):
    OPEN = 0  # it has not ended
    FINISHED = 1
    STOPPED = 2
    FAILED = 3
    CANCELLED = 4  # stopped or failed after its job was cancelled


class RunRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """One run of a job. What did not happen is None. A step is the number of an entry, from 1; 0 if not counted.

    `start`: when its start was ordered; `adopted`: when the journal began, if the run was older; `started`: when it
    reported that it computes. `saved_before`: seconds of work from which the job could resume before the run.
    `end_report`: the report of its stop or failure.
    """

    number: int
    allocation: Allocation
    start: Seconds
    start_step: int = 0
    saved_before: Seconds = 0.0
    adopted: Seconds | None = None
    started: Seconds | None = None
    stop_ordered: Seconds | None = None
    end: Seconds | None = None
    end_step: int = 0
    ending: Ending = Ending.OPEN
    end_report: RunStopped | RunFailed | None = None

    @property
    def failure(self) -> RunFailed | None:
        """The report of its failure, if it failed."""
        return self.end_report if isinstance(self.end_report, RunFailed) else None

    @property
    def run_time(self) -> Seconds:
        """Seconds from start to end; 0 if the run has not ended."""
        return 0.0 if self.end is None else self.end - self.start


class JobRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """One job. Times are seconds since the start of the journal.

    `last`: the current or the last run; `runs`: its number. `first_placed`: when the first run on record was ordered;
    `first_started`: when a run first computed. `saved`: seconds of work from which the job can resume. `steps`: number
    of steps done, and `loss`: training loss, as last reported. `earlier_run_time`: seconds of all runs before `last`.
    `cpu_seconds`, `peak_memory_mib`: what its ended runs have used, as far as it was measured.
    `failures`: number of failed runs. `end_reason`: None unless the job was cancelled; then why, '' if by a user.
    `timed_out`: it was, because of its time limit.
    `why`: how the last run failed, if it was retried. `warning`: why the current run was flagged. `hold`: why the job
    is held, except by the limit of its tenant; while it runs, it is not held before its run has ended.
    """

    job: Job
    state: RecordState = "waiting"
    last: RunRecord | None = None
    runs: int = 0
    first_placed: Seconds | None = None
    first_started: Seconds | None = None
    ended: Seconds | None = None
    saved: Seconds = 0.0
    steps: int = 0
    loss: float | None = None
    earlier_run_time: Seconds = 0.0
    cpu_seconds: Seconds | None = None
    peak_memory_mib: MiB | None = None
    failures: int = 0
    end_reason: str | None = None
    timed_out: bool = False
    why: str = ""
    warning: str = ""
    hold: Reason | None = None

    @property
    def current(self) -> RunRecord | None:
        """The current run, if there is one."""
        return self.last if self.last is not None and self.last.end is None else None

    @property
    def run(self) -> int:
        """The number of the current run; 0 if there is none."""
        current = self.current
        return 0 if current is None else current.number

    @property
    def last_run_ended(self) -> Seconds | None:
        """When the last run ended; None if there is none, or if it has not ended."""
        return None if self.last is None else self.last.end

    @property
    def run_time(self) -> Seconds:
        """The total seconds of all ended runs."""
        return self.earlier_run_time + (0.0 if self.last is None else self.last.run_time)

    @property
    def message(self) -> str:
        """Why the job failed, or was ended; '' if it finished, or a user cancelled it."""
        if self.state == "failed" and (failure := self._last_failure) is not None:
            return failure.why
        return self.end_reason or "" if self.state in ("timed out", "cancelled") else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended job; None if it was cancelled or timed out, or failed without one."""
        if self.state == "failed" and (failure := self._last_failure) is not None:
            return failure.exit_code
        return 0 if self.state == "finished" else None

    @property
    def known_duration(self) -> Seconds | None:
        """The run time of a job that ran to its end; None if it was cut short, since it would have run longer."""
        return None if self.state in ("timed out", "cancelled") else self.run_time

    @property
    def _last_failure(self) -> RunFailed | None:
        return None if self.last is None else self.last.failure

    def note_usage(self, usage: RunUsage) -> None:
        if usage.cpu_seconds is not None:
            self.cpu_seconds = (self.cpu_seconds or 0.0) + usage.cpu_seconds
        if usage.peak_memory_mib is not None:
            self.peak_memory_mib = max(self.peak_memory_mib or 0, usage.peak_memory_mib)

    def lose_run(self, now: Seconds) -> None:
        """End the current run, because the scheduler does not know it any more; the job waits again."""
        if (run := self.current) is not None:
            run.end, run.ending = now, Ending.STOPPED
            self.state = "waiting"
