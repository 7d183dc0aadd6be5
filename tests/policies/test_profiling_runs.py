"""New model types are profiled by short runs with a few plans, within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings, strategies as st
from scripted_policy import ScriptedPolicy, on

from refold.core import (
    Entry,
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    ListJournal,
    Policy,
    RunFailed,
    RunProgressed,
    RunStopped,
    Scheduler,
    StartRun,
    StopRun,
    View,
    Woke,
)
from refold.engines.local import local_cluster
from refold.errors import BadInput
from refold.model import Allocation, ChangeLimit, Cluster, Decision, Job, Plan, Reshape, Start, Tenant
from refold.planning.perf import Measurement
from refold.planning.plans import Knowledge
from refold.policies.common import ProfilingLimits
from refold.simulator import Costs, simulate
from refold.simulator.registry import default_settings, make_policy
from refold.testing import PolicyContract, make_cluster, make_job

COSTS = Costs(restart=2.0, live=1.0, report_every=2.0, report_speeds=True)
STEP_SECONDS = {"DP4": 1.0, "DP1 TP4": 0.5, "DP2 TP2": 0.8}


class TestContract(PolicyContract):
    reshapes = True
    seeds = range(1)
    reshaping_seeds = range(1)

    def make_policy(self) -> Policy:
        return make_policy("refold", {"profile": {"share": 1.0}})


class Truth:
    """The speed of jobs by their plan; others need two seconds for a step."""

    def __init__(self, step_seconds: Mapping[str, float]) -> None:
        self._step_seconds = step_seconds

    def work(self, job: Job) -> float:
        return (job.steps or 0) * self._seconds(job.plan or Plan(data=job.demand.gpus))

    def speed(self, job: Job, allocation: Allocation) -> float:
        plan = allocation.plan or job.plan or Plan(data=sum(allocation.gpus_on_node))
        return self._seconds(job.plan or Plan(data=job.demand.gpus)) / self._seconds(plan)

    def _seconds(self, plan: Plan) -> float:
        return self._step_seconds.get(str(plan), 2.0)


class WatchedLimits:
    """A policy that checks at each call that another has kept the limits of profiling."""

    def __init__(self, policy: Policy, limits: ProfilingLimits, workloads: Sequence[str]) -> None:
        self.name = policy.name
        self._policy, self._limits, self._workloads = policy, limits, workloads
        self.profiling_gpu_seconds = 0.0

    def decide(self, view: View) -> Decision:
        types = view.cluster.type_names
        seconds = [view.profiling_seconds(workload, gpu_type) for workload in self._workloads for gpu_type in types]
        assert max(seconds) <= self._limits.seconds
        assert view.profiling_gpu_seconds <= self._limits.share * view.used_gpu_seconds + 1e-6
        self.profiling_gpu_seconds = view.profiling_gpu_seconds
        return self._policy.decide(view)


def job_on_four(name: str = "a", **fields: object) -> Job:
    defaults = {"gpus": 4, "workload": "my-model", "batch": 16, "steps": 20_000, "reshapable": True}
    return make_job(name, **{**defaults, "gpu_range": (4, 4), **fields})  # type: ignore[arg-type]


def plans_of(
    jobs: Sequence[Job],
    policy: str = "refold",
    cluster: Cluster | None = None,
    truth: Mapping[str, float] = STEP_SECONDS,
    **options: object,
) -> list[tuple[str, str]]:
    """Return the job and plan of each run in a simulation."""
    journal = ListJournal()
    made = make_policy(policy, {"restart_seconds": 2.0, "profile": True, **options})
    simulate(jobs, cluster or local_cluster(4), made, charge=Truth(truth), costs=COSTS, journal=journal)
    return [(order.job, str(order.allocation.plan)) for order in orders(journal.entries)]


def orders(entries: Sequence[Entry]) -> list[StartRun]:
    return [order for entry in entries for order in entry.orders if isinstance(order, StartRun)]


@pytest.mark.parametrize("policy", ["refold", "rubick", "rubick-e"])
def test_a_job_of_a_new_model_type_tries_plans_and_continues_with_the_fastest(policy: str) -> None:
    plans = [plan for _, plan in plans_of([job_on_four()], policy)]
    pipelines = ["DP2 PP2 accumulate 8", "DP1 TP4", "DP1 PP4 accumulate 16", "DP1 TP4"]
    first = "DP4" if policy == "refold" else "None"  # assumed to be as fast as requested
    assert plans == [first, "DP2 TP2", "DP1 TP4", *pipelines]


@pytest.mark.parametrize(
    "fastest",
    [
        pytest.param("DP4", marks=pytest.mark.long),
        "DP4 ZeRO-3",
        pytest.param("DP2 TP2 SP ZeRO-1", marks=pytest.mark.long),
    ],
)
def test_the_fastest_plan_is_found_if_the_model_is_wrong(fastest: str) -> None:
    job = job_on_four(workload="bert", batch=64, steps=20_000)
    plans = plans_of([job], cluster=make_cluster(4, types="A800-80GB"), truth={fastest: 0.5})
    assert (plans[0], plans[-1]) == (("a", "DP4 ZeRO-1"), ("a", fastest))


def test_each_new_type_is_profiled() -> None:
    jobs = [job_on_four("a"), job_on_four("b", workload="other-model")]
    plans = plans_of(jobs, cluster=local_cluster(8))
    assert [plan for job, plan in plans if job == "a"][-1] == "DP1 TP4"
    assert [plan for job, plan in plans if job == "b"][-1] == "DP1 TP4"


def test_jobs_of_a_type_that_was_profiled_start_with_the_fastest_plan() -> None:
    later = job_on_four("b", at=15_000.0, steps=100)
    assert plans_of([job_on_four(), later])[-1] == ("b", "DP1 TP4")


@pytest.mark.parametrize(
    "job",
    [
        job_on_four(plan=Plan(data=4), reshapable=False, gpu_range=None),
        job_on_four(plan=Plan(data=4)),
        job_on_four(change_limit=ChangeLimit(at_most=9)),
        job_on_four(preemptible=False),
        job_on_four(steps=100),
        job_on_four(batch=0),
    ],
    ids=["pinned plan", "own plan", "limited changes", "not preemptible", "short", "unknown batch"],
)
def test_a_job_is_not_profiled_if(job: Job) -> None:
    assert len(plans_of([job])) == 1


def test_guaranteed_jobs_of_tenants_are_not_profiled() -> None:
    tenants = (Tenant("default", quota_gpus=4),)
    cluster = Cluster(local_cluster(4).nodes, local_cluster(4).gpu_types, tenants=tenants)
    assert len(plans_of([job_on_four()], cluster=cluster)) == 1
    assert len(plans_of([job_on_four(job_class="best-effort")], cluster=cluster)) > 1


def test_a_type_that_was_measured_beforehand_is_not_profiled() -> None:
    row = Measurement("my-model", "slot", (4,), Plan(data=4), 16, 1, step_seconds=1.0)
    assert len(plans_of([job_on_four()], knowledge=Knowledge(measured=(row,)))) == 1


@pytest.mark.parametrize("profile", [False, {"seconds": 0}, {"share": 0}, {"seconds": 23.9}])
def test_profiling_can_be_turned_off(profile: object) -> None:
    assert len(plans_of([job_on_four()], profile=profile)) == 1


def test_a_larger_share_of_gpu_time_allows_profiling_early() -> None:
    journal = ListJournal()
    policy = make_policy("refold", {"restart_seconds": 2.0, "profile": {"share": 1.0}})
    simulate([job_on_four()], local_cluster(4), policy, charge=Truth(STEP_SECONDS), costs=COSTS, journal=journal)
    assert max(entry.now for entry in journal.entries if orders([entry])) < 100


def test_settings_that_cannot_be_read_are_errors() -> None:
    assert default_settings("refold")["profile"] is None
    with pytest.raises(BadInput, match="expected seconds ≥ 0"):
        make_policy("refold", {"profile": {"seconds": -1}})
    with pytest.raises(BadInput, match="unknown field"):
        make_policy("refold", {"profile": {"second": 1}})
    with pytest.raises(BadInput, match="profile"):
        make_policy("fifo", {"profile": True})


speeds = st.dictionaries(st.sampled_from(["DP4", "DP1 TP4", "DP2 TP2", "DP2", "DP1"]), st.floats(0.1, 5.0))


@settings(max_examples=25, deadline=None)
@given(
    truth=speeds,
    limits=st.builds(ProfilingLimits, st.floats(0, 300), st.floats(0, 0.3)),
    arrivals=st.lists(st.tuples(st.floats(0, 2000), st.integers(1, 4), st.integers(100, 3000)), min_size=1, max_size=6),
)
def test_the_limits_of_profiling_are_never_exceeded(
    truth: dict[str, float], limits: ProfilingLimits, arrivals: list[tuple[float, int, int]]
) -> None:
    jobs = [
        job_on_four(f"{index}", gpus=gpus, at=at, steps=steps, workload=f"m{index % 2}", gpu_range=(1, 4))
        for index, (at, gpus, steps) in enumerate(sorted(arrivals))
    ]
    policy = make_policy("refold", {"restart_seconds": 2.0, "profile": limits})
    watched = WatchedLimits(policy, limits, ["m0", "m1"])
    simulate(jobs, local_cluster(4), watched, charge=Truth(truth), costs=COSTS)


def test_a_job_returns_from_a_plan_whose_speed_it_does_not_report() -> None:
    settings = {"restart_seconds": 2.0, "profile": {"share": 0.25}}
    scheduler = Scheduler(local_cluster(4), make_policy("refold", settings))
    scheduler.step(0.0, [JobSubmitted(job_on_four())])
    scheduler.step(90.0, [RunProgressed("a", 1, 0.0, 90, None, 16.0)])
    scheduler.step(100.0, [RunProgressed("a", 1, 0.0, 100, None, 16.0)])
    wake_at = scheduler.step(101.0, [RunStopped("a", 1, steps=101)]).wake_at
    assert wake_at == 101.0 + 24.0 - 2.0
    stops = scheduler.step(wake_at, [Woke()]).orders
    assert [(stop.why, stop.next and str(stop.next.plan)) for stop in stops if isinstance(stop, StopRun)] == [
        ("profiling of my-model: no speed of DP2 TP2 in time", "DP4")
    ]


def test_a_restarted_scheduler_continues_a_profiling_run_and_keeps_what_was_spent() -> None:
    job, cluster = job_on_four(), local_cluster(4)

    def scheduler() -> Scheduler:
        return Scheduler(cluster, make_policy("refold", {"restart_seconds": 2.0, "profile": {"share": 0.5}}))

    def step(scheduler: Scheduler, now: float, *events: Event) -> str:
        """Take a step; return the plan of the next run, if the job is changed."""
        orders = scheduler.step(now, events).orders
        return next((str(order.next and order.next.plan) for order in orders if isinstance(order, StopRun)), "")

    before = scheduler()
    step(before, 0.0, JobSubmitted(job))
    step(before, 90.0, RunProgressed("a", 1, 0.0, 90, None, 16.0))
    assert step(before, 100.0, RunProgressed("a", 1, 0.0, 100, None, 16.0)) == "DP2 TP2"
    step(before, 101.0, RunStopped("a", 1, steps=101))
    assert (before.view.profiling_seconds("my-model", "slot"), before.view.profiling_gpu_seconds) == (24.0, 96.0)
    after = scheduler()
    after.step(105.0, before.snapshot())
    assert (after.view.profiling_seconds("my-model", "slot"), after.view.profiling_gpu_seconds) == (24.0, 96.0)
    assert after.view.used_gpu_seconds == before.view.used_gpu_seconds + 4 * 4
    assert after.view.is_profiling("a")
    step(after, 106.0, RunProgressed("a", 2, 0.0, 110, None, 8.0))
    step(after, 110.0, RunProgressed("a", 2, 0.0, 120, None, 8.0))
    assert step(after, 111.0, RunProgressed("a", 2, 0.0, 130, None, 8.0)) == ""


def test_what_is_left_of_a_profiling_run_is_not_charged_when_it_ends() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4), policy)
    policy.next = Decision(starts=(Start("a", on(0)),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", workload="gpt", reshapable=True))])
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1), profiling=20.0),))
    scheduler.step(100.0, [])
    assert (scheduler.view.is_profiling("a"), scheduler.view.profiling_gpu_seconds) == (True, 0.0)
    scheduler.step(101.0, [RunStopped("a", 1)])
    assert (scheduler.view.is_profiling("a"), scheduler.view.profiling_gpu_seconds) == (True, 40.0)
    scheduler.step(106.0, [RunFailed("a", 2, retry=True)])
    assert (scheduler.view.profiling_seconds("gpt", "A100"), scheduler.view.profiling_gpu_seconds) == (5.0, 10.0)
    assert scheduler.view.used_gpu_seconds == 101.0 + 10.0


def test_a_change_that_is_given_up_leaves_no_profiling_run() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4), policy)
    policy.next = Decision(starts=(Start("a", on(0)),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", workload="gpt", reshapable=True))])
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1), profiling=20.0),))
    scheduler.step(100.0, [])
    scheduler.step(101.0, [JobHeld("a"), RunStopped("a", 1)])
    policy.next = Decision(starts=(Start("a", on(0)),))
    scheduler.step(102.0, [JobReleased("a")])
    assert (scheduler.view.runs["a"].profiling, scheduler.view.profiling_gpu_seconds) == (0.0, 0.0)
