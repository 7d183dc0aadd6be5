"""Queries about jobs: active jobs are answered from memory, ended jobs from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from refold.client.api import ENDED_STATES, Caller, JobExplanation, Jobs, JobsQuery, JobStatus, Logs, LogsQuery
from refold.core import Header
from refold.errors import BadInput, Conflict, Forbidden, NotFound
from refold.model import WHOLE, format_count
from refold.planning.plans import Knowledge, Speeds
from refold.server.backend import RefreshLog, is_up_to_date
from refold.server.live_state import LiveState
from refold.server.output import LogChunk, log_path, read_log_at
from refold.server.start_forecasts import StartForecasts
from refold.server.status import JobStates, wire_estimate
from refold.server.store import StoreReader, without_launch
from refold.server.wait_texts import RunNote, no_note
from refold.server.writer import Writer


class JobQueries:
    """Finds jobs and reports what the caller may know about them."""

    def __init__(
        self,
        state: LiveState,
        writer: Writer,
        reader: StoreReader,
        logs: Path,
        forecasts: StartForecasts,
        refresh_log: RefreshLog = is_up_to_date,
        run_note: RunNote = no_note,
    ) -> None:
        self._state = state
        self._writer = writer
        self._reader = reader
        self._logs = logs
        self._forecasts = forecasts
        self._refresh_log = refresh_log
        self._run_note = run_note
        self._speeds = PredictedSpeeds(state)

    @property
    def _active(self) -> JobStates:
        return JobStates(self._state, self._forecasts, self._run_note)

    def find(self, name: str) -> str:
        """Return the id of the job with this id, number or name."""
        found = self.find_or_none(name)
        if found is None:
            raise NotFound.near("job", name, self._reader.latest_ids(50), listed_by="refold queue")
        return found

    def find_or_none(self, name: str) -> str | None:
        """Return the id of the job with this id, number or name; None if there is none."""
        is_active = name in self._state.job_table.records
        if self._state.uncommitted.get(name) if name in self._state.uncommitted else is_active:
            return name
        if tasks := self._reader.array_jobs(name):
            raise Conflict(f"{name!r} is an array of {len(tasks)} jobs; name one of them, such as {tasks[0]!r}")
        job_ids = self._reader.find_job_ids(name)
        if len(job_ids) > 1:
            raise Conflict(f"several jobs are named {name!r}, most recently {job_ids[0]!r}; use a job id")
        return job_ids[0] if job_ids else None

    def statuses(self, caller: Caller, job_ids: Sequence[str]) -> list[JobStatus]:
        positions = self._active.positions()
        return [self.status(caller, job_id, positions) for job_id in job_ids]

    def status(self, caller: Caller, job_id: str, positions: Mapping[str, int] | None = None) -> JobStatus:
        """Return one job. `positions`: those of queued jobs, if they are known already."""
        active = self._active.state(job_id, positions)
        status = self._active.status(*active) if active else self._state.uncommitted_ends.get(job_id)
        status = status or self._reader.ended_job(job_id)
        if status is None:
            raise NotFound(f"unknown job {job_id!r}")
        return _redact(caller, status)

    def active_page(self, caller: Caller, query: JobsQuery) -> Jobs:
        """Return a page of active jobs in queue order."""
        return _redact_all(caller, self._active.page(query))

    async def ended_page(self, caller: Caller, query: JobsQuery) -> Jobs:
        """Return a page of ended jobs, latest first."""
        if query.match:
            raise BadInput("match selects active jobs, not ended ones")
        if self._state.uncommitted_ends:
            await self._writer.write(lambda: None)  # waits until the current commit is on disk
        return _redact_all(caller, await asyncio.to_thread(self._reader.ended_jobs, query))

    def explain(self, caller: Caller, job: str) -> JobExplanation:
        """Return the status and the event history of a job."""
        status = self.status(caller, self.find(job))
        events = self._reader.job_events(status.id)
        if not caller.can_read(status.tenant, status.user):
            events = [msgspec.structs.replace(event, text="", user="") for event in events]
        first, state = self._forecasts.first_estimate(status.id), self._state
        held = state.view.gpu_seconds(status.id) if status.id in state.job_table.records else None
        estimate = None if first is None else wire_estimate(first, state.wall_time)
        return JobExplanation(status, events, estimate, held, self._speeds.samples_per_second(status.id))

    def readable(self, caller: Caller, job: str) -> JobStatus:
        """Return a job of a tenant whose output and environment the caller may read; raises Forbidden for others."""
        status = self.status(caller, self.find(job))
        if not caller.can_read(status.tenant, status.user):
            raise Forbidden(refusal(caller, status, "read"))
        return status

    async def read_logs(self, caller: Caller, job: str, query: LogsQuery) -> Logs:
        """Return a part of a run's output."""
        run, instance, offset = query.run, query.instance, query.offset
        status = self.readable(caller, job)
        number = status.runs if run is None else run
        if run is not None and run > status.runs:
            raise NotFound(f"job {status.id!r} has no run {run}; it has had {format_count(status.runs, 'run')}")
        path = log_path(self._logs, status.id, number, instance)
        # Checked before reading: if the run has ended now, the output read below is complete.
        record = self._state.job_table.records.get(status.id)
        ended = number > 0 and (record is None or record.run != number)
        if number:
            await self._refresh_log(status.id, number, instance)
        read = await asyncio.to_thread(read_log_at, path, offset, query.limit)
        if number and read is None and instance:
            raise NotFound(f"run {number} of {status.id!r} has no instance {instance}")
        chunk, at_end = read or (LogChunk(b"", max(0, offset), max(0, offset)), True)
        return Logs(chunk.text, number, instance, chunk.next, ended and at_end)


