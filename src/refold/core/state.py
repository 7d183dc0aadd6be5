"""Everything the scheduler knows now. Facts change it here and orders in `scheduler`; nobody else does."""

from __future__ import annotations

from collections import Counter
from math import inf

from refold.core.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
    Woke,
)
from refold.core.orders import Order, StartRun, StopRun
from refold.model import Allocation, Cluster, Decision, Expected, Job, Placement, Run, Wait
from refold.model.units import WHOLE, Seconds
from refold.packing import Free


class Progress:
    """What a job has behind it: runs so far, work and steps kept, GPU-seconds of the runs that have ended."""

    __slots__ = ("computing_since", "done", "gpu_seconds", "runs", "said_started", "steps", "steps_at")

    def __init__(self) -> None:
        self.runs = 0
        self.done: Seconds = 0.0
        self.steps = 0
        self.steps_at: Seconds = -inf
        self.gpu_seconds = 0.0
        self.computing_since: Seconds | None = None
        self.said_started = False


class Changes:
    """What has happened since the policy last looked."""

    __slots__ = ("ended", "gone", "nodes", "progressed", "returned", "started", "submitted")

    def __init__(self) -> None:
        self.submitted: list[Job] = []
        self.returned: list[Job] = []
        self.gone: list[str] = []
        self.started: list[Run] = []
        self.progressed: list[Run] = []
        self.ended: list[Run] = []
        self.nodes: list[int] = []

    def forget(self) -> None:
        """The policy has looked."""
        if self.submitted:
            self.submitted.clear()
        if self.started:
            self.started.clear()
        if self.ended:
            self.ended.clear()
        if self.returned or self.progressed or self.gone or self.nodes:
            for rare in (self.returned, self.progressed, self.gone, self.nodes):
                rare.clear()

    @property
    def freed(self) -> bool:
        """Whether a job that had no place could have one now."""
        return bool(self.ended or self.nodes)


