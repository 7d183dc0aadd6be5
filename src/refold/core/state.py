"""The state of the scheduler. Events change it in `apply`; decisions change it through `start`, `stop` and the like."""

from __future__ import annotations

from collections import Counter
from math import inf

from refold.core.changes import Changes, Progress
from refold.core.events import (
    Event,
    GpuLost,
    GpuReturned,
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
from refold.packing import FreeResources

Part = tuple[int, int | None]
"""A node and one of its GPUs, or None for the node as a whole."""


def _part(event: NodeLost | NodeReturned | GpuLost | GpuReturned) -> Part:
    return event.node, event.gpu if isinstance(event, GpuLost | GpuReturned) else None


class State:
    """Waiting, active, held and infeasible jobs, current runs, and free resources."""

    def __init__(self, cluster: Cluster) -> None:
        self.now: Seconds = -inf
        self.cluster = cluster
        self.free = FreeResources(cluster)
        self.waiting: dict[str, Job] = {}
        self.active: dict[str, Job] = {}
        self.infeasible: dict[str, Job] = {}
        self.held: dict[str, Job] = {}
        self.hold_reasons: dict[str, Reason] = {}
        self.runs: dict[str, Run] = {}
        self.progress: dict[str, Progress] = {}
        self.reasons: dict[str, Wait] = {}
        self.start_estimates: dict[str, StartEstimate] = {}
        self.down_reasons: dict[Part, str] = {}
        self.changes = Changes()
        self.late: Counter[str] = Counter()
        self._reshape_holdings: dict[str, Placement] = {}
        self._next_allocations: dict[str, Allocation] = {}
        self._cancelled: set[str] = set()
        self.hold_pending: set[str] = set()
        self.limits = TenantLimits(cluster)

    # Events.

    def apply(self, event: Event) -> Order | None:
        """Apply an event; return the order that it causes without a decision of the policy, if any."""
        # The two most frequent events are tested first, with the fastest test. The patterns for the others name no
        # fields, because msgspec would look the fields up again for every event.
        if type(event) is JobSubmitted:
            self._submit(event.job)
        elif type(event) is RunFinished:
            if self._is_current(event):
                self._end_run(event.job)
                self._remove_job(self.active[event.job])
        else:
            return self._apply_rare(event)
        return None

    def _apply_rare(self, event: Event) -> Order | None:
        match event:
            case RunStopped():
                if self._is_current(event):
                    return self._finish_stop(event.job, event.done, event.steps)
            case RunStarted():
                if self._is_current(event):
                    self._note_started(event.job)
            case RunProgressed():
                if self._is_current(event):
                    self._note_progress(event.job, event.done, event.steps)
            case RunFailed():
                if self._is_current(event):
                    self._fail(event.job, event.done, event.steps, event.retry)
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
                self._restore_progress(event)
            case RunAdopted():
                self._adopt(event)
            case PastJob():
                self.changes.past_jobs.append((event.job, event.run_time))
            case NodeLost() | GpuLost():
                self._take_down(event)
            case NodeReturned() | GpuReturned():
                self._bring_up(event)
            case Woke():
                pass  # it only causes another call of the policy
        return None

    def _is_current(
        self, report: RunFinished | RunStopped | RunStarted | RunProgressed | RunFailed | RunRecalled
    ) -> bool:
        """Whether a report is about the current run of its job. Others are late or duplicate, and are counted."""
        run = self.runs.get(report.job)
        if run is not None and run.number == report.run:
            return True
        self.late[type(report).__name__] += 1
        return False

    def _submit(self, job: Job) -> None:
        if job.id in self.progress:
            self.late["JobSubmitted"] += 1
            return
        self.progress[job.id] = Progress()
        if not self.free.fits_when_empty(job.demand):
            self.infeasible[job.id] = job
            return
        self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        """Queue a job, or set it aside if its tenant has reached its limit."""
        if self.limits.admit(job):
            self.waiting[job.id] = job
            self.changes.submitted.append(job)
        else:
            self._set_aside(job, Reason.LIMIT)

    def _set_aside(self, job: Job, reason: Reason) -> None:
        self.held[job.id] = job
        self.hold_reasons[job.id] = reason

    def _release_usage(self, job: Job) -> None:
        """Release the usage of a job within its tenant's limit, and queue the jobs that are admitted in its place."""
        for admitted in self.limits.release(job):
            del self.held[admitted.id], self.hold_reasons[admitted.id]
            self.waiting[admitted.id] = admitted
            self.changes.submitted.append(admitted)

    def _hold(self, job_id: str, reason: Reason) -> Order | None:
        if reason is Reason.BACKOFF and not self._may_back_off(job_id):
            self.late["JobHeld"] += 1
            return None
        if job_id in self.runs:
            self.hold_pending.add(job_id)
            return None if self.runs[job_id].stopping else self.stop(job_id, "held")
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._dequeue(job)
        elif job_id in self.held:
            job = self.held[job_id]
        else:
            self.late["JobHeld"] += 1
            return None
        self._set_aside(job, reason)
        self._release_usage(job)
        return None

    def _may_back_off(self, job_id: str) -> bool:
        """Whether a job may be held for back-off: not if it runs again already, nor if a user holds it.

        The end of the back-off would release a job that a user holds.
        """
        return job_id not in self.runs and self.hold_reasons.get(job_id) is not Reason.HELD

    def _dequeue(self, job: Job) -> None:
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        self._note_removed(job)

    def _release(self, job_id: str) -> None:
        self.hold_pending.discard(job_id)
        if self.hold_reasons.get(job_id) in (None, Reason.LIMIT):
            self.late["JobReleased"] += 1
            return
        del self.hold_reasons[job_id]
        self._enqueue(self.held.pop(job_id))

    def _restore_progress(self, event: JobContinued) -> None:
        progress = self.progress.get(event.job)
        if progress is None or progress.runs:
            self.late["JobContinued"] += 1
            return
        progress.runs, progress.done, progress.gpu_seconds = event.runs, event.done, event.gpu_seconds
        if event.steps:
            self._record_steps(progress, event.steps)

    def _adopt(self, event: RunAdopted) -> None:
        """Adopt a run: its resources are allocated, and the policy sees a run that it did not start."""
        job = self.waiting.get(event.job) or self.held.get(event.job)
        placement = event.allocation.placement
        if job is None or not self._is_on_cluster(event.allocation) or self.free.take(placement) is not None:
            self.late["RunAdopted"] += 1
            return
        if self.waiting.pop(event.job, None) is not None:
            self._note_removed(job)
        else:
            del self.held[event.job], self.hold_reasons[event.job]
            self.limits.force(job)
        self.active[event.job] = job
        self.progress[event.job].runs = event.run - 1
        self._begin_run(event.job, event.allocation, event.since)

    def _note_started(self, job_id: str) -> None:
        progress, run = self.progress[job_id], self.runs[job_id]
        if progress.reported_start:
            self.late["RunStarted"] += 1
            return
        progress.reported_start = True
        self._resume_computing(progress, run)

    def _note_progress(self, job_id: str, done: Seconds, steps: int | None) -> None:
        progress, run = self.progress[job_id], self.runs[job_id]
        if done <= progress.done and (steps is None or steps <= progress.steps):
            self.late["RunProgressed"] += 1
            return
        if done > progress.done:
            progress.done = done
        elif progress.computing_since is not None:  # only steps were reported: the estimated work up to now is kept
            progress.done += self.now - progress.computing_since
        self._record_steps(progress, steps)
        self._resume_computing(progress, run)

    def _record_steps(self, progress: Progress, steps: int | None) -> None:
        if steps is not None:
            progress.steps, progress.steps_at = steps, self.now

    def _resume_computing(self, progress: Progress, run: Run) -> None:
        """Count work from now on, unless the run is stopping."""
        if not run.stopping:
            progress.computing_since = self.now
            self.changes.progressed.append(run)

    def _is_on_cluster(self, allocation: Allocation) -> bool:
        """Whether this cluster has the nodes and GPUs: the run may be older than a change of the cluster."""
        nodes = self.cluster.nodes
        return all(
            0 <= share.node < len(nodes) and all(0 <= gpu < nodes[share.node].gpus for gpu in share.gpus)
            for share in allocation.placement
        )

    def _finish_stop(self, job_id: str, done: Seconds, steps: int | None) -> Order | None:
        target = self._next_allocations.pop(job_id, None)
        self._end_run(job_id)
        self._record_saved(job_id, done, steps)
        if job_id in self._cancelled:
            self._remove_job(self.active[job_id])
            return None
        if target is not None and job_id not in self.hold_pending and self.free.take(target.placement) is None:
            return self._begin_run(job_id, target)
        self._requeue(job_id)
        return None

    def _record_saved(self, job_id: str, done: Seconds, steps: int | None) -> None:
        progress = self.progress[job_id]
        progress.done = done
        self._record_steps(progress, steps)

    def _fail(self, job_id: str, done: Seconds, steps: int | None, retry: bool) -> None:
        self._end_run(job_id)
        if retry and job_id not in self._cancelled:
            self._record_saved(job_id, done, steps)
            self._requeue(job_id)
        else:
            self._remove_job(self.active[job_id])

    def _cancel(self, job_id: str) -> Order | None:
        run = self.runs.get(job_id)
        if run is not None:
            self._cancelled.add(job_id)
            return None if run.stopping else self.stop(job_id, "cancelled")
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._note_removed(job)
            self._remove_job(job)
        elif (job := self.infeasible.pop(job_id, None)) is not None:
            self._remove_job(job)
        elif (job := self.held.pop(job_id, None)) is not None:
            del self.hold_reasons[job_id]
            self._remove_job(job)
        else:
            self.late["JobCancelled"] += 1
        return None

    def _note_removed(self, job: Job) -> None:
        """Report to the policy that a job has left the queue, unless the policy has not seen the job yet."""
        for unseen in (self.changes.submitted, self.changes.requeued):
            if job in unseen:
                unseen.remove(job)
                return
        self.changes.removed.append(job.id)

    def _take_down(self, event: NodeLost | GpuLost) -> None:
        """Mark a node or a GPU as down. If it is already, only the reason is replaced, if there is a new one."""
        if self._set_up(event, False) or (self._is_known(event) and event.why):
            self.down_reasons[_part(event)] = event.why

    def _bring_up(self, event: NodeReturned | GpuReturned) -> None:
        if self._set_up(event, True):
            del self.down_reasons[_part(event)]

    def _set_up(self, event: NodeLost | NodeReturned | GpuLost | GpuReturned, up: bool) -> bool:
        """Mark a node or a GPU as up or down; return whether that is a change."""
        node, gpu = _part(event)
        if not self._is_known(event) or up == ((node, gpu) not in self.down_reasons):
            self.late[type(event).__name__] += 1
            return False
        if gpu is None:
            self.free.set_node_up(node, up)
        else:
            self.free.set_gpu_up(node, gpu, up)
        self.changes.nodes.append(node)
        return True

    def _is_known(self, event: NodeLost | NodeReturned | GpuLost | GpuReturned) -> bool:
        """Whether the cluster has the node or the GPU."""
        node, gpu = _part(event)
        return 0 <= node < len(self.cluster.nodes) and (gpu is None or 0 <= gpu < self.cluster.nodes[node].gpus)

    # Decisions.

    def start(self, job_id: str, allocation: Allocation) -> Order:
        """Start a waiting job on an allocation that has been taken for it."""
        self.active[job_id] = self.waiting.pop(job_id)
        self.reasons.pop(job_id, None)
        self.start_estimates.pop(job_id, None)
        return self._begin_run(job_id, allocation)

    def stop(self, job_id: str, why: str) -> Order:
        """Stop a run. It holds its resources until its end is reported."""
        run, progress = self.runs[job_id], self.progress[job_id]
        self.runs[job_id] = Run(run.job, run.number, run.allocation, run.since, True)
        if progress.computing_since is not None:
            progress.done += self.now - progress.computing_since
            progress.computing_since = None
        return StopRun(job_id, run.number, why)

    def end(self, job_id: str, why: str) -> Order:
        """Stop a run for good: its job is not queued again."""
        self._cancelled.add(job_id)
        return self.stop(job_id, why)

    def reject(self, decision: Decision) -> None:
        """Report the jobs that a rejected decision would have started as queued again, so that the policy notices."""
        self.changes.requeued += [self.waiting[start.job] for start in decision.starts if start.job in self.waiting]

    def reshape(self, job_id: str, allocation: Allocation, holding: Placement, why: str) -> Order:
        """Stop a run, to start its job on another allocation at once. Until then the job holds both (`holding`)."""
        self._reshape_holdings[job_id] = holding
        self._next_allocations[job_id] = allocation
        return self.stop(job_id, why)

    def is_cancelled(self, job_id: str) -> bool:
        """Whether a job with a stopping run was cancelled, or ended by a decision, and is not queued again."""
        return job_id in self._cancelled

    def next_allocation(self, job_id: str) -> Allocation | None:
        """Return the next allocation of a job that is being reshaped."""
        return self._next_allocations.get(job_id)

    def held_by(self, job_id: str) -> Placement:
        """Return the resources that an active job holds now."""
        return (self._reshape_holdings and self._reshape_holdings.get(job_id)) or self.runs[job_id].allocation.placement

    def _begin_run(self, job_id: str, allocation: Allocation, since: Seconds | None = None) -> Order:
        progress = self.progress[job_id]
        progress.runs += 1
        progress.computing_since = self.now
        progress.reported_start = False
        run = Run(job_id, progress.runs, allocation, self.now if since is None else since)
        self.runs[job_id] = run
        self.changes.started.append(run)
        return StartRun(job_id, run.number, allocation)

    def _end_run(self, job_id: str) -> None:
        placement = self.held_by(job_id)
        self.free.release(placement)
        if self._reshape_holdings:
            self._reshape_holdings.pop(job_id, None)
            self._next_allocations.pop(job_id, None)
        run = self.runs.pop(job_id)
        progress = self.progress[job_id]
        progress.computing_since = None
        progress.gpu_seconds += (self.now - run.since) * run.allocation.gpu_milli / WHOLE
        self.changes.ended.append(run)

    def _requeue(self, job_id: str) -> None:
        job = self.active.pop(job_id)
        if job_id in self.hold_pending:
            self.hold_pending.discard(job_id)
            self._set_aside(job, Reason.HELD)
            self._release_usage(job)
            return
        self.waiting[job_id] = job
        self.changes.requeued.append(job)

    def _remove_job(self, job: Job) -> None:
        self.active.pop(job.id, None)
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        self._cancelled.discard(job.id)
        self.hold_pending.discard(job.id)
        del self.progress[job.id]
        self._release_usage(job)
