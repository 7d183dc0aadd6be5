"""How a journal begins in the middle of things: the present as facts, from which a new scheduler gets to know it.

This is what is written when a journal is begun anew after a restart, and what a snapshot of a live cluster consists of.
A policy that begins like this knows who waits in which order, who runs where and for how long; of its own thoughts,
such as what it has promised, it knows nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.events import (
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobSubmitted,
    NodeLost,
    PastJob,
    RunAdopted,
    RunRecalled,
)
from refold.core.state import State
from refold.model import Job, Reason


def snapshot(state: State, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
    """The facts after which another scheduler on the same cluster stands where this one does."""
    return (*past, *_jobs(state), *_runs(state), *_downs(state), *_holds(state))


def _downs(state: State) -> Iterable[Event]:
    """After the runs: some may go on where nothing new is started."""
    return [NodeLost(node) for node in range(len(state.cluster.nodes)) if not state.free.is_up(node)]


def _jobs(state: State) -> Iterable[Event]:
    """Those that run go first, or a limit might count others instead; those beyond one go before all that are held."""
    beyond = {job.id: job for job in state.limits.outside()}
    others = [job for job in state.held.values() if job.id not in beyond]
    everybody = (*state.active.values(), *state.waiting.values(), *beyond.values(), *others, *state.infeasible.values())
    for job in everybody:
        yield JobSubmitted(job)
        yield from _behind(state, job)


def _behind(state: State, job: Job) -> Iterable[Event]:
    progress = state.progress[job.id]
    if progress.runs:
        done = progress.done
        if progress.computing_since is not None:
            done += state.now - progress.computing_since
        yield JobContinued(job.id, progress.runs, done, progress.steps, progress.gpu_seconds)


def _runs(state: State) -> Iterable[Event]:
    for run in state.runs.values():
        yield RunAdopted(run.job, run.number, run.allocation, run.since)
        if state.is_unwanted(run.job):
            yield JobCancelled(run.job)
        elif run.stopping:
            yield RunRecalled(run.job, run.number, "it was stopping already")


def _holds(state: State) -> Iterable[Event]:
    """Those beyond their tenants' limits are so again by themselves."""
    for job_id, reason in state.held_for.items():
        if reason is not Reason.LIMIT:
            yield JobHeld(job_id, reason)
    for job_id in state.to_be_held:
        yield JobHeld(job_id)
