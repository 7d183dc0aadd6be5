"""What is to be done about a run: facts in, steps out. Nothing here calls Slurm, or reads a clock or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.slurm.run_jobs import RunJob, RunKey, SlurmId
from refold.engines.slurm.scripts import CLAIM_FAILED, STEP_FAILED, STOPPED
from refold.model import Seconds

SETTLE_SECONDS: Seconds = 20.0
"""How long a run without a job must have left no exit status before it counts as lost.

A controller that was killed forgets jobs that it has accepted since it last saved its state. When it is back, it kills
their processes on each node that registers; and if one of them ends, it may take that for the end of a new job with the
same id. So Slurm's word that a job has completed is not enough: the exit status that the batch script writes counts.
"""

WITHOUT_STATUS = frozenset({"", "COMPLETED", "FAILED"})
"""States of jobs ('': unknown to Slurm) that say nothing about a run if there is no exit status."""

START_TIMEOUT: Seconds = 120.0
"""How long a job may wait in Slurm's queue before its run is given up, so that the policy can place it elsewhere."""

REFUSED_SECONDS: Seconds = 10.0
"""How long a job may wait for a reason that time alone does not mend: its nodes cannot be used, or a limit is reached.

Slurm states such a reason also for a moment, as after a controller has started.
"""

REPEAT_SECONDS: Seconds = 15.0
"""After how long Slurm is asked again to end a job that has not ended."""

GHOST_SECONDS: Seconds = 30.0
"""How long, besides the grace period, a step may be in the queue after its run has ended, or Slurm was asked to end it.

A controller that was killed and comes back with an old state may have steps that ended meanwhile. It keeps them, and
what they had, until their allocation ends.
"""

Ending = RunFinished | RunFailed | RunStopped

NO_FAULT_OF_THE_JOB = {
    "NODE_FAIL": "a node failed (Slurm: NODE_FAIL)",
    "BOOT_FAIL": "a node failed to boot (Slurm: BOOT_FAIL)",
    "PREEMPTED": "preempted by Slurm for another job",
}
FAULTS = {
    "TIMEOUT": "exceeded the time limit in Slurm",
    "DEADLINE": "exceeded its deadline in Slurm",
    "OUT_OF_MEMORY": "out of memory",
}
CANCELLED = "cancelled in Slurm"
OLD_STATE = "a controller of Slurm with an old state has ended it"
NOT_WRITABLE = "its folder cannot be written on the node: is the state folder on a shared file system?"


class Facts(NamedTuple):
    """What is known of a run: its jobs in Slurm, which of them has claimed it, and its recorded exit status.

    `was_claimed`: whether it was claimed before the jobs were read. `claim` and `status` were read afterwards.
    """

    jobs: Sequence[RunJob]
    claim: SlurmId | None
    status: int | None
    now: Seconds
    was_claimed: bool = False


def waiting_reason(facts: Facts) -> str | None:
    """Return why a run that was submitted has not begun, as Slurm says it; None if it has begun, or is not there."""
    waiting = [job for job in facts.jobs if job.is_waiting]
    return waiting[0].reason if waiting and facts.claim is None else None


class Submit(NamedTuple):
    """Submit a job for the run."""


class SignalRun(NamedTuple):
    """Ask the agent of a job to end the run, with the grace period or without."""

    job: SlurmId
    kill: bool


class Cancel(NamedTuple):
    """Cancel a job."""

    job: SlurmId


class GiveUp(NamedTuple):
    """Record that the run ends in this way, then cancel its job."""

    end: RunFailed
    job: SlurmId


class Postpone(NamedTuple):
    """Hold the job of the run for a while: a limit of Slurm keeps it from starting, on whatever nodes."""

    why: str


class Abandon(NamedTuple):
    """Use the allocation of a step no more: Slurm keeps a step there that has ended."""

    step: SlurmId


class ReportStarted(NamedTuple):
    """Report that the run has started."""


class Ended(NamedTuple):
    """Report the end of the run. `cancelled`: why its job is cancelled as well, or ''."""

    end: Ending
    cancelled: str = ""


Step = Submit | SignalRun | Cancel | GiveUp | Postpone | Abandon | ReportStarted | Ended


