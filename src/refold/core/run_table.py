# cython: boundscheck=True, wraparound=True
"""Jobs with a run: their runs, their progress, and what they hold."""

from __future__ import annotations

from math import inf

import cython
from msgspec.structs import replace

from refold.core.events import ChangeMeasured, JobContinued, RunAdopted, RunFailed, RunProgressed, RunStopped
from refold.core.measurements import Measurements
from refold.core.orders import StartRun, StopRun
from refold.core.usage import TenantUser
from refold.model import (
    WHOLE,
    Allocation,
    Cluster,
    Job,
    NodeSet,
    Placement,
    Plan,
    Reshape,
    Run,
    Seconds,
    measured_shape,
    run_plan,
)

if not cython.compiled:
    from refold.core.changes import Changes, JobProgress
    from refold.core.usage import Usage
    from refold.placement import FreeResources


class RunTable:
    """The current run of each active job, and the progress of all jobs that have not ended."""

    def __init__(self, cluster: Cluster, free: FreeResources, changes: Changes) -> None:
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, Run] = {}
        self.progress: dict[str, JobProgress] = {}
        self.stopping: dict[str, None] = {}
        """Jobs whose runs have been ordered to stop; a dictionary, to keep their order."""
        self.cancelled: set[str] = set()
        """Jobs that are not queued again when their runs have stopped."""
        self._with_change_limit: set[str] = set()
        """Jobs with a run that may be changed only so often."""
        self._reshape_holdings: dict[str, Placement] = {}
        self._reshapes: dict[str, Reshape] = {}
        """What runs that are being reshaped will become."""
        self.measurements = Measurements()
        self.usage = Usage()
        self._cluster = cluster
        self._free = free
        self._changes = changes

    def held_by(self, job_id: str) -> Placement:
        """Return the resources that an active job holds now."""
        return (self._reshape_holdings and self._reshape_holdings.get(job_id)) or self.runs[job_id].allocation.placement

    def next_allocation(self, job_id: str) -> Allocation | None:
        reshape = self._reshapes.get(job_id)
        return None if reshape is None else reshape.allocation

    # Runs.

    def is_profiling(self, job_id: str, now: Seconds) -> bool:
        """Return whether the run of a job, or the next one if it is being reshaped, serves to measure its speed."""
        run, reshape = self.runs[job_id], self._reshapes.get(job_id)
        if reshape is not None:
            return reshape.profiling > 0
        return not run.stopping and now < run.since + run.profiling

    def begin(self, job: Job, allocation: Allocation, now: Seconds, profiling: Seconds = 0.0) -> StartRun:
        if profiling:
            self._charge_profiling(job, allocation, profiling)
        return self._begin(job, allocation, now, now, profiling)

    def adopt(self, job: Job, event: RunAdopted, now: Seconds) -> None:
        """Begin with a run that was already in progress when the journal began."""
        self.progress[job.id].runs = event.run - 1
        self._begin(job, event.allocation, now, event.since, event.profiling)

    def _begin(self, job: Job, allocation: Allocation, now: Seconds, since: Seconds, profiling: Seconds) -> StartRun:
        progress = self.progress[job.id]
        progress.runs += 1
        progress.computing_since = now
        progress.reported_start = False
        progress.samples_per_second = progress.first_report = None
        run = Run(job.id, progress.runs, allocation, since, False, profiling)
        self.jobs[job.id] = job
        self.runs[job.id] = run
        if job.change_limit is not None:
            self._with_change_limit.add(job.id)
        self._changes.started.append(run)
        return StartRun(job.id, run.number, allocation)

    def allow_nodes(self, job_id: str, nodes: NodeSet | None) -> bool:
        """Limit the next run of an active job to some nodes; return whether that changes the job."""
        job = self.jobs.get(job_id)
        if job is None or job.demand.allowed_nodes == nodes:
            return False
        self.jobs[job_id] = replace(job, demand=replace(job.demand, allowed_nodes=nodes))
        self._changes.progressed.append(self.runs[job_id])
        return True

    def stop(self, job_id: str, why: str, now: Seconds, next_allocation: Allocation | None = None) -> StopRun:
        """Stop a run. It holds its resources until its end is reported."""
        run, progress = self.runs[job_id], self.progress[job_id]
        self.stopping[job_id] = None
        self.runs[job_id] = Run(run.job, run.number, run.allocation, run.since, True, run.profiling)
        if progress.computing_since is not None:
            progress.done += now - progress.computing_since
            progress.computing_since = None
        return StopRun(job_id, run.number, why, next_allocation)

    def preempt(self, job_id: str, why: str, now: Seconds, next_allocation: Allocation | None = None) -> StopRun:
        """Stop a run because the policy decides so."""
        progress = self.progress[job_id]
        progress.changes += 1
        progress.changed_at = now
        return self.stop(job_id, why, now, next_allocation)

    def changeable_at(self, job_id: str) -> Seconds:
        """Return from when on the policy may stop or reshape the run of a job; infinity: never."""
        job, progress = self.jobs[job_id], self.progress[job_id]
        if not job.preemptible:
            return inf
        limit = job.change_limit
        if limit is None:
            return -inf
        is_used_up = limit.at_most is not None and progress.changes >= limit.at_most
        return inf if is_used_up else progress.changed_at + limit.every

    def next_changeable_at(self, now: Seconds) -> Seconds:
        """Return when the next run becomes changeable that now is not; infinity: none does."""
        moments = map(self.changeable_at, self._with_change_limit)
        return min((moment for moment in moments if moment > now), default=inf)

    def stop_for_good(self, job_id: str, why: str, now: Seconds) -> StopRun:
        """Stop a run; its job is not queued again."""
        self.cancelled.add(job_id)
        return self.stop(job_id, why, now)

    def reshape(self, reshape: Reshape, holding: Placement, now: Seconds) -> StopRun:
        """Stop a run, to start its job on another allocation at once. Until then the job holds both (`holding`)."""
        job_id = reshape.job
        self._reshape_holdings[job_id] = holding
        self._reshapes[job_id] = reshape
        return self.preempt(job_id, reshape.why, now, reshape.allocation)

    def end(self, job_id: str, now: Seconds) -> Reshape | None:
        """Release what a run holds that has ended; return what it becomes if it is being reshaped."""
        reshape = None
        self._free.release(self.held_by(job_id))
        if self._reshape_holdings:
            self._reshape_holdings.pop(job_id, None)
            reshape = self._reshapes.pop(job_id, None)
        run = self.runs.pop(job_id)
        self.stopping.pop(job_id, None)
        self._with_change_limit.discard(job_id)
        progress = self.progress[job_id]
        progress.computing_since = None
        job, gpus = self.jobs[job_id], run.allocation.gpu_milli / WHOLE
        gpu_seconds = (now - run.since) * gpus
        progress.gpu_seconds += gpu_seconds
        self.measurements.used_gpu_seconds += gpu_seconds
        self.usage.add_run(TenantUser(job.tenant, job.user), gpus, run.since, now)
        if run.profiling > now - run.since:
            self._charge_profiling(job, run.allocation, now - run.since - run.profiling)
        self._changes.ended.append(run)
        return reshape

    def _charge_profiling(self, job: Job, allocation: Allocation, seconds: Seconds) -> None:
        gpu_type = self._cluster.nodes[allocation.placement[0].node].gpu_type
        self.measurements.charge_profiling(job.workload, gpu_type, allocation.gpu_milli / WHOLE, seconds)

    def end_job(self, job_id: str) -> Job:
        """Forget an active job that has ended; return it."""
        self.cancelled.discard(job_id)
        del self.progress[job_id]
        return self.jobs.pop(job_id)

    # JobProgress.

    def note_started(self, job_id: str, now: Seconds) -> bool:
        """Note that the current run computes; return whether that is new."""
        progress = self.progress[job_id]
        if progress.reported_start:
            return False
        progress.reported_start = True
        self._resume_computing(progress, self.runs[job_id], now)
        return True

    def note_progress(self, event: RunProgressed, now: Seconds) -> bool:
        """Note the progress of the current run; return whether there is any."""
        progress, done, steps = self.progress[event.job], event.done, event.steps
        if done <= progress.done and (steps is None or steps <= progress.steps):
            return False
        if done > progress.done:
            progress.done = done
        elif progress.computing_since is not None:  # only steps were reported: the estimated work up to now is kept
            progress.done += now - progress.computing_since
        progress.record_steps(steps, now)
        if event.loss is not None:
            progress.loss = event.loss
        if event.plan is not None:
            self._replace_plan(self.runs[event.job], event.plan)
        if event.samples_per_second is not None:
            self._note_speed(event, event.samples_per_second, now)
        self._resume_computing(progress, self.runs[event.job], now)
        return True

    def _replace_plan(self, run: Run, plan: Plan) -> None:
        """Note that a run uses another plan than that of its allocation, which jobs like it cannot use."""
        job, allocation = self.jobs[run.job], Allocation(run.allocation.placement, plan)
        ordered = run_plan(job, run.allocation)
        if ordered is None or ordered == plan:
            return
        if job.workload:
            self.measurements.note_unusable(measured_shape(job, run.allocation, self._cluster))
        self.runs[run.job] = Run(run.job, run.number, allocation, run.since, run.stopping, run.profiling)

    def _note_speed(self, event: RunProgressed, samples_per_second: float, now: Seconds) -> None:
        """Note the speed of a run. If the batch size is unknown, steps are counted from the first report on."""
        job, progress = self.jobs[event.job], self.progress[event.job]
        progress.samples_per_second = samples_per_second
        first_steps, first_at = progress.first_report = progress.first_report or (progress.steps, now)
        if job.batch:
            speed = samples_per_second / job.batch
        else:
            speed = (progress.steps - first_steps) / (now - first_at) if now > first_at else 0.0
        if speed > 0 and job.workload:
            shape = measured_shape(job, self.runs[event.job].allocation, self._cluster)
            self.measurements.note_speed(shape, speed)

    def note_change(self, event: ChangeMeasured) -> None:
        """Note what the change with which the current run began has cost."""
        self.progress[event.job].change_costs[event.way] = event.seconds
        self.measurements.note_change(self.jobs[event.job], event)

    def note_saved(self, event: RunStopped | RunFailed, now: Seconds) -> None:
        """Note the progress from which the next run will resume."""
        progress = self.progress[event.job]
        progress.done = event.done
        progress.record_steps(event.steps, now)

    def restore(self, event: JobContinued, now: Seconds) -> bool:
        """Restore the progress of a job from before the journal began; return whether it had none yet."""
        progress = self.progress.get(event.job)
        if progress is None or progress.runs:
            return False
        progress.runs, progress.done, progress.gpu_seconds = event.runs, event.done, event.gpu_seconds
        progress.change_costs = dict(event.change_costs)
        if event.changes:
            progress.changes, progress.changed_at = event.changes, event.changed_at
        progress.record_steps(event.steps or None, now)
        return True

    def _resume_computing(self, progress: JobProgress, run: Run, now: Seconds) -> None:
        """Count work from now on, unless the run is stopping."""
        if not run.stopping:
            progress.computing_since = now
            self._changes.progressed.append(run)
