"""Fair share over time: the jobs of users and tenants that have used less than their share have more weight.

The usage of a user is the GPU time of all runs, of which that used one half-life ago counts half. As in Slurm's
multifactor priority plugin, what counts is usage relative to the share: tenants have shares in proportion to their
quotas, or equal ones without quotas, and the users of a tenant have equal shares of its own. Only users that have jobs
at present compete, so only they have shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

from refold.core import TenantUser, View
from refold.errors import BadValue
from refold.model import Job, Seconds

MAX_WEIGHT = 4.0
"""The largest weight; its inverse is the smallest."""

MIN_QUOTA_GPUS = 1.0
"""A tenant with a smaller quota has the share of one with this quota."""

ASSUMED_USE = 0.1
"""Part of the GPU time of the whole cluster that is assumed to be used, by everyone according to their share.

Otherwise the first minutes of usage on a cluster would have as much effect as those of weeks.
"""


class AccountShare(NamedTuple):
    """What a user has used. `used` and `share`: parts of the usage and of the shares of all competing users.

    `weight`: how many times as much the delay of the user's jobs counts.
    """

    gpu_seconds: float
    used: float
    share: float
    weight: float


class FairShare:
    """Weights of the jobs of each user."""

    def __init__(self, strength: float, half_life: Seconds) -> None:
        """`strength`: 0: all weights are 1; 1: they range from 1/4 to 4."""
        if not (0 <= strength <= 1 and half_life > 0):
            raise BadValue(
                f"fair_share is {strength}, expected a number from 0 to 1; "
                f"fair_share_half_life is {half_life}, expected seconds > 0"
            )
        self._strength, self._half_life = strength, half_life

    def weights(self, view: View, jobs: Iterable[Job]) -> Mapping[TenantUser, float]:
        """Return the weights of the accounts of these jobs, except those that are 1."""
        if not self._strength:
            return {}
        return {account: found.weight for account, found in self.shares(view, jobs).items()}

    def shares(self, view: View, jobs: Iterable[Job]) -> dict[TenantUser, AccountShare]:
        """Return the usage, share and weight of the accounts of these jobs."""
        competing = sorted({TenantUser(job.tenant, job.user) for job in jobs})
        usage = view.decayed_usage(self._half_life)
        used = {account: usage.get(account, 0.0) for account in competing}
        share = _shares(view, competing)
        assumed = ASSUMED_USE * view.cluster.gpus * self._half_life / log(2.0)
        counted = {account: used[account] + assumed * share[account] for account in competing}
        used_by_tenant, share_of_tenant = _by_tenant(counted), _by_tenant(share)
        total = sum(counted.values())
        found = {}
        for account in competing:
            tenant_ratio = _ratio(used_by_tenant[account.tenant], total, share_of_tenant[account.tenant], 1.0)
            user_ratio = _ratio(
                counted[account], used_by_tenant[account.tenant], share[account], share_of_tenant[account.tenant]
            )
            exponent = max(-1.0, min(1.0, 2.0 - tenant_ratio - user_ratio))
            part = used[account] / sum(used.values()) if any(used.values()) else 0.0
            weight = MAX_WEIGHT ** (self._strength * exponent)
            found[account] = AccountShare(used[account], part, share[account], weight)
        return found


def _shares(view: View, accounts: Iterable[TenantUser]) -> dict[TenantUser, float]:
    """Return the share of each account; their sum is 1."""
    users_of: dict[str, list[TenantUser]] = {}
    for account in accounts:
        users_of.setdefault(account.tenant, []).append(account)
    has_quotas = any(tenant.quota_gpus for tenant in view.cluster.tenants)
    quotas = {
        tenant: max(view.cluster.quota_gpus(tenant), MIN_QUOTA_GPUS) if has_quotas else 1.0 for tenant in users_of
    }
    return {
        account: quotas[tenant] / sum(quotas.values()) / len(users)
        for tenant, users in users_of.items()
        for account in users
    }


def _by_tenant(amounts: Mapping[TenantUser, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for account, amount in amounts.items():
        sums[account.tenant] = sums.get(account.tenant, 0.0) + amount
    return sums


def _ratio(used: float, all_used: float, share: float, all_shares: float) -> float:
    """Return the part that is used, relative to the part that is due; 1 if nothing is used at all."""
    return used / all_used * all_shares / share if all_used else 1.0