@dataclass(slots=True)
class RunState:
    """A run, as far as it is not in files or in Slurm. `grace`: its grace period."""

    key: RunKey
    grace: Seconds
    stop: bool = False
    kill: bool = False
    given_up: RunFailed | None = None
    started: bool = False
    _waiting_since: Seconds | None = None
    _is_postponed: bool = False
    _missing_since: Seconds | None = None
    _ask_again_at: Seconds = 0.0
    _was_killed: bool = False
    _was_cancelled: bool = False
    _over_since: Seconds | None = None

    def next_steps(self, facts: Facts) -> list[Step]:
        """Return what is to be done now."""
        active = [job for job in facts.jobs if not job.has_ended]
        if not active:
            return self._without_job(facts)
        self._missing_since = None
        if self._are_ghosts(active, facts):
            return [*(Abandon(job.id) for job in active), *self._ghost_end(facts)]
        chosen, others = _choose(active, facts)
        steps: list[Step] = [Cancel(job.id) for job in others if job.state != "COMPLETING"]
        if chosen is None:
            self._was_cancelled |= bool(steps)
            return steps
        if not chosen.is_waiting:
            self._waiting_since = None
            return steps + self._running(facts, chosen)
        return steps + self._waiting(facts, chosen)

    def _waiting(self, facts: Facts, job: RunJob) -> list[Step]:
        if self.stop or self.given_up is not None:
            return [Cancel(job.id)]
        if self._waiting_since is None:
            self._waiting_since = facts.now
        waited = facts.now - self._waiting_since
        if job.is_limited and waited >= REFUSED_SECONDS and not self._is_postponed:
            self._is_postponed = True
            return [Postpone(job.reason)]
        allowed = REFUSED_SECONDS if job.is_refused else START_TIMEOUT
        if waited < allowed or self._is_postponed:
            return []
        why = f"Slurm did not start it within {allowed:g} s: {job.reason or 'no reason given'}"
        self.given_up = RunFailed(*self.key, why, retry=True)
        return [GiveUp(self.given_up, job.id)]

    def _running(self, facts: Facts, job: RunJob) -> list[Step]:
        if self.stop or self.given_up is not None:
            return self._end_job(facts, job)
        return self._start() if facts.claim == job.id else []

    def _end_job(self, facts: Facts, job: RunJob) -> list[Step]:
        """Signal the agent; if it does not end the job within the grace period, let Slurm do it."""
        if self.kill and not self._was_killed:
            self._was_killed = True
            self._ask_again_at = 0.0
        first = self._ask_again_at == 0.0
        pause = REPEAT_SECONDS + (0.0 if self.kill else self.grace)
        asked = self._ask(facts.now, [SignalRun(job.id, self.kill) if first else Cancel(job.id)], pause)
        self._was_cancelled |= bool(asked) and (self.kill or not first)
        return asked

    def _ask(self, now: Seconds, steps: list[Step], pause: Seconds) -> list[Step]:
        if now < self._ask_again_at:
            return []
        self._ask_again_at = now + pause
        return steps

    def evict(self, why: str) -> bool:
        """End the run because it cannot stay where it is. Returns whether that is new."""
        if self.stop or self.given_up is not None:
            return False
        self.given_up = RunFailed(*self.key, why, retry=True)
        return True

    def ask_again(self) -> None:
        """Let the last request to end the job be repeated: Slurm has not received it."""
        self._ask_again_at = 0.0

    def _start(self) -> list[Step]:
        if self.started:
            return []
        self.started = True
        return [ReportStarted()]

    # The end.

    def _are_ghosts(self, active: Sequence[RunJob], facts: Facts) -> bool:
        """Whether all that Slurm has of the run are steps that ended long ago."""
        is_over = facts.status is not None or self._was_cancelled
        if not is_over or any("." not in job.id for job in active):
            self._over_since = None
            return False
        if self._over_since is None:
            self._over_since = facts.now
        return facts.now - self._over_since >= GHOST_SECONDS + self.grace

    def _ghost_end(self, facts: Facts) -> list[Step]:
        if facts.status is None:
            stopped = RunStopped(*self.key) if self.stop else self.given_up
            return [Ended(stopped or self._lost(_lost_reason(facts.claim is not None, None)))]
        end = self._end("", None, facts)
        return [*([] if isinstance(end.end, RunStopped) else self._start()), end]

    def _without_job(self, facts: Facts) -> list[Step]:
        """No job of the run is in the queue: it has ended, was lost, or was not submitted yet."""
        last = _last_ended(facts)
        state = last.state if last is not None else ""
        is_requeued = last is not None and last.restarts > 0
        if facts.status is None and (state in WITHOUT_STATUS or facts.claim is None) and not is_requeued:
            return self._without_status(facts, last)
        end = self._end(state, last, facts)
        ran = isinstance(end.end, RunFinished) or (facts.claim is not None and isinstance(end.end, RunFailed))
        return [*(self._start() if ran else []), end]

    def _without_status(self, facts: Facts, job: RunJob | None) -> list[Step]:
        """Nothing says how the run ended, or it did not begin."""
        end = RunStopped(*self.key) if self.stop else self.given_up
        if facts.claim is None and (end is not None or job is None):
            return [Ended(end) if end is not None else Submit()]
        if facts.claim is None and job is not None and job.exit_code == CLAIM_FAILED:
            return [Ended(RunFailed(*self.key, NOT_WRITABLE))]
        if self._missing_since is None:
            self._missing_since = facts.now
        if facts.now - self._missing_since < SETTLE_SECONDS:
            return []
        return [Ended(end or self._lost(_lost_reason(facts.claim is not None, job)))]

    def _end(self, state: str, job: RunJob | None, facts: Facts) -> Ended:
        if facts.status == 0:
            return Ended(RunFinished(*self.key))
        if self.stop:
            return Ended(RunStopped(*self.key))
        if self.given_up is not None:
            return Ended(self.given_up)
        if job is not None and job.restarts:
            return Ended(self._lost("requeued in Slurm"))
        if job is not None and job.lost and facts.status in (None, STOPPED, STEP_FAILED):
            return Ended(self._lost(job.lost))
        if state in NO_FAULT_OF_THE_JOB:
            return Ended(self._lost(NO_FAULT_OF_THE_JOB[state]))
        if state in FAULTS:
            return Ended(RunFailed(*self.key, FAULTS[state]))
        if state == "CANCELLED":
            return Ended(RunStopped(*self.key), cancelled=CANCELLED)
        if facts.status == STEP_FAILED:
            return Ended(self._lost("Slurm could not run its step on all nodes"))
        return Ended(RunFailed(*self.key, exit_code=facts.status))

    def _lost(self, why: str) -> RunFailed:
        return RunFailed(*self.key, why, retry=True)


