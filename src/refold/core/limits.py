"""GPU limits of tenants: jobs beyond the limit are hidden from the policy until other jobs of the tenant end.

All admitted jobs of a tenant may run at once, in any allocation that `check` accepts. The sum of the maximum
allocations of the admitted jobs is at most the limit, so the running jobs never exceed it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge

from refold.model import WHOLE, Cluster, Job, Milli, milli_from_number

_Position = tuple[int, int]
"""The position in the queue: negative priority, then order of arrival."""

_QueueEntry = tuple[_Position, Job]


class TenantAdmission:
    """Admits the jobs of tenants that have a limit; the jobs of other tenants are always admitted."""

    def __init__(self, cluster: Cluster) -> None:
        limits = {tenant.name: milli_from_number(tenant.limit_gpus) for tenant in cluster.tenants if tenant.limit_gpus}
        self._by_tenant = {tenant: _TenantUsage(limit) for tenant, limit in limits.items()}
        self._arrivals = 0

    def admit(self, job: Job) -> bool:
        """Return whether a new job may be scheduled now. If not, it is queued, unless it alone exceeds the limit."""
        usage = self._by_tenant.get(job.tenant)
        if usage is None:
            return True
        if usage.max_use(job) > usage.limit:
            return False  # it can never be admitted, so it must not block others in the queue
        if not usage.queue and usage.fits(job):
            usage.admit(job)
            return True
        self._arrivals += 1
        usage.enqueue(job, (-job.priority, self._arrivals))
        return False

    def release(self, job: Job) -> list[Job]:
        """Release the usage of a job that has ended or is held. Returns the jobs that are admitted in its place."""
        usage = self._by_tenant.get(job.tenant)
        if usage is None:
            return []
        usage.remove(job)
        admitted: list[Job] = []
        while usage.queue and usage.fits(usage.queue[0][1]):
            first = usage.queue[0][1]
            usage.remove(first)
            usage.admit(first)
            admitted.append(first)
        return admitted

    def force(self, job: Job) -> None:
        """Count the usage of a job that runs without having been admitted: it started before the limit was set."""
        usage = self._by_tenant.get(job.tenant)
        if usage is not None:
            usage.remove(job)
            usage.admit(job)

    def max_gpu_milli(self, job: Job) -> Milli | None:
        """Return the largest allocation that an admitted job may have; None: its tenant has no limit."""
        usage = self._by_tenant.get(job.tenant)
        return None if usage is None else usage.max_use(job)

    def queued(self) -> Iterator[Job]:
        """Return the jobs that wait for admission, for each tenant in the order of admission."""
        return (job for _, job in merge(*(usage.queue for usage in self._by_tenant.values()), key=_position))


class _TenantUsage:
    """The admitted and the queued jobs of one tenant. The queue is sorted, and searched by bisection."""

    def __init__(self, limit: Milli) -> None:
        self.limit = limit
        self.queue: list[_QueueEntry] = []
        self._positions: dict[str, _Position] = {}
        self._admitted: dict[str, Milli] = {}
        self._used: Milli = 0

    def fits(self, job: Job) -> bool:
        return self._used + self.max_use(job) <= self.limit

    def admit(self, job: Job) -> None:
        self._admitted[job.id] = self.max_use(job)
        self._used += self._admitted[job.id]

    def enqueue(self, job: Job, position: _Position) -> None:
        self._positions[job.id] = position
        insort(self.queue, (position, job), key=_position)

    def remove(self, job: Job) -> None:
        """Remove a job, whether it is admitted, queued or neither."""
        self._used -= self._admitted.pop(job.id, 0)
        position = self._positions.pop(job.id, None)
        if position is not None:
            del self.queue[bisect_left(self.queue, position, key=_position)]

    def max_use(self, job: Job) -> Milli:
        """Return the largest allocation of a job: a reshapable one may grow up to its range or to the limit."""
        requested = job.demand.total_gpu_milli
        if not job.reshapable:
            return requested
        largest = self.limit if job.gpu_range is None else min(self.limit, job.gpu_range[1] * WHOLE)
        return max(requested, largest)


def _position(entry: _QueueEntry) -> _Position:
    return entry[0]
