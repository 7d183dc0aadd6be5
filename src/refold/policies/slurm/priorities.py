"""Multifactor priorities: what a job was given, its age, and the fair share of its user by Slurm's Fair Tree.

Fair Tree (slurm.schedmd.com/fair_tree.html) ranks siblings by share / usage, each a part of all siblings. A user ranks
first by the account at the top, then by the next one below. The factor is 1 for the first rank; equal ranks share one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from math import inf
from statistics import fmean

from refold.core import View
from refold.model import Job, Run, Seconds
from refold.policies.slurm.facts import SiteFacts, SlurmJobFacts

NO_FACTS = SlurmJobFacts()
NO_AGE = 1e12
"""More than any age."""


def fair_tree(shares: Mapping[str, float], usage: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of each user. `shares`: of accounts and users by path; `usage`: of all users."""
    used: defaultdict[str, float] = defaultdict(float)
    all_shares: defaultdict[str, float] = defaultdict(float)
    all_used: defaultdict[str, float] = defaultdict(float)
    for user, seconds in usage.items():
        for path in _ancestors(user):
            used[path] += seconds
    for path, share in shares.items():
        all_shares[_parent(path)] += share
        all_used[_parent(path)] += used[path]

    def level(path: str) -> float:
        if not used[path]:
            return inf
        return shares.get(path, 0.0) / all_shares[_parent(path)] * all_used[_parent(path)] / used[path]

    depth = max(map(len, map(_ancestors, usage)), default=0)
    levels = {user: [*map(level, _ancestors(user)), *[inf] * (depth - len(_ancestors(user)))] for user in usage}
    order = sorted(levels.values())
    return {user: bisect_right(order, found) / len(order) for user, found in levels.items()}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _ancestors(path: str) -> list[str]:
    """Return the paths below the root: 'root/lab/ada' gives root/lab and root/lab/ada."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]


class Priorities:
    """The priorities of waiting jobs. Age and fair share are computed again from time to time."""

    def __init__(self, site: SiteFacts) -> None:
        self._site = site
        self._usage = dict(site.usage)
        self._rates: dict[str, float] = {}
        """How fast users use their share at present."""
        self._factors: dict[str, float] = {}
        self._now: Seconds | None = None
        self._made_at: Seconds = -inf
        self._ranks: dict[str, tuple[float, Seconds]] = {}
        self._typical = _typical_facts(site)

    def observe(self, view: View) -> None:
        """Account for what has been used since the last call."""
        site = self._site
        passed = 0.0 if self._now is None else view.now - self._now
        decay = 0.5 ** (passed / site.half_life)
        self._now = view.now
        if site.fair_share_weight:
            self._usage = {user: seconds * decay for user, seconds in self._usage.items()}
            for user, rate in self._rates.items():
                self._usage[user] = self._usage.get(user, 0.0) + rate * passed
            for run, sign in (*((run, 1) for run in view.changes.started), *((run, -1) for run in view.changes.ended)):
                self._count(run, sign)
        if view.now >= self._made_at + site.calc_period:
            self._made_at = view.now
            self._ranks.clear()
            self._factors = fair_tree(site.shares, self._usage)

    def _count(self, run: Run, sign: int) -> None:
        facts = self.facts(run.job)
        self._rates[facts.user] = self._rates.get(facts.user, 0.0) + sign * facts.billing

    def facts(self, job_id: str, tenant: str = "") -> SlurmJobFacts:
        """Return what is known of a job; of one that is not known, what is typical of its tenant."""
        return self._site.jobs.get(job_id) or self._typical.get(tenant, NO_FACTS)

    def rank(self, job: Job) -> tuple[float, Seconds]:
        """Return the sort key of a waiting job: the highest priority comes first."""
        if job.id not in self._ranks:
            self._ranks[job.id] = -self._priority(job), job.submitted
        return self._ranks[job.id]

    def _priority(self, job: Job) -> float:
        """Return the priority of a job, as of the last computation. Without facts of jobs, it is their own."""
        site, facts = self._site, self.facts(job.id, job.tenant)
        if not site.jobs:
            return job.priority * NO_AGE + self._made_at - job.submitted
        since = job.submitted if facts.eligible is None else facts.eligible
        age = min(max(self._made_at - since, 0.0) / site.max_age, 1.0)
        fair = self._factors.get(facts.user, 0.0)
        return facts.priority + site.age_weight * age + site.fair_share_weight * fair


def _typical_facts(site: SiteFacts) -> dict[str, SlurmJobFacts]:
    """Return what jobs that arrive later have: the user and the mean priority of the jobs of their account."""
    found: dict[str, list[SlurmJobFacts]] = {}
    for facts in site.jobs.values():
        found.setdefault(facts.user.split("/")[-2] if "/" in facts.user else "", []).append(facts)
    return {
        account: SlurmJobFacts(fmean(each.priority for each in jobs), user=jobs[-1].user, billing=jobs[-1].billing)
        for account, jobs in found.items()
    }
