"""Ends of runs: read the rest of the output, decide whether a failed run is retried, and whether its node is faulty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush

import msgspec

from refold.core import (
    Event,
    JobHeld,
    JobReleased,
    MemoryRaised,
    NodeDrained,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStopped,
)
from refold.errors import Refused
from refold.journal import JobRecord
from refold.model import MiB, Reason, Seconds, format_memory
from refold.placement import FreeResources
from refold.server.auto_requests import raised_memory
from refold.server.backend import RefreshLog, is_up_to_date
from refold.server.inbox import Inbox
from refold.server.job_table import Notice, backoff_seconds
from refold.server.live_state import LiveState
from refold.server.monitor import OutputWatch
from refold.server.subscribers import LoopStep, Subscriber

# Back-off: hold a job that failed before its next run, twice as long after each failure. The release time is derived
# from the job record, so a restarted daemon can recompute it.


def no_delay(job: str) -> Seconds:
    """Return 0."""
    del job
    return 0.0


class Backoff(Subscriber):
    """Releases jobs whose back-off has expired. `retry_delay`: how long the engine wants a job to wait at least."""

    def __init__(self, state: LiveState, retry_delay: Callable[[str], Seconds] = no_delay) -> None:
        self._state = state
        self._retry_delay = retry_delay
        self._due: list[tuple[Seconds, str]] = []

    def started(self) -> None:
        """Schedule the jobs that were in back-off when the previous daemon ended."""
        for job_id in self._state.view.held:
            self._add(job_id)

    def next_step_at(self) -> Seconds | None:
        """Return when the next back-off expires."""
        return self._due[0][0] if self._due else None

    def before_step(self, now: Seconds) -> Sequence[Event]:
        """Return release events for jobs whose back-off has expired."""
        due: list[str] = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due)[1])
        return [JobReleased(job_id) for job_id in dict.fromkeys(due) if self._is_due(job_id, now)]

    def after_step(self, step: LoopStep) -> None:
        """Schedule the jobs that entered back-off in this step."""
        for event in step.entry.events:
            if isinstance(event, JobHeld) and event.reason is Reason.BACKOFF:
                self._add(event.job)

    def _add(self, job_id: str) -> None:
        if self._state.view.hold_reason(job_id) is Reason.BACKOFF:
            heappush(self._due, (self._release_time(job_id), job_id))

    def _is_due(self, job_id: str, now: Seconds) -> bool:
        """Whether the job is still in back-off and due: a user may hold it, or it may have failed again since."""
        return self._state.view.hold_reason(job_id) is Reason.BACKOFF and self._release_time(job_id) <= now

    def _release_time(self, job_id: str) -> Seconds:
        record = self._state.job_table.records[job_id]
        delay = max(backoff_seconds(record.failures), self._retry_delay(job_id))
        return (record.last_run_ended or 0.0) + delay


# Ends of runs: read the rest of the output, decide whether a failed run is retried, and whether its node is faulty.

log = logging.getLogger("refold")

RunEnd = RunFinished | RunStopped | RunFailed

LOST_RUN_RETRIES = 10
"""Retries of runs that were lost through no fault of the job, even if the job allows fewer."""


class Retries:
    """Receives the backend's reports and passes them to the loop.

    Before the end of a run, its last progress is reported; failures get a retry decision.
    """

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        output: OutputWatch,
        refresh_log: RefreshLog = is_up_to_date,
        retry_delay: Callable[[str], Seconds] = no_delay,
    ) -> None:
        """`retry_delay`: how long a job whose run was given back waits before the next; 0: not at all."""
        self._state = state
        self._inbox = inbox
        self._output = output
        self._refresh_log = refresh_log
        self._retry_delay = retry_delay
        self._event_loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, event: Event) -> None:
        """Pass on a report; at the end of a run, report its last progress and decide on a retry first. Thread-safe."""
        if isinstance(event, RunFinished | RunStopped | RunFailed):
            self._event_loop.call_soon_threadsafe(self._start_task, event)
        else:
            self._inbox.report(event)

    def _start_task(self, event: RunEnd) -> None:
        task = self._event_loop.create_task(self._report_end(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report_end(self, event: RunEnd) -> None:
        try:
            await self._report_last_progress(event)
        except Exception:
            log.exception("cannot read the last progress of run %d of %s", event.run, event.job)
        if isinstance(event, RunFailed):
            await self._report_failure(event)
        else:
            self._inbox.report(event)
            if isinstance(event, RunStopped) and self._retry_delay(event.job):
                self._inbox.report(JobHeld(event.job, Reason.BACKOFF))  # in the same step

    async def _report_last_progress(self, event: RunEnd) -> None:
        """Report the steps that the run has written since the last poll; its output is complete only now."""
        view = self._state.view
        run = view.runs.get(event.job)
        if run is None or run.number != event.run:
            return
        job = view.active[event.job]
        self._output.follow(job, event.run, len(run.allocation.placement))  # if it ended at once
        if job.launch.progress or isinstance(event, RunFailed):
            with suppress(Refused):
                await self._refresh_log(event.job, event.run, 0)
        progressed = await asyncio.to_thread(self._output.read_to_end, event.job, event.run)
        if progressed is not None and not _is_of_next_run(progressed, event):
            self._inbox.report(progressed)

    async def _report_failure(self, event: RunFailed) -> None:
        """Report a failure with its retry decision. If deciding fails, report the failure as it is."""
        try:
            decided = await self._decide_retry(event)
        except Exception:
            log.exception(
                "cannot decide whether to retry run %d of %s; using the backend's decision", event.run, event.job
            )
            decided = event
        self._inbox.report(decided)
        if decided.retry and self._is_current(event):
            # In the same step as the failure, so that the policy cannot start the job in between.
            self._inbox.report(JobHeld(event.job, Reason.BACKOFF))
            if (memory := self._raised_memory(event)) is not None:
                self._inbox.report(MemoryRaised(event.job, memory))
                job = self._state.job_table.records[event.job].job
                before = format_memory(job.demand.memory_mib)
                text = f"memory: auto is {format_memory(memory)} for the next run: {before} was not enough"
                self._inbox.add_notice(Notice("note", job, event.run, text))

    async def _decide_retry(self, event: RunFailed) -> RunFailed:
        if not self._is_current(event):
            return event
        record = self._state.job_table.records[event.job]
        no_retry, drain_pattern = await asyncio.to_thread(self._match_output, event)
        if drain_pattern:
            self._drain(record, drain_pattern)
        may_retry = (
            _may_retry(event, record)
            or self._state.view.is_profiling(event.job)
            or self._raised_memory(event) is not None
        )
        return msgspec.structs.replace(event, retry=not no_retry and may_retry)

    def _is_current(self, event: RunFailed) -> bool:
        record = self._state.job_table.records.get(event.job)
        return record is not None and record.run == event.run

    def _raised_memory(self, event: RunFailed) -> MiB | None:
        """Return how much memory the job gets next, if it ran out of it and left the amount to the scheduler."""
        record, cluster = self._state.job_table.records[event.job], self._state.header.cluster
        memory = raised_memory(record.job, cluster, event.usage, record.failures)
        if memory is None:
            return None
        demand = msgspec.structs.replace(record.job.demand, memory_mib=memory)
        return memory if FreeResources(cluster).fits_when_empty(demand) else None

    def _match_output(self, event: RunFailed) -> tuple[bool, str]:
        return self._output.matches_no_retry(event.job, event.run), self._output.drain_pattern(event.job, event.run)

    def _drain(self, record: JobRecord, pattern: str) -> None:
        run = self._state.view.runs.get(record.job.id)
        why = f"{record.job.id} failed on this node; its output matches {pattern!r}"
        for node in sorted(run.allocation.nodes) if run is not None else ():
            self._inbox.report(NodeDrained(node, why))
            self._inbox.add_notice(Notice("note", record.job, record.run, f"node drained: {why}"))


def _is_of_next_run(progressed: RunProgressed, end: RunEnd) -> bool:
    """Whether a report was written after the end of a run, by its processes, which have become the next run."""
    last = end.steps if isinstance(end, RunStopped) else None
    return last is not None and progressed.steps is not None and progressed.steps > last


def _may_retry(event: RunFailed, record: JobRecord) -> bool:
    """Whether the job may be retried. The backend sets `retry` for lost runs, which are not the job's fault."""
    allowed = max(record.job.launch.retries, LOST_RUN_RETRIES if event.retry else 0)
    return record.failures < allowed