def _age(job: RunJob) -> tuple[int, ...]:
    return tuple(map(int, job.id.split(".")))


def _choose(active: Sequence[RunJob], facts: Facts) -> tuple[RunJob | None, list[RunJob]]:
    """Return the job that runs or will run the run, and those that are to be cancelled.

    That is the one with the claim, unless it was requeued: then it would not start the run again.
    """
    ordered = sorted(active, key=_age)
    if facts.claim is None:
        return ordered[0], ordered[1:]
    claimed = next((job for job in ordered if job.id == facts.claim), None)
    is_requeued = claimed is not None and (claimed.restarts or (claimed.is_waiting and facts.was_claimed))
    chosen = None if is_requeued else claimed
    return chosen, [job for job in ordered if job is not chosen]


def _last_ended(facts: Facts) -> RunJob | None:
    """Return the job that has ended the run: that with the claim, or else the last."""
    if facts.claim is not None:
        job = next((job for job in facts.jobs if job.id == facts.claim), None)
        return _as_unknown(job) if job is not None and _is_outdated(job) else job
    return max(facts.jobs, key=_age, default=None)


def _is_outdated(job: RunJob) -> bool:
    """Whether a job that has begun was cancelled by this back end, since a controller with an old state had it wait."""
    return job.state == "CANCELLED" and not job.had_nodes and not job.restarts


def _as_unknown(job: RunJob) -> RunJob:
    """Return a job of which the state says nothing about its run. Slurm may end what still runs of it."""
    return msgspec.structs.replace(job, state="", lost=OLD_STATE)


def _lost_reason(began: bool, job: RunJob | None) -> str:
    if job is None or not job.state:
        return "lost: Slurm has no record of its job, which has left no exit status"
    if not began:
        return f"its job in Slurm has ended before it began ({job.state})"
    return f"lost: its job in Slurm has left no exit status ({job.state})"
