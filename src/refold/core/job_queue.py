# cython: boundscheck=True, wraparound=True
"""Jobs without a run: waiting in the queue, held, or infeasible."""

from __future__ import annotations

from math import inf

import cython
from msgspec.structs import replace

from refold.core.limits import TenantAdmission
from refold.model import Cluster, Decision, Job, MiB, NodeSet, Reason, Seconds, StartEstimate, Wait

if not cython.compiled:
    from refold.core.changes import Changes
    from refold.placement import FreeResources


class JobQueue:
    """The queue, with the reasons and start estimates that the policy gave, and the jobs that are hidden from it."""

    def __init__(self, cluster: Cluster, free: FreeResources, changes: Changes) -> None:
        self.waiting: dict[str, Job] = {}
        self.held: dict[str, Job] = {}
        self.hold_reasons: dict[str, Reason] = {}
        self.hold_pending: set[str] = set()
        """Jobs that are held as soon as their runs have stopped."""
        self.infeasible: dict[str, Job] = {}
        self.reasons: dict[str, Wait] = {}
        self.start_estimates: dict[str, StartEstimate] = {}
        self.limits = TenantAdmission(cluster)
        self._relaxed_at: dict[str, Seconds] = {}
        """When jobs without a run do not wait for their required domains any more."""
        self._free = free
        self._changes = changes

    def submit(self, job: Job, now: Seconds) -> None:
        """Queue a new job. One that waits for domains only for some time is changed after that."""
        self.add(self._timed(job, now))

    def next_change(self) -> Seconds:
        """Return when `relax` changes a job the next time; infinity: never."""
        return min(self._relaxed_at.values(), default=inf)

    def relax(self, now: Seconds) -> None:
        """Change the jobs that do not wait for their required domains any more."""
        due = [job_id for job_id, ends in self._relaxed_at.items() if ends <= now]
        for job_id in due:
            del self._relaxed_at[job_id]
            job = self.find(job_id)
            if job is not None:
                self._replace(job, _relaxed(job))

    def add(self, job: Job) -> None:
        """Queue a new job, unless it is infeasible, or its tenant has reached its limit."""
        if self._free.fits_when_empty(job.demand):
            self._enqueue(job)
        else:
            self.infeasible[job.id] = job

    def requeue(self, job: Job, now: Seconds) -> None:
        """Queue a job again whose run has ended, unless it is infeasible now, or to be held."""
        job = self._timed(job, now)
        if job.id in self.hold_pending:
            self.hold_pending.discard(job.id)
            self._set_aside(job, Reason.HELD)
            self._release_usage(job)
        elif self._free.fits_when_empty(job.demand):
            self.waiting[job.id] = job
            self._changes.requeued.append(job)
        else:
            self.infeasible[job.id] = job
            self._release_usage(job)

    def start(self, job_id: str) -> Job:
        self._relaxed_at.pop(job_id, None)
        self.reasons.pop(job_id, None)
        self.start_estimates.pop(job_id, None)
        return self.waiting.pop(job_id)

    def find(self, job_id: str) -> Job | None:
        """Return a job without a run; None if there is none."""
        return self.waiting.get(job_id) or self.held.get(job_id) or self.infeasible.get(job_id)

    def adopt(self, job: Job) -> None:
        """Remove a job whose run was found. A run beyond the limit of its tenant is older than that."""
        if self.waiting.pop(job.id, None) is not None:
            self._note_removed(job)
            return
        if self.infeasible.pop(job.id, None) is None:
            del self.held[job.id], self.hold_reasons[job.id]
        self.limits.force(job)

    def hold(self, job_id: str, reason: Reason) -> bool:
        """Hold a job without a run; return whether there is one."""
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._note_removed(job)
        elif (job := self.held.get(job_id)) is None:
            return False
        self._set_aside(job, reason)
        self._release_usage(job)
        return True

    def release(self, job_id: str) -> bool:
        """Queue a held job, or cancel the hold of one whose run is stopping; return whether there was a hold.

        The limit of a tenant is none.
        """
        if job_id in self.hold_pending:
            self.hold_pending.discard(job_id)
            return True
        if self.hold_reasons.get(job_id) in (None, Reason.LIMIT):
            return False
        del self.hold_reasons[job_id]
        self.add(self.held.pop(job_id))
        return True

    def raise_memory(self, job_id: str, memory_mib: MiB) -> bool:
        """Let a held job request more memory; return whether there is one. The policy sees it when it is released."""
        if self.hold_reasons.get(job_id) in (None, Reason.LIMIT):
            return False
        job = self.held[job_id]
        self.held[job_id] = replace(job, demand=replace(job.demand, memory_mib=memory_mib))
        return True

    def allow_nodes(self, job_id: str, nodes: NodeSet | None) -> bool:
        """Limit a job without a run to some nodes; return whether that changes it. To the policy it is a new one."""
        job = self.find(job_id)
        if job is None or job.demand.allowed_nodes == nodes:
            return False
        self._replace(job, replace(job, demand=replace(job.demand, allowed_nodes=nodes)))
        return True

    def _replace(self, job: Job, changed: Job) -> None:
        job_id = job.id
        if job_id in self.held:
            self.held[job_id] = changed
        elif job_id in self.infeasible:
            del self.infeasible[job_id]
            self.add(changed)
        elif self._free.fits_when_empty(changed.demand):
            self._note_removed(job)
            self.waiting[job_id] = changed
            self._changes.submitted.append(changed)
        else:
            del self.waiting[job_id]
            self._note_removed(job)
            self.infeasible[job_id] = changed
            self._release_usage(changed)

    def remove(self, job_id: str) -> Job | None:
        """Remove and return a job without a run; None if there is none."""
        job = self.waiting.pop(job_id, None)
        if job is not None:
            self._note_removed(job)
            return job
        self.hold_reasons.pop(job_id, None)
        return self.infeasible.pop(job_id, None) or self.held.pop(job_id, None)

    def end(self, job: Job) -> None:
        """Forget a job that has ended, and admit others of its tenant in its place."""
        self._relaxed_at.pop(job.id, None)
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        self.hold_pending.discard(job.id)
        self._release_usage(job)

    def reject(self, decision: Decision) -> None:
        """Report the jobs that a rejected decision would have started as queued again, so that the policy notices."""
        self._changes.requeued += [self.waiting[start.job] for start in decision.starts if start.job in self.waiting]

    def _timed(self, job: Job, now: Seconds) -> Job:
        """Return a job as it is now if it waits for domains only for some time, or as it is afterwards."""
        request = job.demand.topology
        if request is None or request.wait is None:
            return job
        required = replace(job.demand, topology=replace(request, wait=None))
        if now < job.submitted + request.wait and self._free.fits_when_empty(required):
            self._relaxed_at[job.id] = job.submitted + request.wait
            return job
        return _relaxed(job)

    def _enqueue(self, job: Job) -> None:
        """Queue a job, or set it aside if its tenant has reached its limit."""
        if self.limits.admit(job):
            self.waiting[job.id] = job
            self._changes.submitted.append(job)
        else:
            self._set_aside(job, Reason.LIMIT)

    def _set_aside(self, job: Job, reason: Reason) -> None:
        self.held[job.id] = job
        self.hold_reasons[job.id] = reason

    def _release_usage(self, job: Job) -> None:
        """Release the usage of a job within its tenant's limit, and queue the jobs that are admitted in its place.

        One that fits on none of the nodes that it is allowed on now is infeasible, and uses nothing of the limit.
        """
        released = [job]
        while released:
            for entry in self.limits.release(released.pop()):
                admitted = self.held.pop(entry.id)
                del self.hold_reasons[admitted.id]
                if self._free.fits_when_empty(admitted.demand):
                    self.waiting[admitted.id] = admitted
                    self._changes.submitted.append(admitted)
                else:
                    self.infeasible[admitted.id] = admitted
                    released.append(admitted)

    def _note_removed(self, job: Job) -> None:
        """Report to the policy that a job has left the queue, unless the policy has not seen the job yet."""
        self.reasons.pop(job.id, None)
        self.start_estimates.pop(job.id, None)
        for unseen in (self._changes.submitted, self._changes.requeued):
            if job in unseen:
                unseen.remove(job)
                return
        self._changes.removed.append(job.id)


def _relaxed(job: Job) -> Job:
    """Return a job that prefers the domains that it required."""
    request = job.demand.topology
    return job if request is None else replace(job, demand=replace(job.demand, topology=request.relaxed()))
