"""Single steps of a Refold round, on drafts: remaining time, the price of GPUs, and growth per GPU.

Speeds are those of the performance model on one node of eight A800s (see test_refold.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from scripted_policy import ScriptedPolicy

from refold.core import JobSubmitted, Scheduler, View
from refold.core.events import Event, RunStarted, RunStopped
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Job, Share, Start, Stop
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY
from refold.policies.common import Draft, ExpectedService, FairShare, GuaranteeRules, OptionCache, ProgressEstimator
from refold.policies.refold.arrivals import ArrivalSummary
from refold.policies.refold.growth import Growth
from refold.policies.refold.jobs import RefoldSettings, RoundJobs
from refold.policies.refold.sources import JobSources
from refold.policies.refold.starts import Starter
from refold.testing import make_cluster, make_job

NODE = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)
SETTINGS = RefoldSettings(
    restart_seconds=78.0,
    gpu_price=4.0,
    delay_doubling_seconds=3600.0,
    weight_doubling_seconds=3600.0,
    overtaking_share=0.5,
    wide_weight=4.0,
    wide_share=0.5,
    preemption_margin=4.0,
    max_restarts=10,
    max_preemptors=16,
)
NO_ARRIVALS_SOON = ArrivalSummary(gap=1e6, last_arrival=0.0)


def modelled(name: str, workload: str = "bert", steps: int = 50_000, **fields: Any) -> Job:
    return make_job(name, workload=workload, reshapable=True, work=None, steps=steps, **fields)


class Round:
    """A scheduler whose decisions the test makes, and what Refold knows about its jobs."""

    def __init__(self, *waiting: Job) -> None:
        self.policy = ScriptedPolicy()
        self.scheduler = Scheduler(NODE, self.policy)
        self.scheduler.step(0.0, [JobSubmitted(job) for job in waiting])

    @property
    def view(self) -> View:
        return self.scheduler.view

    def jobs(self) -> RoundJobs:
        estimator = ProgressEstimator(self.view, CATALOGUE_ONLY, SETTINGS.restart_seconds)
        options = OptionCache(estimator.speeds)
        guarantees, service = GuaranteeRules(estimator, options), ExpectedService(CATALOGUE_ONLY)
        sources = JobSources(estimator, options, guarantees, service, FairShare(0.0, 3600.0))
        sources.update(self.view)
        return RoundJobs(self.view, sources, SETTINGS, NO_ARRIVALS_SOON)

    def decide(self, *events: Event, then: Decision = NO_CHANGE) -> None:
        self.policy.next = then
        self.scheduler.step(0.0, events)


def gpus_of(draft: Draft) -> dict[str, int]:
    return {job_id: held.gpu_milli // WHOLE for job_id, held in draft.allocations()}


def test_the_remaining_time_of_a_restarting_run_includes_the_rest_of_its_start_up() -> None:
    state, held, elsewhere = Round(modelled("a")), Allocation((Share(0, (0,)),)), Allocation((Share(0, (5,)),))
    state.decide(then=Decision((Start("a", held),)))
    state.decide(RunStarted("a", 1))
    jobs = state.jobs()
    seconds = 50_000 / jobs.speed("a", held)
    assert jobs.remaining_time("a", held) == pytest.approx(seconds)
    state.decide(then=Decision(stops=(Stop("a"),)))
    state.decide(RunStopped("a", 1, 0.0, 0), then=Decision((Start("a", held),)))
    restarting = state.jobs()
    assert restarting.remaining_time("a", held) == pytest.approx(seconds + SETTINGS.restart_seconds)
    assert restarting.remaining_time("a", elsewhere) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        (["vit"], [8]),
        (["vit", "vit"], [4, 4]),
        (["vit"] * 4, [2, 2, 4]),
        (["bert"], [8]),
        (["bert"] * 3, [4, 4]),
    ],
)
def test_a_job_pays_for_gpus_according_to_the_number_of_jobs_behind_it(
    workloads: list[str], expected: list[int]
) -> None:
    state = Round(*(modelled(f"j{number}", workload) for number, workload in enumerate(workloads)))
    draft = Draft(state.view)
    Starter(state.jobs(), draft, Placer("best-fit"), max_preemptors=0).place_waiting()
    assert list(gpus_of(draft).values()) == expected


def grown(placed: int, waiting: int) -> list[int]:
    """Return the GPUs of so many jobs that have one GPU each before growth, while others wait."""
    names = [f"j{number}" for number in range(placed)]
    state = Round(*map(modelled, names), *(make_job(f"w{number}", gpus=8, work=None) for number in range(waiting)))
    draft, jobs = Draft(state.view), state.jobs()
    for name in names:
        assert draft.place_first(name, Placer("best-fit"), jobs.options_of(name))
    Growth(jobs, draft, Placer("best-fit")).grow()
    return [gpus_of(draft)[name] for name in names]


@pytest.mark.parametrize(("placed", "expected"), [(1, [8]), (2, [4, 4]), (4, [2, 2, 2, 2]), (8, [1] * 8)])
def test_free_gpus_are_given_to_the_jobs_that_save_the_most_time_per_gpu(placed: int, expected: list[int]) -> None:
    assert grown(placed, waiting=0) == expected


@pytest.mark.parametrize(("waiting", "expected"), [(0, 8), (10, 2), (30, 1)])
def test_growth_is_paid_for_while_other_jobs_wait(waiting: int, expected: int) -> None:
    assert grown(1, waiting) == [expected]
