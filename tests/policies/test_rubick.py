"""Rubick and its variants: the contract, and single rounds worked out by hand.

The performance model gives, on one node of eight A800s, on 1, 2, 4 and 8 GPUs: BERT 4.1, 7.7, 13.8 and 23.0 steps per
second; ViT 17, 28, 42.2 and 45.0. Gains are normalised by the speed of the request: for jobs that requested 4 GPUs,
four more gain 0.67 for BERT and 0.07 for ViT.
"""

import re
from math import inf
from typing import Any

import msgspec
import pytest

from refold.core import Policy, Scheduler, View
from refold.core.events import Event, JobSubmitted, RunStopped, Woke
from refold.core.orders import StopRun
from refold.errors import BadValue
from refold.journal import HistoryJournal
from refold.model import Allocation, Cluster, Decision, Job, Plan, Share, Start, Tenant
from refold.planning.plans.speeds import Knowledge, Speeds
from refold.policies.published.rubick.policies import Rubick, RubickE, RubickN, RubickR
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.simulator.results.guarantees import find_violations
from refold.testing import Audit, PolicyContract, make_cluster, make_job, reshapable_workload

NO_QUOTAS = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)
ONE_NODE = msgspec.structs.replace(NO_QUOTAS, tenants=(Tenant("default", 99.0),))


class TestRubick(PolicyContract):
    reshapes = True
    reshaping_seeds = range(3)

    def make_policy(self) -> Policy:
        return Rubick()


class TestRubickE(PolicyContract):
    reshapes = True
    seeds = range(3)

    def make_policy(self) -> Policy:
        return RubickE()


class TestRubickR(PolicyContract):
    reshapes = True
    seeds = range(3)

    def make_policy(self) -> Policy:
        return RubickR()


class TestRubickN(PolicyContract):
    reshapes = True
    seeds = range(3)

    def make_policy(self) -> Policy:
        return RubickN()


def modelled(workload: str, id: str, gpus: int, **more: Any) -> Job:
    """Return a reshapable best-effort job with many steps."""
    fields: dict[str, Any] = {"workload": workload, "reshapable": True, "work": None, "steps": 400_000} | more
    defaults: dict[str, Any] = {"cpus": 8 * gpus, "job_class": "best-effort"}
    return make_job(id, gpus=gpus, **defaults | fields)


def bert(id: str, gpus: int, **more: Any) -> Job:
    return modelled("bert", id, gpus, **more)


def guaranteed(id: str, gpus: int, **more: Any) -> Job:
    """Return a guaranteed BERT job."""
    return modelled("bert", id, gpus, **{"job_class": "guaranteed", "plan": Plan(gpus)} | more)


