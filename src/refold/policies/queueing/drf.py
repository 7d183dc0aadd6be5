"""Dominant resource fairness (NSDI'11): the tenant with the smallest dominant share is served next."""

from __future__ import annotations

from refold.core import View
from refold.model import KEEP, WHOLE, Allocation, Cluster, Decision, Job, Run, Start
from refold.packing import Placer
from refold.policies.common import QueueByDemand, Reasons


class Drf:
    """Tenants take turns by dominant share: the largest of their shares of all GPUs, CPUs and memory.

    Inside a tenant the order is that of arrival; a job that has no place is passed over. Nothing is stopped.
    """

    name = "drf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._placer = Placer(placement, seed)
        self._tenants: dict[str, _Tenant] = {}
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Serve the poorest tenant that has a job with a place, until there is none."""
        self._placer.observe(view)
        self._update(view)
        if not view.waiting:
            self._reasons.nobody_waits()
            return KEEP
        starts: list[Start] = []
        hungry = {name: tenant for name, tenant in self._tenants.items() if tenant.lines.first(view) is not None}
        while hungry:
            name = min(hungry, key=lambda name: (hungry[name].dominant_share(view.cluster), name))
            tenant = hungry[name]
            job = tenant.lines.first(view)
            if job is None:
                del hungry[name]
                continue
            placement = view.trial().place(self._placer, job.demand)
            if placement is None:
                tenant.lines.close(job)
                self._reasons.no_place(view, job)
                continue
            tenant.lines.remove_first(job)
            tenant.take(job)
            starts.append(Start(job.id, Allocation(placement)))
        waits = self._reasons.collect(view, starts)
        return Decision(starts=tuple(starts), waits=waits) if starts or waits else KEEP

    def _update(self, view: View) -> None:
        changes = view.changes
        for tenant in self._tenants.values():
            for run in changes.ended:
                tenant.give_back(run)
            tenant.lines.reopen(view)
        for run in changes.started:
            present = view.runs.get(run.job)
            if present is not None and present.number == run.number:
                self._tenant(view.active[run.job]).note(run)
        for job in changes.returned:
            self._tenant(job).lines.add(job, returned=True)
        for job in changes.submitted:
            self._tenant(job).lines.add(job)

    def _tenant(self, job: Job) -> _Tenant:
        return self._tenants.setdefault(job.tenant, _Tenant())


class _Tenant:
    """A tenant's waiting jobs, and what its runs hold."""

    def __init__(self) -> None:
        self.lines = QueueByDemand(lambda job: job.submitted)
        self._running: set[str] = set()
        self._gpu_milli = 0
        self._cpu_milli = 0
        self._memory_mib = 0

    def take(self, job: Job) -> None:
        demand = job.demand
        self._running.add(job.id)
        self._gpu_milli += demand.instances * demand.gpus * demand.gpu_milli
        self._cpu_milli += demand.instances * demand.cpu_milli
        self._memory_mib += demand.instances * demand.memory_mib

    def note(self, run: Run) -> None:
        """A run that nobody here has started holds something as well."""
        if run.job not in self._running:
            self._running.add(run.job)
            self._hold(run, 1)

    def give_back(self, run: Run) -> None:
        if run.job not in self._running:
            return
        self._running.remove(run.job)
        self._hold(run, -1)

    def _hold(self, run: Run, sign: int) -> None:
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
