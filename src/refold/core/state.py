"""Everything the scheduler knows now. Facts change it here and orders in `scheduler`; nobody else does."""

from __future__ import annotations

from collections import Counter
from math import inf

from refold.core.changes import Changes, Progress
from refold.core.events import (
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    Woke,
)
from refold.core.limits import TenantLimits
from refold.core.orders import Order, StartRun, StopRun
from refold.model import WHOLE, Allocation, Cluster, Decision, Job, Placement, Reason, Run, Seconds, StartEstimate, Wait
from refold.packing import Free


class State:
    """Jobs that wait or are held, runs that hold something, what is free."""

    def __init__(self, cluster: Cluster) -> None:
        self.now: Seconds = -inf
        self.cluster = cluster
        self.free = Free(cluster)
        self.waiting: dict[str, Job] = {}
        self.active: dict[str, Job] = {}
        self.infeasible: dict[str, Job] = {}
        self.held: dict[str, Job] = {}
        self.held_for: dict[str, Reason] = {}
        self.runs: dict[str, Run] = {}
        self.progress: dict[str, Progress] = {}
        self.reasons: dict[str, Wait] = {}
        self.start_estimates: dict[str, StartEstimate] = {}
        self.changes = Changes()
        self.late: Counter[str] = Counter()
        self._held: dict[str, Placement] = {}
        self._reshaping: dict[str, Allocation] = {}
        self._cancelled: set[str] = set()
        self.to_be_held: set[str] = set()
        self.limits = TenantLimits(cluster)

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
                self._forget(self.active[event.job])
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
            case JobHeld():
                return self._hold(event.job, event.reason)
            case JobReleased():
                self._release(event.job)
            case RunRecalled():
                if self._is_current(event) and not self.runs[event.job].stopping:
                    return self.stop(event.job, event.why)
            case JobContinued():
                self._continue(event)
            case RunAdopted():
                self._adopt(event)
            case PastJob():
                self.changes.remembered.append((event.job, event.lasted))
            case NodeLost():
                self._set_up(event.node, False)
            case NodeReturned():
                self._set_up(event.node, True)
            case Woke():
                pass  # it is time for another look, that is all
        return None

    def _is_current(
        self, report: RunFinished | RunStopped | RunStarted | RunProgressed | RunFailed | RunRecalled
    ) -> bool:
        """Reports come late and twice; only one about a run that still holds something counts."""
        run = self.runs.get(report.job)
        if run is not None and run.number == report.run:
            return True
        self.late[type(report).__name__] += 1
        return False

    def _submitted(self, job: Job) -> None:
        if job.id in self.progress:
            self.late["JobSubmitted"] += 1
            return
        self.progress[job.id] = Progress()
        if not self.free.fits_when_empty(job.demand):
            self.infeasible[job.id] = job
            return
        self._let_in(job)

    def _let_in(self, job: Job) -> None:
        """A job may be looked at now, unless its tenant has reached its limit."""
        if self.limits.lets_in(job):
            self.waiting[job.id] = job
            self.changes.submitted.append(job)
        else:
            self._keep_back(job, Reason.LIMIT)

    def _keep_back(self, job: Job, reason: Reason) -> None:
        self.held[job.id] = job
        self.held_for[job.id] = reason

    def _leaves(self, job: Job) -> None:
        """A job does not count against its tenant's limit any more; others may be let in instead."""
        for admitted in self.limits.leaves(job):
            del self.held[admitted.id], self.held_for[admitted.id]
            self.waiting[admitted.id] = admitted
            self.changes.submitted.append(admitted)

    def _hold(self, job_id: str, reason: Reason) -> Order | None:
        if reason is Reason.BACKOFF and not self._may_pause(job_id):
            self.late["JobHeld"] += 1
            return None
        if job_id in self.runs:
            self.to_be_held.add(job_id)
            return None if self.runs[job_id].stopping else self.stop(job_id, "held")
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._leave_queue(job)
        elif job_id in self.held:
            job = self.held[job_id]
        else:
            self.late["JobHeld"] += 1
            return None
        self._keep_back(job, reason)
        self._leaves(job)
        return None

    def _may_pause(self, job_id: str) -> bool:
        """A pause after a failure neither stops the next run, nor ends with a job released that somebody holds."""
        return job_id not in self.runs and self.held_for.get(job_id) is not Reason.HELD

    def _leave_queue(self, job: Job) -> None:
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        self._never_mind(job)

    def _release(self, job_id: str) -> None:
        self.to_be_held.discard(job_id)
        if self.held_for.get(job_id) in (None, Reason.LIMIT):
            self.late["JobReleased"] += 1
            return
        del self.held_for[job_id]
        self._let_in(self.held.pop(job_id))

    def _continue(self, event: JobContinued) -> None:
        progress = self.progress.get(event.job)
        if progress is None or progress.runs:
            self.late["JobContinued"] += 1
            return
        progress.runs, progress.done, progress.gpu_seconds = event.runs, event.done, event.gpu_seconds
        if event.steps:
            self._counted(progress, event.steps)

    def _adopt(self, event: RunAdopted) -> None:
        """What a run holds is taken; the policy sees a run that it has not started.

        The run of a job that is held takes what is free of it, if anything is: it stands for something else.
        """
        job = self.waiting.get(event.job) or self.held.get(event.job)
        placement = self._adopted(event) if job is not None and self._is_here(event.allocation) else ()
        if job is None or not placement:
            self.late["RunAdopted"] += 1
            return
        if self.waiting.pop(event.job, None) is not None:
            self._never_mind(job)
        else:
            del self.held[event.job], self.held_for[event.job]
            self.limits.counts(job)
        self.active[event.job] = job
        self.progress[event.job].runs = event.run - 1
        self._begin(event.job, Allocation(placement, event.allocation.plan), event.since)

    def _adopted(self, event: RunAdopted) -> Placement:
        placement = event.allocation.placement
        if event.job in self.held:
            return tuple(share for share in self.free.take_what_is_free(placement) if share.gpus)
        return placement if self.free.take(placement) is None else ()

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

    def _is_here(self, allocation: Allocation) -> bool:
        """Whether this cluster has these nodes and GPUs: the run may be of a time when there were others."""
        nodes = self.cluster.nodes
        return all(
            0 <= share.node < len(nodes) and all(0 <= gpu < nodes[share.node].gpus for gpu in share.gpus)
            for share in allocation.placement
        )

    def _stopped(self, job_id: str, done: Seconds, steps: int | None) -> Order | None:
        wanted = self._reshaping.pop(job_id, None)
        self._end(job_id)
        self._kept(job_id, done, steps)
        if job_id in self._cancelled:
            self._forget(self.active[job_id])
            return None
        if wanted is not None and job_id not in self.to_be_held and self.free.take(wanted.placement) is None:
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
            self._forget(self.active[job_id])

    def _cancel(self, job_id: str) -> Order | None:
        run = self.runs.get(job_id)
        if run is not None:
            self._cancelled.add(job_id)
            return None if run.stopping else self.stop(job_id, "cancelled")
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._never_mind(job)
            self._forget(job)
        elif (job := self.infeasible.pop(job_id, None)) is not None:
            self._forget(job)
        elif (job := self.held.pop(job_id, None)) is not None:
            del self.held_for[job_id]
            self._forget(job)
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
        self.start_estimates.pop(job_id, None)
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

    def is_unwanted(self, job_id: str) -> bool:
        """Whether a run that is stopping was cancelled, or ended by a rule: its job will not wait again."""
        return job_id in self._cancelled

    def next_allocation(self, job_id: str) -> Allocation | None:
        """What a job that is being reshaped will run on next."""
        return self._reshaping.get(job_id)

    def held_by(self, job_id: str) -> Placement:
        """What a job holds now."""
        return (self._held and self._held.get(job_id)) or self.runs[job_id].allocation.placement

    def _begin(self, job_id: str, allocation: Allocation, since: Seconds | None = None) -> Order:
        progress = self.progress[job_id]
        progress.runs += 1
        progress.computing_since = self.now
        progress.said_started = False
        run = Run(job_id, progress.runs, allocation, self.now if since is None else since)
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
        if job_id in self.to_be_held:
            self.to_be_held.discard(job_id)
            self._keep_back(job, Reason.HELD)
            self._leaves(job)
            return
        self.waiting[job_id] = job
        self.changes.returned.append(job)

    def _forget(self, job: Job) -> None:
        self.active.pop(job.id, None)
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        self._cancelled.discard(job.id)
        self.to_be_held.discard(job.id)
        del self.progress[job.id]
        self._leaves(job)
