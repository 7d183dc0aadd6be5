"""Start estimates: bounds hold as often as documented, adapt after a change, and say when nothing is known."""

from heapq import heappop, heappush
from math import exp, inf, log
from random import Random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from refold.core import Entry, ListJournal, Scheduler
from refold.core.events import JobCancelled, JobSubmitted, NodeLost, NodeReturned, RunFinished, RunStarted, Woke
from refold.model import HOUR, MINUTE, StartEstimate
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.start_bounds import (
    MAX_LOG_FACTOR,
    PRIOR_WEIGHT,
    TARGET_COVERAGE,
    WAIT_OFFSET,
    CensoredSample,
    StartBounds,
    censored_quantiles,
    scaled,
)
from refold.simulator.start_estimates import MIN_EXTENSION, EstimatingPolicy
from refold.testing import make_cluster, make_job, seeded_workload

POLICIES = ["refold", "easy", "conservative", "fifo", "las", "drf"]
SLOW = ("refold", "conservative")
OTHERS = ("conservative", "fifo", "las", "drf")
SELDOM = [pytest.param(policy, marks=pytest.mark.long) if policy in SLOW else policy for policy in POLICIES]
"""For tests of the estimates alone, whatever the policy is."""

EVERY = 5.0


class TestBounds:
    """Calibration of simulated waits."""

    @staticmethod
    def stream(jobs: int, seed: int, factors: tuple[float, float]) -> list[tuple[float, float]]:
        """Return the bound and the wait of each job; waits differ from simulated ones by a factor per half, and noise.

        Jobs for which no bound is known are left out.
        """
        rng, bounds = Random(seed), StartBounds()
        starts: list[tuple[float, str]] = []
        found: list[tuple[float, float]] = []
        now = 0.0
        for number in range(jobs):
            now += rng.expovariate(1 / 300)
            while starts and starts[0][0] <= now:
                at, name = heappop(starts)
                bounds.note_start(name, at)
            simulated = rng.expovariate(1 / 3600)
            wait = simulated * factors[2 * number // jobs] * exp(rng.gauss(0, 1))
            known = bounds.factors("any", now)
            bounds.add(f"j{number}", "any", now, simulated)
            heappush(starts, (now + wait, f"j{number}"))
            if known.are_known:
                found.append((scaled(simulated, known.latest), wait))
        return found

    @pytest.mark.parametrize("seed", range(4))
    def test_they_hold_for_95_of_100_jobs_from_the_first_on(self, seed: int) -> None:
        found = self.stream(1200, seed, (1.0, 1.0))
        assert len(found) == 1200
        assert np.mean([wait <= bound for bound, wait in found]) >= 0.95
        assert np.mean([wait <= bound for bound, wait in found[:100]]) >= 0.9

    @pytest.mark.parametrize("seed", range(4))
    def test_they_hold_again_soon_after_waits_become_five_times_as_long(self, seed: int) -> None:
        found = self.stream(1800, seed, (1.0, 5.0))
        assert np.mean([wait <= bound for bound, wait in found[1300:]]) >= 0.93

    def test_they_are_not_much_wider_than_necessary(self) -> None:
        found = self.stream(2000, 1, (1.0, 1.0))[500:]
        factors = sorted((bound + WAIT_OFFSET) / (wait + WAIT_OFFSET) for bound, wait in found)
        assert 3 < factors[len(factors) // 2] < 10  # waits differ by a factor of 7 in 2.5 % of all cases

    def test_without_observations_they_are_those_of_the_prior(self) -> None:
        factors = StartBounds().factors("any", 0.0)
        assert factors.are_known
        assert factors.latest == pytest.approx(NormalDist().inv_cdf(TARGET_COVERAGE), abs=0.2)
        assert factors.expected == pytest.approx(0.0, abs=0.1)

    @pytest.mark.parametrize("others", [0, 300])
    def test_the_prior_and_other_kinds_yield_slowly_to_the_errors_of_a_kind(self, others: int) -> None:
        bounds = StartBounds()
        for number in range(others):
            bounds.add(f"other{number}", "other", 0.0, 0.0)
            bounds.note_start(f"other{number}", 0.0)
        latest = [bounds.factors("any", 0.0).latest]
        for number in range(400):
            bounds.add(f"{number}", "any", 0.0, 1000.0)
            bounds.note_start(f"{number}", 1000.0)
            latest.append(bounds.factors("any", 0.0).latest)
        assert latest == sorted(latest, reverse=True)
        assert latest[int(PRIOR_WEIGHT) // 2] > (0.5 if not others else -0.1)
        assert latest[-1] < 0.5

    def test_jobs_that_still_wait_make_them_wider(self) -> None:
        bounds = StartBounds()
        for number in range(200):
            bounds.add(f"{number}", "any", 0.0, 600.0)
            bounds.note_start(f"{number}", 600.0)
        before = bounds.factors("any", 600.0).latest
        for number in range(20):
            bounds.add(f"late{number}", "any", 600.0, 600.0)
        assert before < bounds.factors("any", 1200.0).latest < log(5.0)
        assert bounds.factors("any", 20_000.0).latest > log(5.0)
        for number in range(20):
            bounds.forget(f"late{number}")
        assert bounds.factors("any", 40_000.0).latest == pytest.approx(before)

    def test_nothing_is_known_if_most_jobs_do_not_start(self) -> None:
        bounds = StartBounds()
        for number in range(100):
            bounds.add(f"{number}", "any", 0.0, 60.0)
        assert not bounds.factors("any", 100 * HOUR).are_known

    def test_only_the_first_simulated_wait_of_a_job_counts(self) -> None:
        first, again = StartBounds(), StartBounds()
        for bounds in (first, again):
            for number in range(50):
                bounds.add(f"{number}", "any", 0.0, 600.0)
        for number in range(50):
            again.add(f"{number}", "any", 500.0, 0.0)
        for bounds in (first, again):
            for number in range(50):
                bounds.note_start(f"{number}", 900.0)
        assert first.factors("any", 900.0) == again.factors("any", 900.0)

    def test_nothing_is_learned_from_a_job_without_an_estimate(self) -> None:
        bounds = StartBounds()
        bounds.note_start("unknown", 5.0)
        bounds.forget("unknown")
        assert bounds.factors("any", 10.0) == StartBounds().factors("any", 10.0)

    @given(st.floats(0, 1e7), st.floats(-3, MAX_LOG_FACTOR))
    def test_a_scaled_wait_is_never_negative_and_grows_with_the_factor(self, wait: float, factor: float) -> None:
        assert 0 <= scaled(wait, factor) <= scaled(wait, factor + 0.1)
        assert scaled(wait, 0.0) == pytest.approx(wait, abs=1e-6)


class TestCensoredQuantiles:
    """The estimate of Kaplan and Meier."""

    @staticmethod
    def quantiles(values: list[float], is_final: list[bool], *shares: float) -> list[float]:
        sample = CensoredSample(np.array(values), np.array(is_final), np.ones(len(values)))
        return censored_quantiles(sample, shares)

    def test_without_censored_values_they_are_those_of_the_sample(self) -> None:
        values = [float(value) for value in range(1, 11)]
        assert self.quantiles(values, [True] * 10, 0.1, 0.5, 0.95, 1.0) == [1, 5, 10, 10]

    def test_a_textbook_case(self) -> None:
        """Survival 1 - 1/5 after 1, times 1 - 1/3 after 3, times 0 after 5; 2 and 4 are censored."""
        found = self.quantiles([1, 2, 3, 4, 5], [True, False, True, False, True], 0.2, 0.21, 0.46, 0.47)
        assert found == [1, 3, 3, 5]

    def test_a_quantile_beyond_the_final_values_is_not_known(self) -> None:
        assert self.quantiles([1, 2, 3], [True, False, False], 0.3, 0.5) == [1, inf]


def first_estimates(entries: list[Entry]) -> dict[str, tuple[float, StartEstimate]]:
    found: dict[str, tuple[float, StartEstimate]] = {}
    for entry in entries:
        for estimate in entry.start_estimates:
            found.setdefault(estimate.job, (entry.now, estimate))
    return found


def scheduler_with_past(policy: str, gpus: int = 1) -> Scheduler:
    """Return a scheduler that has seen a job of 600 s, and runs another one since 1,000 s."""
    scheduler = Scheduler(make_cluster(gpus), EstimatingPolicy(make_policy(policy), every=EVERY))
    scheduler.step(0.0, [JobSubmitted(make_job("past", gpus=gpus, preemptible=False, work=None))])
    scheduler.step(0.0, [RunStarted("past", 1)])
    scheduler.step(600.0, [RunFinished("past", 1)])
    scheduler.step(1000.0, [JobSubmitted(make_job("runs", gpus=gpus, preemptible=False, work=None))])
    scheduler.step(1000.0, [RunStarted("runs", 1)])
    return scheduler


@pytest.mark.parametrize("policy", POLICIES)
class TestEstimates:
    """Estimates of the policies."""

    def test_a_job_that_has_to_wait_gets_one_and_a_job_that_starts_gets_none(self, policy: str) -> None:
        scheduler = scheduler_with_past(policy)
        (estimate,) = scheduler.step(1010.0, [JobSubmitted(make_job("waits", at=1010))]).start_estimates
        assert estimate.job == "waits"
        assert estimate.soonest is not None
        assert estimate.latest is not None
        assert 1010 <= estimate.soonest <= estimate.at <= estimate.latest
        assert estimate.at > 1010

    def test_jobs_further_behind_start_later(self, policy: str) -> None:
        scheduler = scheduler_with_past(policy)
        jobs = [make_job(f"j{number}", at=1010 + number) for number in range(6)]
        estimates = scheduler.step(1020.0, [JobSubmitted(job) for job in jobs]).start_estimates
        latest = {estimate.job: estimate.latest or 0.0 for estimate in estimates}
        assert len(latest) == 6
        assert latest["j5"] > 1.5 * latest["j0"]

    def test_it_is_renewed_while_a_job_waits_and_when_its_bound_has_passed(self, policy: str) -> None:
        scheduler = scheduler_with_past(policy)
        (first,) = scheduler.step(1010.0, [JobSubmitted(make_job("waits", at=1010))]).start_estimates
        assert scheduler.step(1011.0, [Woke()]).start_estimates == ()
        latest = first.latest
        for now in np.arange(1012.0 + EVERY, 1012.0 + 10 * HOUR, 160 * MINUTE).tolist():
            for estimate in scheduler.step(now, [Woke()]).start_estimates:
                assert latest is not None
                assert estimate.latest is not None
                assert now <= estimate.at <= estimate.latest
                if latest < now:
                    assert estimate.latest >= now + MIN_EXTENSION
                else:
                    assert estimate.latest <= latest or estimate.at > latest
                latest = estimate.latest
        assert latest is not None
        assert latest > 10 * HOUR

    def test_known_run_times_of_a_trace_are_not_used(self, policy: str) -> None:
        found = []
        for work in (5.0, 50_000.0):
            scheduler = scheduler_with_past(policy)
            jobs = [make_job(f"j{number}", at=1010, work=work) for number in range(4)]
            found.append(scheduler.step(1010.0, [JobSubmitted(job) for job in jobs]).start_estimates)
        assert found[0] == found[1]

    def test_a_cancelled_job_gets_none(self, policy: str) -> None:
        scheduler = scheduler_with_past(policy)
        scheduler.step(1010.0, [JobSubmitted(make_job("waits", at=1010))])
        scheduler.step(1020.0, [JobCancelled("waits")])
        entries = [scheduler.step(1020.0 + hour * HOUR, [Woke()]) for hour in range(1, 48)]
        assert not any(entry.start_estimates for entry in entries)

    def test_none_is_made_while_no_node_is_up_and_then_as_before(self, policy: str) -> None:
        scheduler = Scheduler(make_cluster(1), EstimatingPolicy(make_policy(policy), every=EVERY))
        scheduler.step(0.0, [JobSubmitted(make_job("past", preemptible=False, work=None))])
        scheduler.step(600.0, [RunFinished("past", 1), NodeLost(0)])
        assert scheduler.step(1010.0, [JobSubmitted(make_job("waits", at=1010))]).start_estimates == ()
        entry = scheduler.step(2000.0, [NodeReturned(0)])
        assert [order.job for order in entry.orders] == ["waits"]

    def test_the_same_events_give_the_same_estimates(self, policy: str) -> None:
        found = []
        for _ in range(2):
            scheduler = scheduler_with_past(policy)
            jobs = [make_job(f"j{number}", at=1010 + number) for number in range(4)]
            found.append(scheduler.step(1020.0, [JobSubmitted(job) for job in jobs]).start_estimates)
        assert found[0] == found[1]


@pytest.mark.parametrize("policy", SELDOM)
class TestSimulatedEstimates:
    """Estimates for all jobs of a workload."""

    def test_none_is_made_while_the_queue_grows_without_end(self, policy: str) -> None:
        """Three times as many jobs arrive as can run; after a while, estimates cease."""
        jobs = [make_job(f"j{number:04}", at=number * 100, work=300, preemptible=False) for number in range(150)]
        journal = ListJournal()
        simulate(jobs, make_cluster(1), EstimatingPolicy(make_policy(policy), 60 * MINUTE), journal=journal)
        late = [job for job in jobs if job.submitted > 8_000]
        made = first_estimates(journal.entries)
        starts = {
            order.job: entry.now for entry in journal.entries for order in entry.orders if hasattr(order, "allocation")
        }
        known = [job for job in late if job.id in made]
        kept = [starts[job.id] <= (made[job.id][1].latest or inf) for job in known]
        assert len(known) < 0.5 * len(late) or np.mean(kept) >= 0.95

    def test_bounds_hold_on_a_queue_of_similar_jobs(self, policy: str) -> None:
        rng = Random(3)
        at, jobs = 0.0, []
        for number in range(200):
            at += rng.expovariate(1 / 200)
            work = rng.lognormvariate(6.5, 0.8)
            jobs.append(make_job(f"j{number:03}", at=at, gpus=rng.choice((1, 1, 2, 4)), work=work, preemptible=False))
        journal = ListJournal()
        simulate(jobs, make_cluster(4, 4), EstimatingPolicy(make_policy(policy), 40 * MINUTE), journal=journal)
        starts = {
            order.job: entry.now for entry in journal.entries for order in entry.orders if hasattr(order, "allocation")
        }
        made = first_estimates(journal.entries)
        kept = [starts[job] <= (estimate.latest or inf) for job, (_, estimate) in made.items()]
        assert len(kept) > 50
        assert np.mean(kept) >= 0.95


@pytest.mark.parametrize("policy", ["refold", "easy", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_everything_but_the_estimates_is_the_same_without_estimates(policy: str) -> None:
    jobs, cluster = seeded_workload(3, jobs=20)
    jobs = [replace(job, submitted=100 * job.submitted, work=100 * (job.work or 0.0)) for job in jobs]

    def entries(start_estimates: bool) -> list[Entry]:
        journal = ListJournal()
        simulate(jobs, cluster, make_policy(policy, {"start_estimates": start_estimates}), journal=journal)
        return journal.entries

    with_estimates, without = entries(True), entries(False)
    assert any(entry.start_estimates for entry in with_estimates)
    assert without == [replace(entry, start_estimates=()) for entry in with_estimates]
