"""Snapshots: the current state as events, from which a new scheduler can start.

The daemon writes a snapshot when it begins a new journal epoch after a restart; `refold snapshot` exports one of a live
cluster. A policy that starts from a snapshot sees the queue in its order, and the runs with their allocations and start
times. Its internal state, such as reservations, is not part of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.events import (
    Event,
    GpuDrained,
    GpuLost,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    PastJob,
    RunAdopted,
    RunRecalled,
    UsageRecorded,
)
from refold.core.state import State
from refold.model import Job, Reason


def snapshot(state: State, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
    """Return events that bring a new scheduler on the same cluster to this state."""
    measured = state.running.measurements
    before = (*past, *measured.speed_events(), *measured.time_events(), *_usage_events(state))
    return (*before, *_job_events(state), *_run_events(state), *_node_events(state), *_hold_events(state))


def _usage_events(state: State) -> Iterable[Event]:
    for account, amounts in state.running.usage.merged(state.now):
        yield UsageRecorded(account.tenant, account.user, tuple(amounts))


def _node_events(state: State) -> Iterable[Event]:
    """Return events about what others use, and the nodes and GPUs that are down. They follow the runs, which may
    still be there."""
    events: list[Event] = []
    for (node, gpu), why in state.availability.down_reasons.items():
        is_drained = (node, gpu) in state.availability.drained
        if gpu is None:
            events.append((NodeDrained if is_drained else NodeLost)(node, why))
        else:
            events.append((GpuDrained if is_drained else GpuLost)(node, gpu, why))
    return [*state.availability.used.values(), *events]


def _job_events(state: State) -> Iterable[Event]:
    """Return the submissions and the progress of all jobs.

    Running jobs come first, so that the limits of their tenants admit them and not others; jobs that wait for
    admission come before other held jobs.
    """
    over_limit = {job.id: state.queue.held[job.id] for job in state.queue.limits.queued()}
    others = [job for job in state.queue.held.values() if job.id not in over_limit]
    jobs = (
        *state.running.jobs.values(),
        *state.queue.waiting.values(),
        *over_limit.values(),
        *others,
        *state.queue.infeasible.values(),
    )
    for job in jobs:
        yield JobSubmitted(job)
        yield from _progress_events(state, job)


def _progress_events(state: State, job: Job) -> Iterable[Event]:
    progress = state.running.progress[job.id]
    if progress.runs:
        done = progress.done
        if progress.computing_since is not None:
            done += state.now - progress.computing_since
        yield JobContinued(
            job.id,
            progress.runs,
            done,
            progress.steps,
            progress.gpu_seconds,
            dict(progress.change_costs),
            progress.changes,
            progress.changed_at if progress.changes else 0.0,
        )


def _run_events(state: State) -> Iterable[Event]:
    for run in state.running.runs.values():
        yield RunAdopted(run.job, run.number, run.allocation, run.since, run.profiling)
        if run.job in state.running.cancelled:
            yield JobCancelled(run.job)
        elif run.stopping:
            yield RunRecalled(run.job, run.number, "its stop was ordered before the snapshot")


def _hold_events(state: State) -> Iterable[Event]:
    """Return an event for each held job, except those over their tenants' limits: they are not admitted again."""
    for job_id, reason in state.queue.hold_reasons.items():
        if reason is not Reason.LIMIT:
            yield JobHeld(job_id, reason)
    for job_id in state.queue.hold_pending:
        yield JobHeld(job_id)
