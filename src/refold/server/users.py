"""Status of users as the API reports it: their jobs, what they have used, and how that affects their jobs."""

from __future__ import annotations

from refold.client.api import UserStatus
from refold.core import Header, TenantUser, View
from refold.model import DAY, HOUR, WHOLE
from refold.policies.common import FairShare
from refold.simulator import default_settings

HALF_LIFE = 7 * DAY
"""Half-life of what users have used, if the policy has none."""


def user_statuses(view: View, header: Header) -> list[UserStatus]:
    """Return every user that has jobs or has used GPU time; only those with jobs have a share and a weight."""
    settings = {**default_settings(header.policy), **header.settings}
    half_life = settings.get("fair_share_half_life", HALF_LIFE)
    strength = settings.get("fair_share", 0.0)
    running: dict[TenantUser, list[float]] = {}
    waiting: dict[TenantUser, list[float]] = {}
    for run in view.runs.values():
        job = view.active[run.job]
        running.setdefault(TenantUser(job.tenant, job.user), []).append(run.allocation.gpu_milli / WHOLE)
    for job in (*view.waiting.values(), *view.held.values()):
        waiting.setdefault(TenantUser(job.tenant, job.user), []).append(job.demand.total_gpus)
    used = view.decayed_usage(half_life)
    shares = FairShare(strength, half_life).shares(view, (*view.active.values(), *view.waiting.values()))
    return [
        UserStatus(
            account.user,
            account.tenant,
            len(running.get(account, [])),
            sum(running.get(account, [])),
            len(waiting.get(account, [])),
            sum(waiting.get(account, [])),
            used.get(account, 0.0) / HOUR,
            shares[account].used if account in shares else None,
            shares[account].share if account in shares else None,
            shares[account].weight if account in shares and strength else None,
        )
        for account in sorted({*running, *waiting, *used})
    ]
