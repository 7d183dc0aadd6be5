"""How many GPUs a tenant may use at most. Jobs beyond that are kept from the policy until others of theirs are over.

What is let in may all run at once, in any shape that `check` lets a policy give it: so what runs never exceeds a limit.
"""

from __future__ import annotations

from bisect import insort

from refold.model import Cluster, Job
from refold.model.units import WHOLE, Milli, milli_from_number


class Limits:
    """Of every tenant with a limit: what has been let in, and who waits for that, by priority and then by arrival."""

    def __init__(self, cluster: Cluster) -> None:
        self._most = {
            tenant.name: milli_from_number(tenant.limit_gpus) for tenant in cluster.tenants if tenant.limit_gpus
        }
        self._let_in: dict[str, dict[str, Milli]] = {tenant: {} for tenant in self._most}
        self._outside: dict[str, list[tuple[int, int, Job]]] = {tenant: [] for tenant in self._most}
        self._arrivals = 0

    def lets_in(self, job: Job) -> bool:
        """Whether a job that has come may be looked at now; else it is remembered."""
        most = self._most.get(job.tenant)
        if most is None:
            return True
        if self._may_use(job, most) > most:
            return False  # there will never be room for it, so nobody waits behind it
        if not self._outside[job.tenant] and self._has_room(job, most):
            self._let_in[job.tenant][job.id] = self._may_use(job, most)
            return True
        self._arrivals += 1
        insort(self._outside[job.tenant], (-job.priority, self._arrivals, job), key=lambda kept: kept[:2])
        return False

    def leaves(self, job: Job) -> list[Job]:
        """A job is over, or nobody is to look at it any more. Returns those that are let in instead."""
        most = self._most.get(job.tenant)
        if most is None:
            return []
        self._let_in[job.tenant].pop(job.id, None)
        outside = self._without(job)
        admitted: list[Job] = []
        while outside and self._has_room(outside[0][2], most):
            first = outside.pop(0)[2]
            self._let_in[job.tenant][first.id] = self._may_use(first, most)
            admitted.append(first)
        return admitted

    def counts(self, job: Job) -> None:
        """A job that was not let in runs already, since there was no such limit then: it counts like the others."""
        most = self._most.get(job.tenant)
        if most is not None:
            self._without(job)
            self._let_in[job.tenant][job.id] = self._may_use(job, most)

    def _without(self, job: Job) -> list[tuple[int, int, Job]]:
        outside = self._outside[job.tenant]
        outside[:] = [kept for kept in outside if kept[2].id != job.id]
        return outside

    def share_of(self, job: Job) -> Milli | None:
        """The most that a job which was let in may have, whatever its shape; None: its tenant has no limit."""
        most = self._most.get(job.tenant)
        return None if most is None else self._may_use(job, most)

    def first_come(self, job: Job) -> tuple[int, int]:
        """Sorts those that wait to be let in, of each tenant, as they will be."""
        return next((kept[:2] for kept in self._outside.get(job.tenant, ()) if kept[2].id == job.id), (0, 0))

    def _has_room(self, job: Job, most: Milli) -> bool:
        return sum(self._let_in[job.tenant].values()) + self._may_use(job, most) <= most

    @staticmethod
    def _may_use(job: Job, most: Milli) -> Milli:
        """What a job may come to use: one that may grow, as much as its tenant may, or as it can make use of."""
        asked = job.demand.total_gpu_milli
        if not job.reshapable:
            return asked
        largest = most if job.gpu_range is None else min(most, job.gpu_range[1] * WHOLE)
        return max(asked, largest)
