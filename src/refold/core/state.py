# cython: boundscheck=True, wraparound=True
"""The state of the scheduler, changed by events; decisions change its parts directly."""

from __future__ import annotations

from collections import Counter
from math import inf

import cython

from refold.core.availability import Availability
from refold.core.events import (
    ChangeMeasured,
    Event,
    GpuLost,
    GpuReturned,
    GpuTimeUsed,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    MemoryRaised,
    ModelProfiled,
    NodeLost,
    NodeReturned,
    NodesAllowed,
    NodeUsed,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    SpeedMeasured,
    UsageRecorded,
    Woke,
)
from refold.core.orders import Order
from refold.core.usage import TenantUser
from refold.model import Allocation, Cluster, Job, Reason, Seconds

if not cython.compiled:
    from refold.core.changes import Changes, JobProgress
    from refold.core.job_queue import JobQueue
    from refold.core.run_table import RunTable
    from refold.placement import FreeResources

RunReport = RunFinished | RunStopped | RunStarted | RunProgressed | RunFailed | RunRecalled | ChangeMeasured
ABOUT_RUNS = (RunStarted, RunProgressed, RunStopped, RunFailed, RunRecalled, ChangeMeasured, JobCancelled, JobHeld)


class State:
    """Jobs without a run, jobs with a run, free resources, and which nodes and GPUs are up."""

    def __init__(self, cluster: Cluster) -> None:
        self.now: Seconds = -inf
        self.cluster = cluster
        self.free = FreeResources(cluster)
        self.changes = Changes()
        self.late: Counter[str] = Counter()
        self.queue = JobQueue(cluster, self.free, self.changes)
        self.running = RunTable(cluster, self.free, self.changes)
        self._runs = self.running.runs
        self.availability = Availability(self.free, self.changes)

    def apply(self, event: Event) -> Order | None:
        """Apply an event; return the order that it causes without a decision of the policy, if any."""
        # The two most frequent events are tested first, with the fastest test. The patterns for the others name no
        # fields, because msgspec would look the fields up again for every event.
        if type(event) is JobSubmitted:
            self._submit(event.job)
        elif type(event) is RunFinished:
            if self._is_current(event):
                self.running.end(event.job, self.now)
                self._end_active_job(event.job)
        elif isinstance(event, ABOUT_RUNS):
            return self._apply_to_run(event)
        elif not self._note(event):
            self._count_late(event)
        return None

    def _apply_to_run(self, event: RunReport | JobCancelled | JobHeld) -> Order | None:
        match event:
            case RunStopped():
                return self._finish_stop(event) if self._is_current(event) else None
            case RunRecalled():
                if self._is_current(event) and not self.running.runs[event.job].stopping:
                    return self.running.stop(event.job, event.why, self.now)
            case JobCancelled():
                return self._cancel(event)
            case JobHeld():
                return self._hold(event)
            case RunFailed():
                if self._is_current(event):
                    self._fail(event)
            case ChangeMeasured():
                if self._is_current(event):
                    self.running.note_change(event)
            case RunStarted():
                if self._is_current(event) and not self.running.note_started(event.job, self.now):
                    self._count_late(event)
            case RunProgressed():
                if self._is_current(event) and not self.running.note_progress(event, self.now):
                    self._count_late(event)
        return None

    def _note(self, event: Event) -> bool:
        """Note what jobs without a run, nodes and earlier times have become; return whether that has an effect."""
        measurements = self.running.measurements
        match event:
            case JobReleased():
                return self.queue.release(event.job)
            case MemoryRaised():
                return self.queue.raise_memory(event.job, event.memory_mib)
            case NodesAllowed():
                return self._allow_nodes(event)
            case JobContinued():
                return self.running.restore(event, self.now)
            case RunAdopted():
                return self._adopt(event)
            case NodeLost() | GpuLost():
                return self.availability.take_down(event)
            case NodeReturned() | GpuReturned():
                return self.availability.bring_up(event)
            case NodeUsed():
                return self.availability.note_used(event)
            case SpeedMeasured():
                measurements.restore(event)
            case GpuTimeUsed():
                measurements.used_gpu_seconds, measurements.profiling_gpu_seconds = event.gpu_seconds, event.profiling
            case ModelProfiled():
                measurements.profiling_seconds[event.workload, event.gpu_type] = event.seconds
            case UsageRecorded():
                self.running.usage.restore(TenantUser(event.tenant, event.user), event.amounts)
            case PastJob():
                self.changes.past_jobs.append((event.job, event.run_time))
            case Woke():
                pass  # it only causes another call of the policy
        return True

    def start(self, job_id: str, allocation: Allocation) -> Order:
        """Start a waiting job on an allocation that has been taken for it."""
        return self.running.begin(self.queue.start(job_id), allocation, self.now)

    def _count_late(self, event: Event) -> None:
        """Count an event that has no effect, because it is late or a duplicate."""
        self.late[type(event).__name__] += 1

    def _is_current(self, report: RunReport) -> bool:
        """Whether a report is about the current run of its job. Others are counted as late."""
        run = self._runs.get(report.job)
        if run is not None and run.number == report.run:
            return True
        self._count_late(report)
        return False

    def _submit(self, job: Job) -> None:
        if job.id in self.running.progress:
            self.late["JobSubmitted"] += 1
            return
        self.running.progress[job.id] = JobProgress()
        self.queue.submit(job, self.now)

    def _hold(self, event: JobHeld) -> Order | None:
        run = self.running.runs.get(event.job)
        held_by_user = self.queue.hold_reasons.get(event.job) is Reason.HELD
        if (event.reason is Reason.BACKOFF and run is not None) or (event.reason is not Reason.HELD and held_by_user):
            self._count_late(event)  # it runs again already, or the end of this hold would release it
        elif run is not None:
            self.queue.hold_pending.add(event.job)
            return None if run.stopping else self.running.stop(event.job, "held", self.now)
        elif not self.queue.hold(event.job, event.reason):
            self._count_late(event)
        return None

    def _allow_nodes(self, event: NodesAllowed) -> bool:
        """Limit jobs to some nodes; return whether that changes anything."""
        changed = [self.queue.allow_nodes(job, event.nodes) for job in event.jobs]
        changed += [self.running.allow_nodes(job, event.nodes) for job in event.jobs]
        return any(changed)

    def _adopt(self, event: RunAdopted) -> bool:
        """Adopt a run: its resources are allocated, and the policy sees a run that it did not start.

        Not if its resources are missing or in use: the run may be older than a change of the cluster.
        """
        job = self.queue.find(event.job)
        placement = event.allocation.placement
        if job is None or not self.availability.exists(placement) or self.free.take(placement) is not None:
            return False
        self.queue.adopt(job)
        self.running.adopt(job, event, self.now)
        return True

    def _finish_stop(self, event: RunStopped) -> Order | None:
        reshape = self.running.end(event.job, self.now)
        self.running.note_saved(event, self.now)
        if event.job in self.running.cancelled:
            self._end_active_job(event.job)
        elif reshape is None or event.job in self.queue.hold_pending or not self._take(reshape.allocation):
            self.queue.requeue(self.running.jobs.pop(event.job), self.now)
        else:
            job = self.running.jobs[event.job]
            return self.running.begin(job, reshape.allocation, self.now, reshape.profiling)
        return None

    def _take(self, allocation: Allocation) -> bool:
        """Take the resources of an allocation if they are free; return whether they were."""
        return self.free.take(allocation.placement) is None

    def _fail(self, event: RunFailed) -> None:
        self.running.end(event.job, self.now)
        if event.retry and event.job not in self.running.cancelled:
            self.running.note_saved(event, self.now)
            self.queue.requeue(self.running.jobs.pop(event.job), self.now)
        else:
            self._end_active_job(event.job)

    def _cancel(self, event: JobCancelled) -> Order | None:
        run = self.running.runs.get(event.job)
        if run is not None:
            self.running.cancelled.add(event.job)
            return None if run.stopping else self.running.stop(event.job, "cancelled", self.now)
        job = self.queue.remove(event.job)
        if job is None:
            self._count_late(event)
        else:
            del self.running.progress[event.job]
            self.queue.end(job)
        return None

    def _end_active_job(self, job_id: str) -> None:
        self.queue.end(self.running.end_job(job_id))
