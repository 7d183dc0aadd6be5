"""Whose turn it is: the orders that a queue can have. Jobs of higher priority always go first."""

from __future__ import annotations

from math import log
from typing import Any, Literal, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import DAY, MINUTE, WHOLE, Job, Seconds

OrderName = Literal["arrival", "fair-share", "shortest", "attained"]

HALF_LIFE: Seconds = DAY
"""GPU time that was used so long ago counts half."""

RENEWED_EVERY: Seconds = 5 * MINUTE
"""How often the shares of tenants are compared anew."""


LITTLE = 1e-3
"""GPUs: the quota that a tenant without one is compared with."""


class Ordering:
    """Who goes first: whoever came first, is shortest, has attained least, or whose tenant has used least."""

    def __init__(self, order: OrderName = "arrival") -> None:
        if order not in get_args(OrderName):
            raise BadValue(f"order is {order!r}, expected one of {', '.join(get_args(OrderName))}")
        self._order = order
        self._usage = _Usage()
        self._renewed: Seconds = 0.0

    def key(self, view: View, job: Job, likely: Seconds) -> tuple[Any, ...]:
        """Where a waiting job stands; lower is earlier."""
        match self._order:
            case "arrival":
                return -job.priority, job.submitted
            case "shortest":
                return -job.priority, likely
            case "attained":
                return -job.priority, view.gpu_seconds(job.id), job.submitted
            case "fair-share":
                return -job.priority, self._usage.of(view, job.tenant), job.submitted

    def observe(self, view: View) -> bool:
        """Count what is used; whether everybody's turn has to be looked at again."""
        if self._order != "fair-share":
            return False
        self._usage.observe(view)
        if view.now < self._renewed + RENEWED_EVERY:
            return False
        self._renewed = view.now
        return True


class _Usage:
    """GPU-seconds that tenants have used, those of long ago counted less; per GPU of quota, where there are quotas."""

    def __init__(self) -> None:
        self._now: Seconds = 0.0
        self._used: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._tenant_of: dict[str, str] = {}

    def observe(self, view: View) -> None:
        kept = 0.5 ** (max(view.now - self._now, 0.0) / HALF_LIFE)
        for tenant, held in self._held.items():
            grown = held / WHOLE * (1.0 - kept) * HALF_LIFE / log(2.0)
            self._used[tenant] = self._used.get(tenant, 0.0) * kept + grown
        self._now = view.now
        for run in view.changes.started:
            tenant, held = self._tenant(view, run.job), run.allocation.gpu_milli
            kept = 0.5 ** ((view.now - run.since) / HALF_LIFE)  # it began when this was last looked at
            self._used[tenant] = self._used.get(tenant, 0.0) + held / WHOLE * (1.0 - kept) * HALF_LIFE / log(2.0)
            self._held[tenant] = self._held.get(tenant, 0) + held
        for run in view.changes.ended:
            self._held[self._tenant_of[run.job]] -= run.allocation.gpu_milli
            if run.job not in view.waiting and run.job not in view.active:
                del self._tenant_of[run.job]
        for job_id in view.changes.gone:
            self._tenant_of.pop(job_id, None)
        for job in view.changes.submitted:
            self._tenant_of[job.id] = job.tenant

    def _tenant(self, view: View, job_id: str) -> str:
        """Whose job it is, also of one that was there before this began to look."""
        if job_id not in self._tenant_of:
            self._tenant_of[job_id] = view.active[job_id].tenant
        return self._tenant_of[job_id]

    def of(self, view: View, tenant: str) -> float:
        quota = view.cluster.quota_gpus(tenant) if view.cluster.tenants else 1.0
        return self._used.get(tenant, 0.0) / (quota or LITTLE)