class State:
    """Jobs that wait, runs that hold something, what is free."""

    def __init__(self, cluster: Cluster) -> None:
        self.now: Seconds = -inf
        self.cluster = cluster
        self.free = Free(cluster)
        self.waiting: dict[str, Job] = {}
        self.active: dict[str, Job] = {}
        self.never: dict[str, Job] = {}
        self.runs: dict[str, Run] = {}
        self.progress: dict[str, Progress] = {}
        self.reasons: dict[str, Wait] = {}
        self.expected: dict[str, Expected] = {}
        self.changes = Changes()
        self.late: Counter[str] = Counter()
        self._held: dict[str, Placement] = {}
        self._reshaping: dict[str, Allocation] = {}
        self._cancelled: set[str] = set()
        self._seen: set[str] = set()

    # Facts.

    def apply(self, event: Event) -> Order | None:
        """Take note of a fact. Some have one possible consequence, which is then ordered at once."""
        # The two of which there are most go first, by the quickest test there is. The patterns of the others name
        # no fields: msgspec would look these up anew at every event.
        if type(event) is JobSubmitted:
            self._submitted(event.job)
        elif type(event) is RunFinished:
            if self._is_current(event):
                self._end(event.job)
                self._forget(event.job)
        else:
            return self._apply_rarer(event)
        return None

    def _apply_rarer(self, event: Event) -> Order | None:
        match event:
            case RunStopped():
                if self._is_current(event):
                    return self._stopped(event.job, event.done, event.steps)
            case RunStarted():
                if self._is_current(event):
                    self._began_to_compute(event.job)
            case RunProgressed():
                if self._is_current(event):
                    self._progressed(event.job, event.done, event.steps)
            case RunFailed():
                if self._is_current(event):
                    self._failed(event.job, event.done, event.steps, event.retry)
            case JobCancelled():
                return self._cancel(event.job)
            case NodeLost():
                self._set_up(event.node, False)
            case NodeReturned():
                self._set_up(event.node, True)
            case Woke():
                pass  # it is time for another look, that is all
        return None

    def _is_current(self, report: RunFinished | RunStopped | RunStarted | RunProgressed | RunFailed) -> bool:
        """Reports come late and twice; only one about a run that still holds something counts."""
        run = self.runs.get(report.job)
        if run is not None and run.number == report.run:
            return True
        self.late[type(report).__name__] += 1
        return False

    def _submitted(self, job: Job) -> None:
        if job.id in self._seen:
            self.late["JobSubmitted"] += 1
            return
        self._seen.add(job.id)
        self.progress[job.id] = Progress()
        if not self.free.fits_when_empty(job.demand):
            self.never[job.id] = job
            return
        self.waiting[job.id] = job
        self.changes.submitted.append(job)

    def _began_to_compute(self, job_id: str) -> None:
        progress, run = self.progress[job_id], self.runs[job_id]
        if progress.said_started:
            self.late["RunStarted"] += 1
            return
        progress.said_started = True
        self._go_on_computing(progress, run)

    def _progressed(self, job_id: str, done: Seconds, steps: int | None) -> None:
        progress, run = self.progress[job_id], self.runs[job_id]
        if done <= progress.done and (steps is None or steps <= progress.steps):
            self.late["RunProgressed"] += 1
            return
        if done > progress.done:
            progress.done = done
        elif progress.computing_since is not None:  # only steps were reported: what was believed until now stays so
            progress.done += self.now - progress.computing_since
        self._counted(progress, steps)
        self._go_on_computing(progress, run)

    def _counted(self, progress: Progress, steps: int | None) -> None:
        if steps is not None:
            progress.steps, progress.steps_at = steps, self.now

    def _go_on_computing(self, progress: Progress, run: Run) -> None:
        """From now on more work is done, unless the run has been told to stop."""
        if not run.stopping:
            progress.computing_since = self.now
            self.changes.progressed.append(run)

    def _stopped(self, job_id: str, done: Seconds, steps: int | None) -> Order | None:
        wanted = self._reshaping.pop(job_id, None)
        self._end(job_id)
        self._kept(job_id, done, steps)
        if job_id in self._cancelled:
            self._forget(job_id)
            return None
        if wanted is not None and self.free.take(wanted.placement) is None:
            return self._begin(job_id, wanted)
        self._wait_again(job_id)
        return None

    def _kept(self, job_id: str, done: Seconds, steps: int | None) -> None:
        progress = self.progress[job_id]
        progress.done = done
        self._counted(progress, steps)

    def _failed(self, job_id: str, done: Seconds, steps: int | None, retry: bool) -> None:
        self._end(job_id)
        if retry and job_id not in self._cancelled:
            self._kept(job_id, done, steps)
            self._wait_again(job_id)
        else:
            self._forget(job_id)

    def _cancel(self, job_id: str) -> Order | None:
        run = self.runs.get(job_id)
        if run is not None:
            self._cancelled.add(job_id)
            return None if run.stopping else self.stop(job_id, "cancelled")
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._never_mind(job)
            self._forget(job_id)
        elif self.never.pop(job_id, None) is not None:
            self._forget(job_id)
        else:
            self.late["JobCancelled"] += 1
        return None

    def _never_mind(self, job: Job) -> None:
        """A job leaves the queue; if the policy has not seen it come, it need not see it go."""
        for unseen in (self.changes.submitted, self.changes.returned):
            if job in unseen:
                unseen.remove(job)
                return
        self.changes.gone.append(job.id)

    def _set_up(self, node: int, up: bool) -> None:
        if not 0 <= node < len(self.cluster.nodes) or self.free.is_up(node) == up:
            self.late["NodeReturned" if up else "NodeLost"] += 1
            return
        self.free.set_up(node, up)
        self.changes.nodes.append(node)

    # Consequences.

    def start(self, job_id: str, allocation: Allocation) -> Order:
        """A waiting job gets an allocation that was taken for it."""
        self.active[job_id] = self.waiting.pop(job_id)
        self.reasons.pop(job_id, None)
        self.expected.pop(job_id, None)
        return self._begin(job_id, allocation)

    def stop(self, job_id: str, why: str) -> Order:
        """A run is told to stop; it holds what it holds until it reports that it has."""
        run, progress = self.runs[job_id], self.progress[job_id]
        self.runs[job_id] = Run(run.job, run.number, run.allocation, run.since, True)
        if progress.computing_since is not None:
            progress.done += self.now - progress.computing_since
            progress.computing_since = None
        return StopRun(job_id, run.number, why)

    def end(self, job_id: str, why: str) -> Order:
        """A run is told to stop, and its job does not wait again."""
        self._cancelled.add(job_id)
        return self.stop(job_id, why)

    def refuse(self, decision: Decision) -> None:
        """A decision was refused: what the policy believes to have started waits on, as if it had come back."""
        self.changes.returned += [self.waiting[start.job] for start in decision.starts if start.job in self.waiting]

    def reshape(self, job_id: str, allocation: Allocation, holding: Placement, why: str) -> Order:
        """A run is told to stop, and its job will be started again at once; until then it holds both shapes."""
        self._held[job_id] = holding
        self._reshaping[job_id] = allocation
        return self.stop(job_id, why)

    def becoming(self, job_id: str) -> Allocation | None:
        """What a job that is being reshaped will run on next."""
        return self._reshaping.get(job_id)

    def held_by(self, job_id: str) -> Placement:
        """What a job holds now."""
        return (self._held and self._held.get(job_id)) or self.runs[job_id].allocation.placement

    def _begin(self, job_id: str, allocation: Allocation) -> Order:
        progress = self.progress[job_id]
        progress.runs += 1
        progress.computing_since = self.now
        progress.said_started = False
        run = Run(job_id, progress.runs, allocation, self.now)
        self.runs[job_id] = run
        self.changes.started.append(run)
        return StartRun(job_id, run.number, allocation)

    def _end(self, job_id: str) -> None:
        placement = self.held_by(job_id)
        self.free.give_back(placement)
        if self._held:
            self._held.pop(job_id, None)
            self._reshaping.pop(job_id, None)
        run = self.runs.pop(job_id)
        progress = self.progress[job_id]
        progress.computing_since = None
        progress.gpu_seconds += (self.now - run.since) * run.allocation.gpu_milli / WHOLE
        self.changes.ended.append(run)

    def _wait_again(self, job_id: str) -> None:
        job = self.active.pop(job_id)
        self.waiting[job_id] = job
        self.changes.returned.append(job)

    def _forget(self, job_id: str) -> None:
        self.active.pop(job_id, None)
        self.reasons.pop(job_id, None)
        self.expected.pop(job_id, None)
        self._cancelled.discard(job_id)
        del self.progress[job_id]