def refusal(caller: Caller, status: JobStatus, action: str) -> str:
    """Say why the caller may not do something to a job."""
    if caller.tenant == status.tenant:
        return f"job {status.id!r} belongs to another user; {caller.user!r} may not {action} it"
    return f"job {status.id!r} belongs to tenant {status.tenant!r}; tenant {caller.tenant!r} may not {action} it"


MAX_LISTED_COMMAND_CHARS = 1000
"""Characters of a command, which may be a script, in lists of jobs."""


def _redact_all(caller: Caller, page: Jobs) -> Jobs:
    return msgspec.structs.replace(page, jobs=[_cut_command(_redact(caller, job)) for job in page.jobs])


def _cut_command(status: JobStatus) -> JobStatus:
    """Cut the arguments of a long command, and leave out those beyond the limit."""
    left, cut = MAX_LISTED_COMMAND_CHARS, list[str]()
    if sum(map(len, status.command)) <= left:
        return status
    for argument in status.command:
        cut.append(argument if len(argument) <= left else f"{argument[:left]}…")
        left -= len(argument)
        if left <= 0:
            break
    return msgspec.structs.replace(status, command=cut)


def _redact(caller: Caller, status: JobStatus) -> JobStatus:
    """Remove what only those who may read the job may see: user, command, failure message, warning and progress.

    That a job exists and why it waits is visible to all tenants.
    """
    if caller.can_read(status.tenant, status.user):
        return status
    message = "" if status.state in ENDED_STATES else status.message
    hidden = msgspec.structs.replace(without_launch(status), user="", message=message, warning="")
    return msgspec.structs.replace(hidden, steps_done=0, steps=None, loss=None, samples_per_second=None)


# The speed of running jobs by the performance model, to compare with what they report.


class PredictedSpeeds:
    """Predicts the throughput of runs as a policy that chooses plans does."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._made_for: Header | None = None
        self._speeds = Speeds(state.header.cluster)

    def samples_per_second(self, job_id: str) -> float | None:
        """Return the modelled throughput of a running job; None if its model or GPU type is not known."""
        view = self._state.view
        run = view.runs.get(job_id)
        if run is None:
            return None
        job, allocation, speeds = view.active[job_id], run.allocation, self._current()
        if not job.workload or not allocation.gpus_on_node or not speeds.types_for(job):
            return None
        gpu_type = view.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or speeds.own_plan(job)
        if plan.gpus != sum(allocation.gpus_on_node):
            return None
        speed = speeds.with_plan(job, gpu_type, allocation.gpus_on_node, allocation.cpu_milli / WHOLE, plan)
        return speed.steps_per_second * speeds.batch(job)

    def _current(self) -> Speeds:
        header = self._state.header
        if header is not self._made_for:
            knowledge = Knowledge.from_settings(header.settings.get("knowledge", {}))
            self._made_for, self._speeds = header, Speeds(header.cluster, knowledge)
        return self._speeds
