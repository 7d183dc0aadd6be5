# cython: boundscheck=True, wraparound=True
"""GPU time that users have used, by when they used it. The older it is, the less precisely its time is known.

A policy that counts recent usage more than old usage can derive that from it for any half-life. Memory is limited: the
amounts of a user are merged if their ages are about the same, and forgotten after `MAX_AGE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp2, frexp, log
from typing import NamedTuple

from refold.model import DAY, MINUTE, Seconds

MAX_AGE: Seconds = 180 * DAY
MAX_AMOUNTS = 64
"""Amounts of a user after which those of about the same age are merged; fewer than 20 remain."""

FINEST: Seconds = 15 * MINUTE
"""Amounts are merged if both are younger than this, or between once and twice as old, twice and four times, …"""


class TenantUser(NamedTuple):
    """A user of a tenant."""

    tenant: str
    user: str


class GpuTime(NamedTuple):
    """GPU-seconds that were used at about this time."""

    at: Seconds
    gpu_seconds: float


class Usage:
    """GPU time of the runs of each account that have ended."""

    def __init__(self) -> None:
        self._amounts: dict[TenantUser, list[tuple[Seconds, float]]] = {}
        """Time and GPU-seconds, as in `GpuTime`; plain tuples, because they are made for every run."""

    def add_run(self, account: TenantUser, gpus: float, since: Seconds, now: Seconds) -> None:
        """Add a run that ends now, in parts: the longer ago, the longer a part."""
        amounts = self._amounts.setdefault(account, [])
        until, length = now, FINEST
        while until > since:
            begin = max(since, until - length)
            amounts.append(((begin + until) / 2, (until - begin) * gpus))
            until, length = begin, 2 * length
        if len(amounts) > MAX_AMOUNTS:
            self._amounts[account] = [*_merge(amounts, now)]

    def restore(self, account: TenantUser, amounts: Sequence[tuple[Seconds, float]]) -> None:
        """Restore what was used before the journal began."""
        self._amounts[account] = [(at, gpu_seconds) for at, gpu_seconds in amounts]

    def merged(self, now: Seconds) -> Iterator[tuple[TenantUser, list[GpuTime]]]:
        """Yield each account with its amounts, those of about the same age merged."""
        for account, amounts in self._amounts.items():
            merged = _merge(amounts, now)
            if merged:
                yield account, merged

    def decayed(self, now: Seconds, half_life: Seconds) -> dict[TenantUser, float]:
        """Return the GPU-seconds of each account; those used one half-life ago count half."""
        return {
            account: sum(gpu_seconds * exp2((at - now) / half_life) for at, gpu_seconds in amounts)
            for account, amounts in self._amounts.items()
        }


def decayed_gpu_seconds(gpus: float, age: Seconds, half_life: Seconds) -> float:
    """Return the GPU-seconds that are used by now if GPUs were held for this long; older ones count less."""
    return gpus * half_life / log(2.0) * (1.0 - exp2(-age / half_life))


def _merge(amounts: Sequence[tuple[Seconds, float]], now: Seconds) -> list[GpuTime]:
    """Merge amounts of about the same age, and forget the oldest. The last is the most recent."""
    by_age: dict[int, tuple[float, float]] = {}
    for at, gpu_seconds in amounts:
        if now - at <= MAX_AGE:
            _, age = frexp(max(1.0, (now - at) / FINEST))  # the exponent: twice as old is one more
            total, moment = by_age.get(age, (0.0, 0.0))
            by_age[age] = total + gpu_seconds, moment + gpu_seconds * at
    return [GpuTime(moment / total, total) for _, (total, moment) in sorted(by_age.items(), reverse=True) if total]
