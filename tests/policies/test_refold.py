"""Refold's own policy: the contract, and worked cases of starting, preempting and growing jobs.

The performance model gives, on one node of eight A800s, on 1, 2, 4 and 8 GPUs: BERT 4.1, 7.7, 13.8 and 23.0 steps per
second; ViT 17, 28, 42.2 and 45.0, so it gains almost nothing from the last four GPUs.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from refold.core import Entry, Journals, ListJournal, Policy, View
from refold.core.orders import StartRun, StopRun
from refold.errors import BadValue, UnknownName
from refold.journal import HistoryJournal
from refold.model import ChangeLimit, Cluster, Job, Plan, Reason, Tenant
from refold.planning.plans.speeds import Speeds
from refold.policies.common import Draft
from refold.policies.refold import preemption as refold_preemption
from refold.policies.refold.policy import Refold
from refold.policies.refold.sources import JobFacts, JobSources
from refold.policies.refold.table import EstimateRow
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.simulator.results.guarantees import find_violations
from refold.testing import Audit, PolicyContract, make_cluster, make_job, reshapable_workload

NO_QUOTAS = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)
ONE_NODE = msgspec.structs.replace(NO_QUOTAS, tenants=(Tenant("default", 99.0),))
TWO_NODES = msgspec.structs.replace(
    ONE_NODE, nodes=make_cluster(8, 8, types="A800-80GB", cpus=96, memory_gib=1600).nodes
)
COSTS = Costs(restart=78.0, report_every=60.0)


class TestContract(PolicyContract):
    reshapes = True

    def make_policy(self) -> Policy:
        return Refold()


class TestContractWithoutTrust(PolicyContract):
    reshapes = True
    seeds = range(2)
    reshaping_seeds = range(1)

    def make_policy(self) -> Policy:
        return Refold(restart_seconds=10.0, trust_steps=False, gpu_price=0.5, max_preemptors=2, overtaking_share=0.2)


def modelled(workload: str, id: str, gpus: int, at: float, steps: int | None, **more: Any) -> Job:
    """Return a reshapable best-effort job."""
    fields: dict[str, Any] = {"workload": workload, "reshapable": True, "work": None, "job_class": "best-effort"} | more
    return make_job(id, gpus=gpus, cpus=8 * gpus, at=at, steps=steps, **fields)


def rigid(id: str, gpus: int, at: float, work: float, **more: Any) -> Job:
    """Return a best-effort job without a speed model."""
    return make_job(id, gpus=gpus, at=at, work=work, **{"job_class": "best-effort"} | more)


class Simulation:
    """A simulation's orders: (time, job, GPUs) of every start, and (time, job, reason) of every stop."""

    def __init__(self, jobs: Sequence[Job], policy: Refold | None = None, cluster: Cluster = ONE_NODE) -> None:
        self.journal = ListJournal()
        charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
        journals = Journals(Audit(cluster), self.journal)
        simulate(jobs, cluster, policy or Refold(), journal=journals, charge=charge, costs=COSTS)
        orders = [(round(entry.now), order) for entry in self.journal.entries for order in entry.orders]
        self.starts = [
            (at, order.job, order.allocation.gpu_milli // 1000) for at, order in orders if isinstance(order, StartRun)
        ]
        self.stops = [(at, order.job, order.why) for at, order in orders if not isinstance(order, StartRun)]

    @property
    def wakes(self) -> list[int]:
        return [round(entry.wake_at) for entry in self.journal.entries if entry.wake_at is not None]


class TestOrder:
    def test_a_single_job_gets_all_gpus_that_make_it_faster(self) -> None:
        assert Simulation([modelled("bert", "only", 2, 0, 50_000)]).starts == [(0, "only", 8)]

    def test_the_waiting_job_with_the_least_remaining_work_goes_first(self) -> None:
        jobs = [
            rigid("busy", 8, 0, 500, preemptible=False),
            modelled("bert", "long", 8, 1, 50_000),
            modelled("bert", "short", 8, 2, 500),
            modelled("bert", "middle", 8, 3, 5_000),
        ]
        assert list(dict.fromkeys(job for _, job, _ in Simulation(jobs).starts)) == ["busy", "short", "middle", "long"]

    def test_jobs_start_smaller_while_many_jobs_wait(self) -> None:
        jobs = [rigid("busy", 8, 0, 500, preemptible=False)]
        jobs += [modelled("bert", f"j{number}", 8, 1 + number, 5_000 + number) for number in range(6)]
        gpus_at_500 = [gpus for at, job, gpus in Simulation(jobs).starts if job != "busy" and at == 500]
        assert len(gpus_at_500) >= 3
        assert sum(gpus_at_500) == 8
        with_free_gpu_time = Simulation(jobs, Refold(gpu_price=0.0))
        assert with_free_gpu_time.starts[1] == (500, "j0", 8)

    def test_a_job_without_a_speed_model_runs_as_requested(self) -> None:
        simulation = Simulation(
            [rigid("third", 3, 0, 100), make_job("half", gpus=1, share=0.5), make_job("cpu", gpus=0, cpus=4)]
        )
        assert sorted(simulation.starts) == [(0, "cpu", 0), (0, "half", 0), (0, "third", 3)]
        assert simulation.stops == []


class TestPreemption:
    def test_a_long_job_is_shrunk_if_that_delays_it_less_than_it_helps_a_short_one(self) -> None:
        simulation = Simulation([modelled("vit", "long", 8, 0, 800_000), modelled("bert", "short", 4, 1000, 20_000)])
        assert simulation.starts[:3] == [(0, "long", 8), (1000, "long", 4), (1000, "short", 4)]
        at, job, why = simulation.stops[0]
        assert (at, job) == (1000, "long")
        assert re.fullmatch(r"gave 4 GPUs to short: −6% speed, ends [\d a-z]+ later", why)

    def test_a_long_job_is_stopped_for_a_short_one_if_shrinking_would_delay_it_more(self) -> None:
        simulation = Simulation([modelled("bert", "long", 8, 0, 400_000), modelled("bert", "short", 4, 1000, 2_000)])
        assert simulation.starts == [(0, "long", 8), (1000, "short", 8), (1087, "long", 8)]
        # 2,000 steps take 87 s on 8 GPUs.
        why = "gave all 8 GPUs to short, which has less work left: resumes in about 2 min 45 s"
        assert simulation.stops == [(1000, "long", why)]

    def test_a_nearly_finished_job_is_not_preempted(self) -> None:
        # At 900 s, 2,293 steps remain, which take 100 s; the new job would take 87 s and the restart 78 s.
        simulation = Simulation([modelled("bert", "nearly", 8, 0, 23_000), modelled("bert", "new", 4, 900, 2_000)])
        assert simulation.starts == [(0, "nearly", 8), (1000, "new", 8)]
        assert simulation.stops == []

    def test_a_job_is_not_preempted_by_a_longer_one(self) -> None:
        simulation = Simulation([modelled("bert", "first", 8, 0, 23_000), modelled("bert", "longer", 8, 100, 230_000)])
        assert simulation.starts == [(0, "first", 8), (1000, "longer", 8)]

    def test_without_preemptors_jobs_wait_for_free_gpus(self) -> None:
        jobs = [modelled("vit", "long", 8, 0, 400_000), modelled("bert", "short", 4, 1000, 20_000)]
        assert Simulation(jobs, Refold(max_preemptors=0)).stops == []
        assert Simulation(jobs, Refold(max_preemptors=1)).stops[0][:2] == (1000, "long")

    @pytest.mark.parametrize("names", ["az", "za"])
    def test_gpus_beyond_a_request_go_to_the_waiting_job_with_the_least_remaining_work(self, names: str) -> None:
        jobs = [modelled("bert", "long", 4, 0, 400_000, gpu_range=(4, 8))]
        jobs += [modelled("bert", name, 4, 1000, 20_000 * nth, gpu_range=(4, 4)) for nth, name in enumerate(names, 1)]
        simulation = Simulation(jobs, Refold(max_preemptors=0))
        assert simulation.starts[:3] == [(0, "long", 8), (1000, "long", 4), (1000, names[0], 4)]

    @pytest.mark.parametrize(("max_preemptors", "started"), [(0, 0), (1, 1)])
    def test_only_so_many_jobs_preempt_in_one_round(self, max_preemptors: int, started: int) -> None:
        jobs = [modelled("vit", f"long{number}", 8, 0, 400_000, gpu_range=(1, 8)) for number in range(2)]
        jobs += [modelled("bert", f"short{number}", 4, 1000, 20_000, gpu_range=(4, 4)) for number in range(2)]
        simulation = Simulation(jobs, Refold(max_preemptors=max_preemptors), TWO_NODES)
        assert [at for at, job, _ in simulation.starts if job.startswith("short")].count(1000) == started

    def test_a_job_that_is_not_preemptible_is_not_preempted(self) -> None:
        jobs = [modelled("vit", "fixed", 8, 0, 40_000, preemptible=False), make_job("sure", gpus=1, at=10)]
        simulation = Simulation(jobs)
        assert simulation.starts == [(0, "fixed", 8), (888, "sure", 1)]
        assert simulation.stops == []

    def test_a_job_that_is_not_reshapable_is_stopped_but_not_moved(self) -> None:
        cluster = make_cluster(4, 4, types="A800-80GB")
        jobs = [rigid("a", 2, 0, 90_000), rigid("a2", 2, 1, 15_005), rigid("b", 2, 15_000, 9000)]
        simulation = Simulation([*jobs, rigid("wide", 4, 20_000, 50)], cluster=cluster)
        # `a` has run for 20,000 s and is predicted to run much longer than `b`.
        assert next(start for start in simulation.starts if start[0] >= 20_000) == (20_000, "wide", 4)
        assert [job for _, job, _ in simulation.stops] == ["a"]

    def test_a_run_is_moved_to_free_gpus_of_another_node(self) -> None:
        nodes = make_cluster(4, 4, types="A800-80GB", cpus=96, memory_gib=1600).nodes
        jobs = [
            modelled("bert", "moved", 2, 0, 400_000, gpu_range=(2, 2)),
            rigid("ends", 2, 1, 100, preemptible=False),
            rigid("stays", 2, 2, 90_000, preemptible=False),
            make_job("wide", gpus=4, at=1000, work=50),
        ]
        simulation = Simulation(jobs, cluster=msgspec.structs.replace(ONE_NODE, nodes=nodes))
        assert simulation.starts[3:] == [(1000, "moved", 2), (1000, "wide", 4)]
        assert simulation.stops == [(1000, "moved", "moved for wide: −0% speed, ends 1 min 18 s later")]

    def test_a_job_waiting_for_a_run_to_stop_has_the_reason_releasing(self) -> None:
        journal = ListJournal()
        jobs = [modelled("bert", "long", 8, 0, 400_000), modelled("bert", "short", 4, 1000, 2_000)]
        charge = ModelledSpeeds(Speeds(ONE_NODE), RecordedSpeeds(ONE_NODE))
        simulate(jobs, ONE_NODE, Refold(), journal=journal, charge=charge, costs=Costs(stop=5.0, restart=78.0))
        waits = [(entry.now, wait.job, wait.reason) for entry in journal.entries for wait in entry.waits]
        assert waits[0] == (1000, "short", Reason.RELEASING)

    @pytest.mark.parametrize("names", ["az", "za"])
    def test_the_job_with_the_most_remaining_work_is_preempted(self, names: str) -> None:
        size: dict[str, Any] = {"gpu_range": (4, 4)}
        jobs = [modelled("bert", name, 4, 0, 400_000 * (1 + nth), **size) for nth, name in enumerate(names)]
        simulation = Simulation([*jobs, modelled("bert", "short", 4, 1000, 2_000, **size)])
        assert [(at, job) for at, job, _ in simulation.stops] == [(1000, names[1])]


class TestGrowing:
    @pytest.mark.parametrize("names", ["az", "za"])
    @pytest.mark.parametrize("longer", [0, 1])
    def test_free_gpus_go_to_the_job_that_saves_the_most_time_with_them(self, names: str, longer: int) -> None:
        """Two equal runs of different length, on two GPUs each, when two more are free at 800 s."""
        others = [rigid("forever", 2, 0, 100_000), rigid("ends", 2, 0, 800), rigid("soon", 2, 0, 3)]
        jobs = [msgspec.structs.replace(job, preemptible=False) for job in others]
        for nth, name in enumerate(names):
            steps = 400_000 if nth == longer else 40_000
            jobs.append(modelled("bert", name, 2, 1 + nth, steps, gpu_range=(2, 4)))
        simulation = Simulation(jobs)
        assert simulation.starts[3:6] == [(1, names[0], 2), (3, names[1], 2), (800, names[longer], 4)]

    def test_a_run_grows_when_no_job_has_arrived_for_the_payback_time(self) -> None:
        simulation = Simulation(
            [rigid("beside", 4, 0, 100, preemptible=False), modelled("bert", "long", 4, 10, 400_000)]
        )
        # It is 67 % faster on 8 GPUs: a restart of 78 s pays back in 78 / (1 - 13.8/23.0) = 195 s. The last job arrived
        # at 10 s, so the gap reaches that length at 205 s.
        assert simulation.wakes == [205]
        assert simulation.starts == [(0, "beside", 4), (10, "long", 4), (205, "long", 8)]
        assert simulation.stops == [(205, "long", "took 4 free GPUs: +67% speed, pays back in 3 min 15 s")]

    def test_a_run_grows_at_once_if_the_gap_between_arrivals_is_long_enough(self) -> None:
        simulation = Simulation(
            [rigid("beside", 4, 0, 500, preemptible=False), modelled("bert", "long", 4, 10, 400_000)]
        )
        assert simulation.wakes == []
        assert simulation.starts[2:] == [(500, "long", 8)]

    def test_a_run_does_not_grow_if_that_does_not_pay_back(self) -> None:
        # At 500 s, 2,200 steps remain: 163 s on 4 GPUs, 98 + 78 s after a restart on 8.
        simulation = Simulation(
            [rigid("beside", 4, 0, 500, preemptible=False), modelled("bert", "nearly", 4, 10, 9_000)]
        )
        assert simulation.starts == [(0, "beside", 4), (10, "nearly", 4)]
        assert (simulation.stops, simulation.wakes) == ([], [])

    def test_a_longer_restart_pays_back_later_or_never(self) -> None:
        jobs = [rigid("beside", 4, 0, 100, preemptible=False), modelled("bert", "long", 4, 10, 40_000)]
        assert Simulation(jobs, Refold(restart_seconds=260.0)).wakes == [659]  # 10 + 260 / (1 - 13.8/23.0)
        assert Simulation(jobs, Refold(restart_seconds=2000.0)).stops == []

    def test_a_job_that_is_not_preemptible_does_not_grow(self) -> None:
        jobs = [rigid("beside", 4, 0, 500), modelled("bert", "fixed", 4, 10, 400_000, preemptible=False)]
        assert Simulation(jobs).starts == [(0, "beside", 4), (10, "fixed", 4)]


class TestGuarantees:
    def test_a_guaranteed_job_starts_at_once_by_shrinking_a_best_effort_job(self) -> None:
        sure = modelled("bert", "sure", 4, 1000, 20_000, job_class="guaranteed", plan=Plan(4))
        simulation = Simulation([modelled("vit", "long", 8, 0, 400_000), sure])
        assert simulation.starts[:3] == [(0, "long", 8), (1000, "long", 4), (1000, "sure", 4)]

    def test_a_guaranteed_job_starts_in_a_shape_without_safety_margin_if_no_other_fits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a good plan, two GPUs are as fast as four with the requested plan, but not ten times as fast."""
        poor = Plan(4, zero=2, offload=True, recompute="full")
        jobs = [rigid("busy", 6, 0, 500, preemptible=False)]
        jobs.append(modelled("bert", "sure", 4, 1, 50_000, job_class="guaranteed", plan=poor))
        monkeypatch.setattr("refold.policies.refold.policy.SAFETY_FACTOR", 10.0)
        assert Simulation(jobs).starts[1] == (1, "sure", 2)

    def test_a_guaranteed_job_does_not_wait_for_a_shorter_best_effort_job(self) -> None:
        sure = modelled("bert", "sure", 8, 10, 200_000, job_class="guaranteed", plan=Plan(8))
        simulation = Simulation([rigid("short", 8, 0, 60), sure])
        assert simulation.starts[:2] == [(0, "short", 8), (10, "sure", 8)]

    def test_a_waiting_guaranteed_job_starts_before_shorter_best_effort_jobs(self) -> None:
        size: dict[str, Any] = {"gpu_range": (8, 8)}
        jobs = [
            rigid("busy", 8, 0, 500, preemptible=False),
            modelled("bert", "short", 8, 1, 500, **size),
            modelled("bert", "sure", 8, 2, 200_000, job_class="guaranteed", plan=Plan(8), **size),
        ]
        assert [job for _, job, _ in Simulation(jobs).starts] == ["busy", "sure", "short"]

    def test_a_guaranteed_job_is_not_stopped_for_a_shorter_one(self) -> None:
        sure = modelled("bert", "sure", 8, 0, 200_000, job_class="guaranteed", plan=Plan(8))
        simulation = Simulation([sure, modelled("bert", "short", 8, 1000, 500)])
        assert simulation.starts[0] == (0, "sure", 8)
        assert [job for _, job, _ in simulation.stops] == []

    def test_guaranteed_jobs_do_not_stop_each_other(self) -> None:
        simulation = Simulation([make_job("first", gpus=8, work=1000), make_job("second", at=10, gpus=8, work=10)])
        assert simulation.starts == [(0, "first", 8), (1000, "second", 8)]

    def test_a_guaranteed_job_above_its_minimum_gives_gpus_to_another_guaranteed_job(self) -> None:
        first = modelled("bert", "first", 4, 0, 200_000, job_class="guaranteed", plan=Plan(4))
        second = modelled("bert", "second", 4, 1000, 200_000, job_class="guaranteed", plan=Plan(4))
        assert Simulation([first, second]).starts[:3] == [(0, "first", 8), (1000, "first", 4), (1000, "second", 4)]

    def test_a_guaranteed_job_takes_gpus_from_best_effort_jobs_before_other_guaranteed_jobs(self) -> None:
        sure: dict[str, Any] = {"job_class": "guaranteed", "plan": Plan(4), "gpu_range": (4, 8)}
        jobs = [
            modelled("bert", "sure", 4, 0, 900_000, **sure),  # it has the most work left, and four GPUs to spare
            modelled("vit", "spare", 8, 1, 400_000, gpu_range=(1, 8)),
            modelled("bert", "new", 4, 1000, 20_000, **sure),
        ]
        simulation = Simulation(jobs, cluster=TWO_NODES)
        assert simulation.starts[:4] == [(0, "sure", 8), (1, "spare", 8), (1000, "spare", 4), (1000, "new", 4)]

    def test_a_guaranteed_job_that_is_displaced_is_placed_before_best_effort_jobs(self) -> None:
        """`new` needs all of n0. Of its victims, the guaranteed one gets the two GPUs of n1; the other waits."""
        nodes = make_cluster(8, 2, types="A800-80GB", cpus=96, memory_gib=1600).nodes
        sure: dict[str, Any] = {"job_class": "guaranteed"}
        jobs = [
            modelled("bert", "sure", 2, 0, 900_000, plan=Plan(2), gpu_range=(2, 4), **sure),
            modelled("bert", "spare", 2, 1, 900_000, gpu_range=(2, 4)),
            modelled("bert", "new", 8, 1000, 20_000, plan=Plan(8), gpu_range=(8, 8), **sure),
        ]
        simulation = Simulation(jobs, cluster=msgspec.structs.replace(ONE_NODE, nodes=nodes))
        assert simulation.starts[:4] == [(0, "sure", 4), (1, "spare", 4), (1000, "sure", 2), (1000, "new", 8)]
        assert simulation.stops[:2] == [
            (1000, "spare", "gave all 4 GPUs to new, which is guaranteed: resumes in about 15 min 47 s"),
            (1000, "sure", "gave 2 GPUs to new: −46% speed, ends 9 min 14 s later"),
        ]

    def test_jobs_on_other_nodes_keep_their_gpus_when_a_node_is_cleared(self) -> None:
        jobs = [modelled("bert", f"j{number}", 4, number, 900_000, gpu_range=(4, 4)) for number in range(4)]
        jobs.append(modelled("bert", "new", 8, 1000, 20_000, plan=Plan(8), gpu_range=(8, 8), job_class="guaranteed"))
        simulation = Simulation(jobs, cluster=TWO_NODES)
        stopped = {job for at, job, _ in simulation.stops if at == 1000}
        assert (len(stopped), simulation.starts[4]) == (2, (1000, "new", 8))
        assert stopped in ({"j0", "j1"}, {"j2", "j3"})

    def test_a_guaranteed_job_starts_smaller_if_another_that_starts_now_would_not_fit(self) -> None:
        nodes = make_cluster(8, 8, 2, types="A800-80GB", cpus=96, memory_gib=1600).nodes
        jobs = [
            modelled("bert", "small", 2, 0, 200, gpu_range=(2, 8), plan=Plan(2), job_class="guaranteed"),
            modelled(
                "bert", "wide", 8, 0, 90_000, instances=2, gpu_range=(16, 16), plan=Plan(16), job_class="guaranteed"
            ),
        ]
        simulation = Simulation(jobs, cluster=msgspec.structs.replace(ONE_NODE, nodes=nodes))
        assert simulation.starts[:2] == [(0, "small", 2), (0, "wide", 16)]

    def test_without_quotas_nothing_is_guaranteed(self) -> None:
        sure = modelled("bert", "sure", 8, 10, 200_000, job_class="guaranteed", plan=Plan(8))
        assert Simulation([rigid("short", 8, 0, 60), sure], cluster=NO_QUOTAS).starts[:2] == [
            (0, "short", 8),
            (60, "sure", 8),
        ]

    @pytest.mark.parametrize(("gpus", "tenant", "starts"), [(2, "A", 20), (4, "A", 50), (2, "other", 50)])
    def test_a_guaranteed_job_beyond_its_quota_is_not_guaranteed(self, gpus: int, tenant: str, starts: int) -> None:
        cluster = msgspec.structs.replace(ONE_NODE, tenants=(Tenant("A", 2.0),))
        jobs = [rigid("short", 8, 0, 50), make_job("sure", tenant=tenant, gpus=gpus, at=20, work=100)]
        assert Simulation(jobs, cluster=cluster).starts[1] == (starts, "sure", gpus)

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
    def test_no_guarantee_is_broken_if_the_performance_model_is_exact(self, seed: int) -> None:
        self._check_guarantees(*reshapable_workload(seed))

    @pytest.mark.parametrize("seed", [5, 9, *(pytest.param(seed, marks=pytest.mark.long) for seed in (14, 19))])
    def test_no_guarantee_is_broken_on_a_crowded_cluster(self, seed: int) -> None:
        """The quota is the whole cluster, so guaranteed jobs often fit only if others are shrunk or moved."""
        rng, jobs = Random(seed), []
        for number in range(30):
            gpus, instances = rng.choice([(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)])
            at, steps = rng.randrange(0, 3000, 100), rng.randrange(5_000, 60_000)
            job_class = rng.choice(["guaranteed", "guaranteed", "best-effort"])
            more: dict[str, Any] = {"instances": instances, "plan": Plan(gpus * instances), "job_class": job_class}
            jobs.append(modelled(rng.choice(["bert", "vit"]), f"j{number}", gpus, at, steps, **more))
        nodes = make_cluster(8, 8, 8, types="A800-80GB", cpus=96, memory_gib=1600).nodes
        cluster = msgspec.structs.replace(NO_QUOTAS, nodes=nodes, tenants=(Tenant("default", 24.0),))
        self._check_guarantees(sorted(jobs, key=lambda job: job.submitted), cluster)

    def _check_guarantees(self, jobs: Sequence[Job], cluster: Cluster) -> None:
        history, speeds = HistoryJournal(), Speeds(cluster)
        simulate(
            jobs,
            cluster,
            Refold(),
            journal=history,
            charge=ModelledSpeeds(speeds, RecordedSpeeds(cluster)),
            costs=COSTS,
        )
        found = find_violations(history.history(cluster), speeds, grace=0.0)
        assert found.guaranteed_jobs > 2
        assert [(one.job, one.kind, one.why) for one in found.violations] == []


class TestThroughput:
    """With `goal="throughput"`, the sum of the speeds counts, each relative to the speed of the job's request."""

    POLICY: ClassVar[dict[str, Any]] = {"goal": "throughput"}
    VIT = modelled("vit", "vit", 4, 0, 500_000)

    def test_a_single_job_gets_all_gpus_that_make_it_faster(self) -> None:
        simulation = Simulation([modelled("bert", "only", 2, 0, 50_000)], Refold(**self.POLICY))
        assert (simulation.starts, simulation.stops) == ([(0, "only", 8)], [])

    def test_a_run_shrinks_if_the_sum_of_speeds_rises_and_grows_again_when_gpus_are_free(self) -> None:
        simulation = Simulation([self.VIT, modelled("bert", "bert", 4, 1000, 20_000)], Refold(**self.POLICY))
        assert simulation.starts == [(0, "vit", 8), (1000, "vit", 4), (1000, "bert", 4), (2450, "vit", 8)]
        assert simulation.stops == [
            (1000, "vit", "total normalised throughput rises from 1.12 to 2.11"),
            (2450, "vit", "total normalised throughput rises from 1.05 to 1.12"),
        ]

    def test_a_change_waits_until_no_job_has_arrived_for_its_payback_time(self) -> None:
        # A restart of 78 s costs 1.12 × 78 = 88 units of work, regained in 88 / (2.11 - 1.12) = 88 s from 10 s on.
        simulation = Simulation([self.VIT, modelled("bert", "bert", 4, 10, 2_000)], Refold(**self.POLICY))
        assert simulation.wakes[0] == 98
        assert simulation.starts[:3] == [(0, "vit", 8), (99, "vit", 4), (99, "bert", 4)]

    def test_runs_whose_shape_does_not_change_are_not_restarted(self) -> None:
        jobs = [modelled("bert", f"j{number}", 4, 10 * number, 400_000, gpu_range=(4, 4)) for number in range(4)]
        simulation = Simulation(jobs, Refold(**self.POLICY), TWO_NODES)
        assert simulation.starts == [(0, "j0", 4), (10, "j1", 4), (20, "j2", 4), (30, "j3", 4)]
        assert simulation.stops == []

    def test_a_job_without_a_speed_model_waits_for_free_gpus(self) -> None:
        simulation = Simulation([self.VIT, rigid("rigid", 4, 1000, 50)], Refold(**self.POLICY))
        assert [job for _, job, _ in simulation.starts] == ["vit", "rigid"]
        assert simulation.stops == []

    def test_guaranteed_jobs_come_first(self) -> None:
        sure = modelled("bert", "sure", 4, 1000, 20_000, job_class="guaranteed", plan=Plan(4))
        simulation = Simulation([modelled("vit", "vit", 8, 0, 500_000), sure], Refold(**self.POLICY))
        assert simulation.starts[:3] == [(0, "vit", 8), (1000, "vit", 4), (1000, "sure", 4)]

    def test_an_unknown_goal_is_rejected(self) -> None:
        with pytest.raises(UnknownName, match="unknown goal of refold 'speed'"):
            Refold(goal="speed")


class TestOvertaking:
    JOBS = (
        rigid("long", 5, 0, 1000),
        rigid("wide", 8, 10, 100),
        *(rigid(f"s{number}", 3, 100 + 100 * number, 250) for number in range(6)),
    )

    def test_a_job_is_overtaken_by_shorter_ones(self) -> None:
        late = Simulation(self.JOBS, Refold(wide_weight=0.0, overtaking_share=1.0)).starts
        assert {"s1", "s2", "s3"} < {job for _, job, _ in late[: [job for _, job, _ in late].index("wide")]}

    def test_a_job_that_was_overtaken_too_much_goes_first(self) -> None:
        """From 100 s on, shorter jobs use 3 GPUs and `long` 5: after a minute, they have used a fifth of all."""
        early = Simulation(self.JOBS, Refold(wide_weight=0.0, overtaking_share=0.2)).starts
        assert early[:3] == [(0, "long", 5), (100, "s0", 3), (200, "wide", 8)]


class TestUnknownWork:
    def test_without_trust_in_steps_a_job_is_preempted_by_one_with_less_attained_service(self) -> None:
        jobs = [modelled("bert", "old", 8, 0, 500_000), modelled("bert", "new", 8, 10_000, 900_000)]
        assert Simulation(jobs).stops == []
        simulation = Simulation(jobs, Refold(trust_steps=False))
        assert simulation.starts[:3] == [(0, "old", 8), (10_000, "old", 4), (10_000, "new", 4)]

    def test_a_job_without_declared_steps_is_preempted_by_one_with_less_attained_service(self) -> None:
        jobs = [modelled("bert", "old", 8, 0, None, work=1000.0), modelled("bert", "new", 8, 500, None, work=1000.0)]
        assert Simulation(jobs).starts[:3] == [(0, "old", 8), (500, "old", 4), (500, "new", 4)]

    def test_a_wide_job_beyond_the_share_preempts_a_much_longer_one(self) -> None:
        jobs = [rigid("old", 8, 0, 50_000), rigid("new", 8, 20_000, 1000)]
        assert Simulation(jobs, Refold(wide_share=0.5)).starts[:2] == [(0, "old", 8), (20_000, "new", 8)]

    def test_a_job_of_unknown_length_is_restarted_at_most_so_often(self) -> None:
        jobs = [rigid("old", 8, 0, 20_000), *(rigid(f"j{at}", 8, at, 100) for at in range(4000, 24_000, 1000))]
        for limit in (0, 1, 3):
            starts = Simulation(jobs, Refold(max_restarts=limit)).starts
            assert sum(job == "old" for _, job, _ in starts) == 1 + limit

    def test_a_run_is_not_stopped_before_it_has_run_as_long_as_a_restart_takes(self) -> None:
        jobs = [rigid("old", 8, 0, 50_000), rigid("new", 8, 20_000, 50_000), rigid("next", 1, 20_010, 10)]
        assert Simulation(jobs, Refold(wide_weight=0.0)).starts[1:3] == [(20_000, "new", 8), (20_130, "next", 1)]

    def test_a_wide_job_weighs_more_than_the_jobs_that_make_room_for_it(self) -> None:
        narrow = [rigid(f"n{number}", 1, number, 30_000) for number in range(8)]
        jobs = [*narrow, rigid("wide", 8, 900, 100)]
        assert (900, "wide", 8) in Simulation(jobs).starts
        assert (900, "wide", 8) not in Simulation(jobs, Refold(wide_weight=0.0)).starts

    def test_wide_jobs_go_first_only_up_to_their_share_of_the_cluster(self) -> None:
        """Two nodes are full of long narrow jobs; of two wide jobs, one makes room for itself with half of the GPUs."""
        narrow = [rigid(f"n{number:02}", 1, number, 30_000) for number in range(16)]
        wide = [rigid("w0", 8, 900, 100), rigid("w1", 8, 901, 100)]

        def wide_starts(share: float) -> list[str]:
            policy = Refold(wide_share=share)
            starts = Simulation([*narrow, *wide], policy, TWO_NODES).starts
            return [job for at, job, _ in starts if job.startswith("w") and at < 905]

        assert [wide_starts(share) for share in (0.0, 0.5, 1.0)] == [[], ["w0"], ["w0", "w1"]]


class TestPriority:
    def test_a_job_of_higher_priority_goes_before_shorter_ones(self) -> None:
        jobs = [
            rigid("busy", 8, 0, 500, preemptible=False),
            modelled("bert", "short", 8, 1, 500, gpu_range=(8, 8)),
            modelled("bert", "urgent", 8, 2, 50_000, gpu_range=(8, 8), priority=1),
        ]
        assert [job for _, job, _ in Simulation(jobs).starts][:2] == ["busy", "urgent"]

    def test_a_job_of_higher_priority_preempts_shorter_runs_that_have_just_started(self) -> None:
        simulation = Simulation([rigid("short", 8, 0, 100), rigid("urgent", 8, 10, 9000, priority=1)])
        assert simulation.starts[:2] == [(0, "short", 8), (10, "urgent", 8)]

    def test_a_run_of_higher_priority_is_not_preempted(self) -> None:
        jobs = [rigid("urgent", 8, 0, 90_000, priority=1), rigid("short", 8, 50_000, 10)]
        assert Simulation(jobs, Refold(overtaking_share=0.0)).stops == []


def test_settings_may_be_zero() -> None:
    policy = Refold(restart_seconds=0.0, gpu_price=0.0, max_preemptors=0)
    assert Simulation([rigid("a", 1, 0, 100)], policy).starts == [(0, "a", 1)]


@pytest.mark.parametrize(
    "settings",
    [
        {"gpu_price": -1},
        {"weight_doubling_seconds": 0},
        {"overtaking_share": -0.1},
        {"overtaking_share": 1.1},
        {"max_preemptors": -1},
        {"restart_seconds": -1},
        {"wide_weight": -1},
        {"wide_share": 1.1},
        {"wide_share": -0.1},
        {"delay_doubling_seconds": 0},
        {"preemption_margin": 0.5},
        {"max_restarts": -1},
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        Simulation([make_job("a")], Refold(**settings))  # type: ignore[arg-type]


class CheckedTable(Refold):
    """Compares what is kept of all jobs between rounds with what a round would find out without it."""

    kept = renewed = 0
    known: Mapping[str, JobFacts] = {}
    """What was known at the last round."""

    def _run_round(self, view: View, sources: JobSources) -> Draft:
        anew = JobSources(
            sources.estimator, sources.options, sources.guarantees, sources.expected_service, sources.fair_share
        )
        anew.kinds = sources.kinds
        anew.update(view)
        assert (sources.facts, sources.by_id) == (anew.facts, anew.by_id)
        assert set(sources.with_shapes) == set(anew.with_shapes)
        assert set(sources.with_range) == set(anew.with_range)
        own_rows, other_rows = sources.table.rows(sources.by_id), anew.table.rows(sources.by_id)
        for name in EstimateRow._fields:
            own, other = sources.table.column(name)[own_rows], anew.table.column(name)[other_rows]
            np.testing.assert_array_equal(own, other, name)
        self.renewed += sum(sources.facts[job_id] is not self.known.get(job_id) for job_id in sources.facts)
        self.kept += sum(sources.facts[job_id] is self.known.get(job_id) for job_id in sources.facts)
        self.known = dict(sources.facts)
        return super()._run_round(view, sources)


@pytest.mark.parametrize("cluster", [NO_QUOTAS, TWO_NODES])
def test_what_is_kept_of_jobs_between_rounds_is_up_to_date(cluster: Cluster) -> None:
    jobs = [
        rigid(f"job-{number}", 1 + number % 8, 3 * number, 60 + number % 500, preemptible=number % 5 > 0)
        for number in range(100)
    ]
    classes = ("guaranteed", "best-effort")
    for number in range(20):
        limits = {"gpu_range": (1, 8), "change_limit": ChangeLimit(every=300.0), "job_class": classes[number % 2]}
        jobs.append(modelled("bert", f"bert-{number}", 4, 40 * number, 500, **limits))
    policy, charge = CheckedTable(restart_seconds=1.0), ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(sorted(jobs, key=lambda job: job.submitted), cluster, policy, charge=charge, costs=COSTS)
    assert policy.kept > policy.renewed > 0


def test_kinds_of_jobs_that_have_ended_are_forgotten() -> None:
    kinds: list[int] = []

    class Counting(Refold):
        def _run_round(self, view: View, sources: JobSources) -> Draft:
            found = super()._run_round(view, sources)
            kinds.append(len(sources.kinds))
            return found

    jobs = [
        make_job(f"j{number}", gpus=1, cpus=1 + number % 8, memory_gib=1 + number, at=number, work=1.0)
        for number in range(400)
    ]
    simulate(jobs, NO_QUOTAS, Counting())
    assert 50 < max(kinds) < 150


@pytest.mark.parametrize("margin", [pytest.param(1.0, marks=pytest.mark.long), 4.0])
def test_decisions_do_not_depend_on_how_many_runs_are_ranked_at_first(
    monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    random = Random(3)
    jobs = [
        rigid(f"job-{number:03}", random.choice([1, 2, 4, 8]), 20 * number, random.choice([60, 600, 6000, 60_000]))
        for number in range(60)
    ]

    def entries(ranked: int) -> list[Entry]:
        monkeypatch.setattr(refold_preemption, "MIN_RANKED", ranked)
        policy, journal = Refold(preemption_margin=margin), ListJournal()
        simulate(jobs, TWO_NODES, policy, journal=journal)
        return journal.entries

    all_ranked = entries(1000)
    assert sum(isinstance(order, StopRun) for entry in all_ranked for order in entry.orders) > 10
    assert entries(2) == all_ranked
