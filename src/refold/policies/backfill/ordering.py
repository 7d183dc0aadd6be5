"""Queue orders for backfill. In each of them, jobs of higher priority come first."""

from __future__ import annotations

from math import log
from typing import Any, Literal, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import DAY, MINUTE, WHOLE, Job, Seconds

OrderName = Literal["arrival", "fair-share", "shortest", "attained"]

USAGE_HALF_LIFE: Seconds = DAY
"""GPU time used this long ago counts half."""

RESORT_INTERVAL: Seconds = 5 * MINUTE
"""Time between updates of the fair-share order."""

MISSING_QUOTA_GPUS = 1e-3
"""Quota that a tenant without one is compared with."""


class Ordering:
    """Sort keys of waiting jobs: by arrival, duration, attained service, or recent usage of their tenant."""

    def __init__(self, order: OrderName = "arrival") -> None:
        if order not in get_args(OrderName):
            raise BadValue(f"order is {order!r}, expected one of {', '.join(get_args(OrderName))}")
        self._order = order
        self._usage = _Usage()
        self._resorted_at: Seconds = 0.0

    def key(self, view: View, job: Job, duration: Seconds) -> tuple[Any, ...]:
        """Return the sort key of a waiting job; lower is earlier."""
        match self._order:
            case "arrival":
                return -job.priority, job.submitted
            case "shortest":
                return -job.priority, duration
            case "attained":
                return -job.priority, view.gpu_seconds(job.id), job.submitted
            case "fair-share":
                return -job.priority, self._usage.for_tenant(view, job.tenant), job.submitted

    def observe(self, view: View) -> bool:
        """Update the usage of tenants; return whether all keys have to be computed again."""
        if self._order != "fair-share":
            return False
        self._usage.observe(view)
        if view.now < self._resorted_at + RESORT_INTERVAL:
            return False
        self._resorted_at = view.now
        return True


class _Usage:
    """GPU-seconds used per tenant, with exponential decay; per GPU of quota if the cluster has quotas."""

    def __init__(self) -> None:
        self._now: Seconds = 0.0
        self._used: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._tenant_of: dict[str, str] = {}

    def observe(self, view: View) -> None:
        decay = 0.5 ** ((view.now - self._now) / USAGE_HALF_LIFE)
        for tenant, held in self._held.items():
            grown = held / WHOLE * (1.0 - decay) * USAGE_HALF_LIFE / log(2.0)
            self._used[tenant] = self._used.get(tenant, 0.0) * decay + grown
        self._now = view.now
        for run in view.changes.started:
            tenant, held = self._tenant(view, run.job), run.allocation.gpu_milli
            decay = 0.5 ** ((view.now - run.since) / USAGE_HALF_LIFE)  # it may have started before this round
            self._used[tenant] = self._used.get(tenant, 0.0) + held / WHOLE * (1.0 - decay) * USAGE_HALF_LIFE / log(2.0)
            self._held[tenant] = self._held.get(tenant, 0) + held
        for run in view.changes.ended:
            self._held[self._tenant_of[run.job]] -= run.allocation.gpu_milli
            if run.job not in view.waiting and run.job not in view.active:
                del self._tenant_of[run.job]
        for job_id in view.changes.removed:
            self._tenant_of.pop(job_id, None)
        for job in view.changes.submitted:
            self._tenant_of[job.id] = job.tenant

    def _tenant(self, view: View, job_id: str) -> str:
        """Return the tenant of a job, also of one that was running before the first call of `observe`."""
        if job_id not in self._tenant_of:
            self._tenant_of[job_id] = view.active[job_id].tenant
        return self._tenant_of[job_id]

    def for_tenant(self, view: View, tenant: str) -> float:
        quota = view.cluster.quota_gpus(tenant) if view.cluster.tenants else 1.0
        return self._used.get(tenant, 0.0) / (quota or MISSING_QUOTA_GPUS)
