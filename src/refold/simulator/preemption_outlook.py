"""Simulate the costs and benefits of preemption, on the jobs of a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from refold.journal import HistoryJournal
from refold.model import Cluster, Job, Preemption, PreemptionOutcome, PreemptionOutlook, jobs_under
from refold.policies import POLICIES
from refold.simulator.costs import Costs
from refold.simulator.registry import make_policy, split_settings, without_start_estimates
from refold.simulator.results import Measures, measure
from refold.simulator.simulation import simulate

DAEMON_COSTS = Costs(stop=30.0, restart=120.0)
"""What a preemption costs unless it is known: a job saves a checkpoint, and later loads it on other nodes."""

MAX_OUTLOOK_JOBS = 1_000
"""Of a long history, the latest jobs are simulated."""

DEFAULT_POLICY = "refold"


def compute_outlook(
    history: str,
    policy: str,
    jobs: Sequence[Job],
    measure_jobs: Callable[[list[Job]], Measures],
    *,
    has_consent: bool = False,
    known: Sequence[tuple[Sequence[Job], Measures]] = (),
) -> PreemptionOutlook:
    """Return the outlook by a function that simulates jobs under the policy; `known` jobs have been simulated."""
    measured = {_preemptible(simulated): measures for simulated, measures in known}

    def outcome(rule: Preemption) -> PreemptionOutcome:
        ruled = jobs_under(rule, jobs, has_consent=has_consent)
        key = _preemptible(ruled)
        if key not in measured:
            measured[key] = measure_jobs(ruled)
        found = measured[key]
        return PreemptionOutcome(
            rule,
            sum(key),
            found.waiting.mean,
            found.waiting.max,
            found.preemptions,
            found.overhead_gpu_hours + found.lost_gpu_hours,
        )

    return PreemptionOutlook(history, policy, len(jobs), outcome("always"), outcome("consent"), outcome("never"))


def _preemptible(jobs: Sequence[Job]) -> tuple[bool, ...]:
    return tuple(job.preemptible for job in jobs)


def simulate_outlook(
    history: str, jobs: Sequence[Job], cluster: Cluster, policy: str, settings: Mapping[str, Any]
) -> PreemptionOutlook:
    """Return the outlook for the latest jobs of a history, preemptible if they consent, whose work is known.

    A policy that preempts no jobs, or knows their run times, is replaced by the default policy.
    """
    entry = POLICIES.get(policy)
    if entry is None or not entry.preempts or entry.oracle:
        policy, settings = DEFAULT_POLICY, {}
    own, _ = split_settings(policy, settings)  # watch rules need reports, which nobody makes here

    def measure_jobs(jobs: list[Job]) -> Measures:
        journal = HistoryJournal()
        scheduling = make_policy(policy, without_start_estimates(own))
        simulate(jobs, cluster, scheduling, journal=journal, costs=DAEMON_COSTS)
        return measure(journal.history(cluster))

    return compute_outlook(history, policy, jobs[-MAX_OUTLOOK_JOBS:], measure_jobs, has_consent=True)
