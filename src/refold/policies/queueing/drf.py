"""Dominant resource fairness (NSDI'11): serve the tenant with the smallest dominant share next."""

from __future__ import annotations

from refold.core import View
from refold.model import NO_CHANGE, WHOLE, Allocation, Cluster, Decision, Job, Run, Start
from refold.placement import Placer
from refold.policies.common import QueueByDemand, Reasons
from refold.policies.queueing.queue import arrival_order


class Drf:
    """Serve tenants in order of dominant share, the largest of their shares of all GPUs, CPUs and memory.

    Jobs of one tenant start in order of priority, then of arrival; jobs that do not fit are skipped. Nothing is
    preempted.
    """

    name = "drf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._placer = Placer(placement, seed)
        self._tenants: dict[str, _Tenant] = {}
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Repeatedly serve the tenant with the smallest dominant share among those with a job that may fit."""
        self._placer.observe(view)
        self._update(view)
        if not view.waiting:
            self._reasons.clear()
            return NO_CHANGE
        starts: list[Start] = []
        candidates = {name: tenant for name, tenant in self._tenants.items() if tenant.queue.first(view) is not None}
        while candidates:
            name = min(candidates, key=lambda name: (candidates[name].dominant_share(view.cluster), name))
            tenant = candidates[name]
            job = tenant.queue.first(view)
            if job is None:
                del candidates[name]
                continue
            placement = view.trial().place(self._placer, job.demand)
            if placement is None:
                tenant.queue.close_for(job)
                self._reasons.note_resources(view, job)
                continue
            tenant.queue.remove_first(job)
            tenant.add_start(job)
            starts.append(Start(job.id, Allocation(placement)))
        waits = self._reasons.collect(view, starts)
        return Decision(starts=tuple(starts), waits=waits) if starts or waits else NO_CHANGE

    def _update(self, view: View) -> None:
        changes = view.changes
        for tenant in self._tenants.values():
            for run in changes.ended:
                tenant.release(run)
            tenant.queue.reopen_if_freed(view)
        for run in changes.started:
            current = view.runs.get(run.job)
            if current is not None and current.number == run.number:
                self._tenant(view.active[run.job]).add_run(run)
        for job in changes.requeued:
            self._tenant(job).queue.add(job, requeued=True)
        for job in changes.submitted:
            self._tenant(job).queue.add(job)

    def _tenant(self, job: Job) -> _Tenant:
        return self._tenants.setdefault(job.tenant, _Tenant())


class _Tenant:
    """A tenant's waiting jobs, and the resources that its runs hold."""

    def __init__(self) -> None:
        self.queue = QueueByDemand(arrival_order)
        self._running: set[str] = set()
        self._gpu_milli = 0
        self._cpu_milli = 0
        self._memory_mib = 0

    def add_start(self, job: Job) -> None:
        demand = job.demand
        self._running.add(job.id)
        self._gpu_milli += demand.instances * demand.gpus * demand.gpu_milli
        self._cpu_milli += demand.instances * demand.cpu_milli
        self._memory_mib += demand.instances * demand.memory_mib

    def add_run(self, run: Run) -> None:
        """Count a run that this policy did not start, such as one from before a change of policy."""
        if run.job not in self._running:
            self._running.add(run.job)
            self._count(run, 1)

    def release(self, run: Run) -> None:
        if run.job not in self._running:
            return
        self._running.remove(run.job)
        self._count(run, -1)

    def _count(self, run: Run, sign: int) -> None:
        for share in run.allocation.placement:
            self._gpu_milli += sign * len(share.gpus) * share.gpu_milli
            self._cpu_milli += sign * share.cpu_milli
            self._memory_mib += sign * share.memory_mib

    def dominant_share(self, cluster: Cluster) -> float:
        return max(
            self._gpu_milli / max(1, cluster.gpus * WHOLE),
            self._cpu_milli / cluster.cpu_milli if cluster.cpus_known and cluster.cpu_milli else 0.0,
            self._memory_mib / cluster.memory_mib if cluster.memory_known and cluster.memory_mib else 0.0,
        )