class Round:
    """The runs after one round at 1000 s, once all runs ordered to stop have stopped.

    `held`: runs since 0 s and their GPUs, placed one after another. `new`: jobs submitted at 1000 s.
    """

    def __init__(
        self, held: dict[Job, int], *new: Job, policy: Rubick | None = None, cluster: Cluster = ONE_NODE
    ) -> None:
        self.name, self._policy, self._held = "round", policy or Rubick(), held
        self.reasons: dict[str, str] = {}
        scheduler, audit = Scheduler(cluster, self), Audit(cluster)
        audit.write(scheduler.step(0.0, [JobSubmitted(job) for job in held]))
        self.before = dict(scheduler.view.runs)
        events: list[Event] = [JobSubmitted(job) for job in new]
        while events:
            entry = scheduler.step(1000.0, events)
            audit.write(entry)
            stops = [order for order in entry.orders if isinstance(order, StopRun)]
            self.reasons |= {stop.job: stop.why for stop in stops}
            events = [RunStopped(stop.job, stop.run, steps=1000) for stop in stops]
        self.runs = dict(scheduler.view.runs)

    def decide(self, view: View) -> Decision:
        if view.now > 0:
            return self._policy.decide(view)
        starts, first = [], 0
        for job, gpus in self._held.items():
            share = Share(0, tuple(range(first, first + gpus)), cpu_milli=gpus * 8000)
            plan = Plan(gpus, zero=1) if job.reshapable else None
            share = share if job.reshapable else msgspec.structs.replace(share, cpu_milli=job.demand.cpu_milli)
            starts.append(Start(job.id, Allocation((share,), plan)))
            first += gpus
        return Decision(tuple(starts))

    @property
    def gpus(self) -> dict[str, int]:
        return {job_id: run.allocation.gpu_milli // 1000 for job_id, run in sorted(self.runs.items())}

    def plan_of(self, job_id: str) -> Plan | None:
        return self.runs[job_id].allocation.plan


class TestResources:
    def test_a_single_job_takes_all_useful_gpus_and_the_best_plan_for_them(self) -> None:
        alone = Round({}, bert("only", 2, plan=Plan(2, zero=3)))
        assert alone.gpus == {"only": 8}
        assert alone.plan_of("only") == Plan(8, zero=1)

    @pytest.mark.parametrize(("min_gain", "gpus"), [(0.01, 8), (0.05, 4)])
    def test_gpus_below_the_minimum_gain_are_not_taken(
        self, min_gain: float, gpus: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("refold.policies.published.rubick.jobs.MIN_GAIN_PER_GPU", min_gain)
        # For ViT with a request of 1 GPU, the fifth to eighth gain (45.0 - 42.2) / 16.8 / 4 = 0.042 each.
        assert Round({}, modelled("vit", "only", 1)).gpus == {"only": gpus}

    def test_identical_jobs_get_equal_shares(self) -> None:
        assert Round({}, bert("a", 4), bert("b", 4)).gpus == {"a": 4, "b": 4}

    def test_the_job_with_the_larger_normalised_gain_goes_first(self) -> None:
        # A GPU gains 4.1 / 4.1 for the job that requested 1, and 4.1 / 23.0 for the job that requested 8.
        assert Round({}, bert("much", 8), bert("little", 1)).gpus == {"little": 8}

    def test_a_new_job_takes_gpus_from_the_run_with_the_smallest_loss(self) -> None:
        # Without two of its four GPUs, ViT loses 14 of 42 steps per second, a third; BERT 6 of 14, nearly half.
        held = {modelled("vit", "vit", 4): 4, bert("bert", 4): 4}
        taken = Round(held, bert("new", 2))
        assert taken.gpus["bert"] == 4
        assert taken.gpus["vit"] < 4
        assert re.match(r"gave \d GPUs to new, which gains more from them", taken.reasons["vit"])
        assert "bert" not in taken.reasons

    def test_the_reason_for_a_loss_names_gpus_job_and_speed(self) -> None:
        # Eight instead of four GPUs make BERT 67 % faster and ViT 7 %.
        assert Round({bert("first", 4): 8}, bert("new", 4)).reasons == {
            "first": "gave 4 GPUs to new, which gains more from them: -40% speed"
        }
        assert Round({modelled("vit", "first", 8): 8}, bert("new", 4)).reasons == {
            "first": "gave 4 GPUs to new, which gains more from them: -6% speed"
        }

    def test_memory_stays_in_proportion_when_a_run_shrinks(self) -> None:
        held = modelled("vit", "first", 8, memory_gib=64)
        runs = Round({held: 8}, bert("new", 4, memory_gib=32)).runs
        shares = {name: run.allocation.placement for name, run in runs.items()}
        assert {name: sum(share.memory_mib for share in placement) // 1024 for name, placement in shares.items()} == {
            "first": 32,
            "new": 32,
        }

    @pytest.mark.parametrize(("memory_gib", "gpus"), [(16, 8), (32, 4), (64, 2)])
    def test_gpus_are_taken_as_far_as_the_memory_of_the_node_suffices(self, memory_gib: int, gpus: int) -> None:
        """The node has 64 GiB; the job requests two GPUs and as much memory per GPU with any other number."""
        cluster = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=64)
        found = Round({}, bert("only", 2, memory_gib=memory_gib), cluster=cluster)
        assert (found.gpus, found.runs["only"].allocation.placement[0].memory_mib) == ({"only": gpus}, 64 * 1024)

    def test_gpus_are_taken_as_far_as_the_cpus_of_the_node_suffice(self) -> None:
        cluster = make_cluster(8, types="A800-80GB", cpus=32, memory_gib=1600)
        assert Round({}, bert("only", 2), cluster=cluster).gpus == {"only": 4}

    def test_nothing_is_taken_from_a_run_that_would_lose_more(self) -> None:
        # A first GPU gains 4.1 / 23.0 = 0.18; jobs that requested one GPU lose at least 0.37.
        assert Round({bert("a", 1): 4, bert("b", 1): 4}, bert("new", 8)).gpus == {"a": 4, "b": 4}

    def test_gpus_are_taken_only_while_the_gain_exceeds_the_loss(self) -> None:
        # From 4 to 8 GPUs BERT gains 0.67; ViT would lose all of its 1.0.
        assert Round({modelled("vit", "vit", 4): 8}, bert("new", 4)).gpus == {"new": 4, "vit": 4}

    def test_a_shrunk_run_keeps_the_same_gpus(self) -> None:
        shrunk = Round({bert("long", 4): 8}, guaranteed("sure", 4))
        assert shrunk.runs["long"].allocation.placement[0].gpus == (0, 1, 2, 3)

    def test_an_offloading_job_gets_additional_cpus(self) -> None:
        fixed = make_job("fixed", gpus=7, cpus=2, preemptible=False)
        offloading = modelled("llama7", "off", 1, cpus=4, plan=Plan(1, zero=2, offload=True))
        (share,) = Round({fixed: 7}, offloading).runs["off"].allocation.placement
        assert len(share.gpus) == 1
        assert 4_000 < share.cpu_milli <= 94_000
        assert share.memory_mib > 100 * 1024  # optimizer states of 6.7 billion parameters

    def test_spare_cpus_are_divided_by_gain(self) -> None:
        # Of 24 CPUs the first job takes all but the second's own, then loses those with the smaller loss.
        only = Plan(1, offload=True)
        fixed = make_job("fixed", gpus=6, cpus=72, preemptible=False)
        jobs = [modelled("llama7", id, 1, cpus=2, plan=only) for id in ("first", "second")]
        result = Round({fixed: 6}, *jobs, policy=Rubick(knowledge=Knowledge(menu={"llama7": (only,)})))
        assert [result.runs[job.id].allocation.cpu_milli for job in jobs] == [12_000, 12_000]

    @pytest.mark.parametrize(("loses_less", "loses_more"), ["az", "za"])
    def test_spare_cpus_are_taken_from_the_job_that_loses_least(self, loses_less: str, loses_more: str) -> None:
        # One of eight CPUs is worth 0.04 of its speed to RoBERTa and 0.1 to T5. Both requested two.
        only = Plan(1, offload=True)
        workloads = {loses_less: "roberta", loses_more: "t5", "new": "llama7"}
        jobs = {id: modelled(workload, id, 1, cpus=2, plan=only) for id, workload in workloads.items()}
        held = {make_job("fixed", gpus=5, cpus=78, preemptible=False): 5, jobs["a"]: 1, jobs["z"]: 1}
        policy = Rubick(knowledge=Knowledge(menu=dict.fromkeys(workloads.values(), (only,))))
        runs = Round(held, jobs["new"], policy=policy).runs
        cpus = {id: runs[id].allocation.cpu_milli // 1000 for id in jobs}
        assert cpus == {loses_less: 4, loses_more: 7, "new": 7}

    def test_a_job_that_does_not_offload_gets_the_cpus_requested_per_gpu(self) -> None:
        (share,) = Round({}, bert("only", 2, cpus=6)).runs["only"].allocation.placement
        assert share.cpu_milli == 24_000

    def test_a_job_that_requested_no_cpus_gets_none(self) -> None:
        (share,) = Round({}, bert("only", 2, cpus=0)).runs["only"].allocation.placement
        assert share.cpu_milli == 0


class TestGuarantees:
    def test_a_guaranteed_job_takes_gpus_from_best_effort_jobs(self) -> None:
        # Jobs that requested one GPU lose at least 0.37 per GPU, and the new job gains 0.29: it takes GPUs only because
        # of its guarantee, and no more than its minimum.
        taken = Round({bert("a", 1): 4, bert("b", 1): 4}, guaranteed("sure", 4))
        assert taken.gpus["sure"] == 4
        assert sum(taken.gpus.values()) <= 8

    def test_a_guaranteed_job_keeps_its_minimum(self) -> None:
        assert Round({guaranteed("sure", 4): 8}, bert("new", 1)).gpus == {"new": 4, "sure": 4}
        assert Round({guaranteed("sure", 8): 8}, bert("new", 1)).gpus == {"sure": 8}

    def test_the_minimum_is_defined_by_performance_not_by_gpus(self) -> None:
        poor = guaranteed("poor", 4, cpus=4, plan=Plan(4, zero=2, offload=True, recompute="full"))
        after = Round({poor: 4, make_job("fixed", gpus=4, preemptible=False): 4}, guaranteed("new", 2))
        assert after.gpus["poor"] == after.gpus["new"] == 2
        speeds = Speeds(ONE_NODE)
        run = after.runs["poor"].allocation
        assert run.plan is not None
        now = speeds.with_plan(poor, "A800-80GB", run.gpus_on_node, run.cpu_milli / 1000, run.plan)
        assert now.steps_per_second >= speeds.requested_speed(poor).steps_per_second

    def test_nothing_changes_if_the_minimum_is_not_reached(self) -> None:
        fixed = make_job("fixed", gpus=5, preemptible=False)
        unchanged = Round({fixed: 5, bert("long", 3): 3}, guaranteed("sure", 4))
        assert unchanged.gpus == {"fixed": 5, "long": 3}
        assert unchanged.reasons == {}
        assert unchanged.runs == unchanged.before

    def test_a_guaranteed_job_without_a_speed_model_stops_best_effort_jobs(self) -> None:
        held = {bert("long", 4): 8}
        assert Round(held, make_job("sure", gpus=5)).gpus["sure"] == 5
        assert Round(held, make_job("other", gpus=5, job_class="best-effort")).gpus == {"long": 8}

    def test_gpus_left_over_after_stopping_a_run_are_used_at_once(self) -> None:
        assert Round({bert("long", 4): 8}, make_job("sure", gpus=5)).gpus["long"] > 0

    @pytest.mark.parametrize(("tenant", "gpus", "starts"), [("A", 2, True), ("A", 4, False), ("B", 2, False)])
    def test_nothing_is_guaranteed_beyond_the_quota(self, tenant: str, gpus: int, starts: bool) -> None:
        cluster = msgspec.structs.replace(ONE_NODE, tenants=(Tenant("A", 2.0),))
        after = Round({bert("long", 4): 8}, make_job("sure", gpus=gpus, tenant=tenant), cluster=cluster)
        assert ("sure" in after.runs) == starts

    def test_a_job_that_is_not_preemptible_keeps_its_gpus(self) -> None:
        after = Round({bert("fixed", 4, preemptible=False): 8}, guaranteed("sure", 1), make_job("rigid", gpus=1))
        assert after.gpus == {"fixed": 8}

    @pytest.mark.parametrize("seed", range(4))
    def test_no_guarantee_is_broken_if_the_performance_model_is_exact(self, seed: int) -> None:
        jobs, cluster = reshapable_workload(seed)
        history, speeds = HistoryJournal(), Speeds(cluster)
        charge, costs = ModelledSpeeds(speeds, RecordedSpeeds(cluster)), Costs(restart=78.0, report_every=60.0)
        simulate(jobs, cluster, Rubick(), journal=history, charge=charge, costs=costs)
        found = find_violations(history.history(cluster), speeds, grace=78.0)
        assert found.guaranteed_jobs > 2
        assert [(one.job, one.kind, one.why) for one in found.violations] == []


class TestPayback:
    # At 1000 s, 2,200 steps remain: 160 s on 4 GPUs, 96 s on 8.
    NEARLY = bert("nearly", 4, steps=13_789 + 2_200)

    def test_a_run_is_not_reshaped_if_that_saves_less_than_a_restart(self) -> None:
        elsewhere = make_job("elsewhere", gpus=1, at=1000.0)
        held = {self.NEARLY: 4}
        assert Round(held, elsewhere).gpus == {"elsewhere": 1, "nearly": 4}
        assert Round({bert("long", 4): 4}, make_job("cpu", gpus=0, cpus=1)).gpus == {"cpu": 0, "long": 8}

    def test_a_run_is_reshaped_if_restarts_are_cheap(self) -> None:
        cpu = make_job("cpu", gpus=0, cpus=1)
        assert Round({self.NEARLY: 4}, cpu).gpus["nearly"] == 4
        assert Round({self.NEARLY: 4}, cpu, policy=Rubick(restart_seconds=20.0)).gpus["nearly"] == 8

    def test_the_reason_for_growth_names_speedup_and_payback(self) -> None:
        grown = Round({bert("long", 4): 4}, make_job("cpu", gpus=0, cpus=1))
        # 78 s / (1 - 13.8/23.0)
        assert grown.reasons == {"long": "now 8 GPUs: +67% speed, pays back in 3 min 15 s"}


def test_the_next_round_is_when_the_first_waiting_job_has_aged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.policies.published.rubick.jobs.AGEING_SECONDS", 500.0)
    scheduler = Scheduler(ONE_NODE, Rubick())
    scheduler.step(0.0, [JobSubmitted(make_job("busy", gpus=8, preemptible=False))])
    assert scheduler.step(10.0, [JobSubmitted(bert("a", 8, at=10.0))]).wake_at == 510.0
    assert scheduler.step(100.0, [JobSubmitted(bert("b", 8, at=100.0))]).wake_at == 510.0
    assert scheduler.step(510.0, [Woke()]).wake_at == 600.0
    assert scheduler.step(600.0, [Woke()]).wake_at is None


def test_an_aged_job_goes_first_and_keeps_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus_if_aged_after(seconds: float, jobs: list[Job]) -> dict[str, int]:
        monkeypatch.setattr("refold.policies.published.rubick.jobs.AGEING_SECONDS", seconds)
        return Round({}, *jobs).gpus

    jobs = [bert("old", 8, at=0.0, steps=1), bert("young", 1, at=900.0)]
    assert Round({}, *jobs).gpus == {"young": 8}
    assert gpus_if_aged_after(500.0, jobs)["old"] == 8
    assert gpus_if_aged_after(1000.0, jobs)["old"] == 8
    assert gpus_if_aged_after(1000.1, jobs) == {"young": 8}
    late = [bert("late", 8, at=600.0, steps=1), bert("young", 1, at=900.0)]
    assert gpus_if_aged_after(500.0, late) == {"young": 8}


class TestVariants:
    POOR = Plan(4, zero=2, offload=True)

    @pytest.mark.parametrize(
        ("policy", "gpus", "same_plan"),
        [(Rubick(), 8, False), (RubickE(), 4, False), (RubickR(), 8, True), (RubickN(), 4, True)],
        ids=["rubick", "rubick-e", "rubick-r", "rubick-n"],
    )
    def test_e_chooses_plans_r_resources_and_n_neither(self, policy: Rubick, gpus: int, same_plan: bool) -> None:
        alone = Round({}, modelled("gpt2", "poor", 4, plan=self.POOR), policy=policy)
        assert alone.gpus == {"poor": gpus}
        plan = alone.plan_of("poor")
        assert plan is not None
        assert (plan == msgspec.structs.replace(self.POOR, data=gpus)) == same_plan

    @pytest.mark.parametrize("policy", [RubickE(), RubickN()], ids=["rubick-e", "rubick-n"])
    def test_variants_with_fixed_resources_take_nothing_from_best_effort_runs(self, policy: Rubick) -> None:
        assert Round({bert("a", 4): 4, bert("b", 4): 4}, bert("new", 1), policy=policy).gpus == {"a": 4, "b": 4}


def test_settings_may_be_zero() -> None:
    """With free restarts, the run grows at once."""
    policy = Rubick(restart_seconds=0.0)
    grown = Round({bert("long", 4): 4}, make_job("cpu", gpus=0, cpus=1), policy=policy)
    assert grown.reasons == {"long": "now 8 GPUs: +67% speed, pays back in 0 s"}


def test_invalid_settings_are_rejected() -> None:
    for settings in (
        {"restart_seconds": -1.0},
        {"restart_seconds": inf},
    ):
        with pytest.raises(BadValue):
            Rubick(**settings)  # type: ignore[arg-type]
