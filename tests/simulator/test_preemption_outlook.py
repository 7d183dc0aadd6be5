"""Costs and benefits of preemption is simulated for all jobs, those that consent, and none."""

from __future__ import annotations

import msgspec
import pytest

from refold.model import Job, PreemptionOutcome, PreemptionOutlook, jobs_under
from refold.simulator import DAEMON_COSTS, compute_outlook, simulate_outlook
from refold.simulator.results.measures import Measures
from refold.testing import make_cluster, make_job

JOBS = [
    make_job("plain", work=4000.0, gpus=2),
    make_job("best-effort", work=4000.0, gpus=2, job_class="best-effort"),
    make_job("refuses", work=4000.0, job_class="best-effort", preemptible=False),
    make_job("elastic", work=100.0, reshapable=True),
]


def preemptible(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs if job.preemptible]


def test_the_jobs_of_a_trace_consent_if_they_are_best_effort_or_reshapable() -> None:
    assert preemptible(jobs_under("consent", JOBS)) == ["best-effort", "elastic"]
    assert preemptible(jobs_under("never", JOBS)) == []
    assert preemptible(jobs_under("always", JOBS)) == ["plain", "best-effort", "refuses", "elastic"]


def test_the_jobs_of_a_daemon_have_consented_when_they_were_submitted() -> None:
    assert preemptible(jobs_under("consent", JOBS, has_consent=True)) == ["plain", "best-effort", "elastic"]


def long_and_short_jobs() -> list[Job]:
    long = [make_job(f"long-{n}", work=40_000.0, gpus=4, preemptible=n == 0) for n in range(2)]
    return long + [make_job(f"short-{n}", at=600.0 + n, work=30.0, preemptible=False) for n in range(20)]


def test_with_consent_short_jobs_do_not_wait_for_long_ones() -> None:
    jobs, cluster = long_and_short_jobs(), make_cluster(4, 4)
    outlook = simulate_outlook("jobs", jobs, cluster, "las", {})
    assert (outlook.policy, outlook.jobs) == ("las", 22)
    always, consent, never = outlook.always, outlook.consent, outlook.never
    assert [each.preemptible for each in (always, consent, never)] == [22, 1, 0]
    assert always.preemptions and consent.preemptions and not never.preemptions
    assert never.mean_wait is not None and consent.mean_wait is not None and consent.mean_wait < never.mean_wait / 2
    assert consent.overhead_gpu_hours >= 4 * (DAEMON_COSTS.stop + DAEMON_COSTS.restart) / 3600
    assert never.overhead_gpu_hours == 0


@pytest.mark.parametrize("policy", ["fifo", "srtf", "./gone.py"])
def test_a_policy_that_cannot_tell_is_replaced_by_the_default(policy: str) -> None:
    outlook = simulate_outlook("jobs", long_and_short_jobs()[:3], make_cluster(4, 4), policy, {"watch": {}})
    assert outlook.policy == "refold"


def test_the_same_jobs_are_simulated_once() -> None:
    simulated: list[list[str]] = []
    jobs = jobs_under("consent", JOBS[:1])

    def measure_jobs(jobs: list[Job]) -> Measures:
        simulated.append(preemptible(jobs))
        return simulate_measures(jobs)

    compute_outlook("jobs", "refold", jobs, measure_jobs, has_consent=True, known=[(jobs, simulate_measures(jobs))])
    assert simulated == [["plain"]]


def simulate_measures(jobs: list[Job]) -> Measures:
    import refold

    return refold.compare(jobs, make_cluster(4), ["fifo"])["fifo"]


def test_the_outlook_in_words() -> None:
    outlook = PreemptionOutlook(
        "jobs",
        "refold",
        1500,
        PreemptionOutcome("always", 1500, 3600.0, 86400.0, 7, 1.0),
        PreemptionOutcome("consent", 461, 5400.0, 90000.0, 3, 0.5),
        PreemptionOutcome("never", 0, 7200.0, None, 0, 0.0),
    )
    assert outlook.sentence == (
        "If all jobs could be preempted, mean and longest wait would be 1 h and 1 d; if those that consent "
        "(461 of 1,500), 1 h 30 min and 1 d 1 h; if none, 2 h and unknown."
    )
    nobody = msgspec.structs.replace(outlook, consent=msgspec.structs.replace(outlook.consent, preemptible=0))
    assert nobody.sentence.endswith("if none, 2 h and unknown (none of these jobs consents).")
