"""How many GPUs a tenant may use at most. Jobs beyond that are kept from the policy until others of theirs are over.

What is let in may all run at once, in any shape that `check` lets a policy give it: so what runs never exceeds a limit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge

from refold.model import WHOLE, Cluster, Job, Milli, milli_from_number

_Turn = tuple[int, int]
"""By priority, and then by arrival."""

_Kept = tuple[_Turn, Job]


class TenantLimits:
    """The tenants that have a limit."""

    def __init__(self, cluster: Cluster) -> None:
        limited = {tenant.name: milli_from_number(tenant.limit_gpus) for tenant in cluster.tenants if tenant.limit_gpus}
        self._of = {tenant: _TenantLimit(most) for tenant, most in limited.items()}
        self._arrivals = 0

    def lets_in(self, job: Job) -> bool:
        """Whether a job that has come may be looked at now; else it is remembered."""
        limit = self._of.get(job.tenant)
        if limit is None:
            return True
        if limit.may_use(job) > limit.most:
            return False  # there will never be room for it, so nobody waits behind it
        if not limit.outside and limit.has_room(job):
            limit.let_in(job)
            return True
        self._arrivals += 1
        limit.keep_out(job, (-job.priority, self._arrivals))
        return False

    def leaves(self, job: Job) -> list[Job]:
        """A job is over, or nobody is to look at it any more. Returns those that are let in instead."""
        limit = self._of.get(job.tenant)
        if limit is None:
            return []
        limit.forget(job)
        admitted: list[Job] = []
        while limit.outside and limit.has_room(limit.outside[0][1]):
            first = limit.outside[0][1]
            limit.forget(first)
            limit.let_in(first)
            admitted.append(first)
        return admitted

    def counts(self, job: Job) -> None:
        """A job that was not let in runs already, since there was no such limit then: it counts like the others."""
        limit = self._of.get(job.tenant)
        if limit is not None:
            limit.forget(job)
            limit.let_in(job)

    def share_of(self, job: Job) -> Milli | None:
        """The most that a job which was let in may have, whatever its shape; None: its tenant has no limit."""
        limit = self._of.get(job.tenant)
        return None if limit is None else limit.may_use(job)

    def outside(self) -> Iterator[Job]:
        """Those that wait to be let in, of each tenant in the order in which they will be."""
        return (job for _, job in merge(*(limit.outside for limit in self._of.values()), key=_turn))


class _TenantLimit:
    """Of one tenant: what has been let in, and who waits for that. What each costs does not grow with how many wait."""

    def __init__(self, most: Milli) -> None:
        self.most = most
        self.outside: list[_Kept] = []
        self._turns: dict[str, _Turn] = {}
        self._let_in: dict[str, Milli] = {}
        self._used: Milli = 0

    def has_room(self, job: Job) -> bool:
        return self._used + self.may_use(job) <= self.most

    def let_in(self, job: Job) -> None:
        self._let_in[job.id] = self.may_use(job)
        self._used += self._let_in[job.id]

    def keep_out(self, job: Job, turn: _Turn) -> None:
        self._turns[job.id] = turn
        insort(self.outside, (turn, job), key=_turn)

    def forget(self, job: Job) -> None:
        """Wherever it is: it is neither let in nor waits for that."""
        self._used -= self._let_in.pop(job.id, 0)
        turn = self._turns.pop(job.id, None)
        if turn is not None:
            del self.outside[bisect_left(self.outside, turn, key=_turn)]

    def may_use(self, job: Job) -> Milli:
        """What a job may come to use: one that may grow, as much as its tenant may, or as it can make use of."""
        asked = job.demand.total_gpu_milli
        if not job.reshapable:
            return asked
        largest = self.most if job.gpu_range is None else min(self.most, job.gpu_range[1] * WHOLE)
        return max(asked, largest)


def _turn(kept: _Kept) -> _Turn:
    return kept[0]
