"""Refold's own policy: the contract, and worked cases of who starts, who makes place, and who grows.

On one node of eight A800, by the performance model, in steps per second on 1, 2, 4 and 8 GPUs: BERT does 4.1, 7.7, 13.8
and 23.0; ViT does 17, 28, 42.2 and 45.0, so that the last four GPUs bring it next to nothing.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.journal import HistoryJournal
from refold.model import Cluster, Job, Plan, Reason, Tenant
from refold.plans.speeds import Speeds
from refold.policies.reshaping.refold import Refold
from refold.results.guarantees import broken_guarantees
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.modelled_speeds import ModelledSpeeds
from refold.testing import Audit, PolicyContract, make_cluster, make_job, reshapable_workload

NO_QUOTAS = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)
ONE_NODE = msgspec.structs.replace(NO_QUOTAS, tenants=(Tenant("default", 99.0),))
COSTS = Costs(restart=78.0, report_every=60.0)


class TestContract(PolicyContract):
    reshapes = True
    reshaping_seeds = range(4)

    def make_policy(self) -> Policy:
        return Refold()


class TestContractWithoutTrust(PolicyContract):
    reshapes = True
    seeds = range(2)

    def make_policy(self) -> Policy:
        return Refold(restart_seconds=10.0, trust_steps=False, price=0.5, claims=2, starving_seconds=600.0)


def model(workload: str, id: str, gpus: int, at: float, steps: int | None, **more: Any) -> Job:
    """A job that may be reshaped, best effort."""
    asked: dict[str, Any] = {"workload": workload, "reshapable": True, "work": None, "job_class": "best-effort"} | more
    return make_job(id, gpus=gpus, cpus=8 * gpus, at=at, steps=steps, **asked)


def rigid(id: str, gpus: int, at: float, work: float, **more: Any) -> Job:
    """A job of which nothing is known, best effort."""
    return make_job(id, gpus=gpus, at=at, work=work, **{"job_class": "best-effort"} | more)


class Course:
    """What was ordered: (when, job, GPUs) of every start, and (when, job, why) of every stop."""

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


class TestWhoGoesFirst:
    def test_a_job_alone_gets_all_that_makes_it_faster(self) -> None:
        assert Course([model("bert", "only", 2, 0, 50_000)]).starts == [(0, "only", 8)]

    def test_of_those_who_wait_the_one_with_the_least_work_goes_first(self) -> None:
        jobs = [
            rigid("busy", 8, 0, 500, preemptible=False),
            model("bert", "long", 8, 1, 50_000),
            model("bert", "short", 8, 2, 500),
            model("bert", "middle", 8, 3, 5_000),
        ]
        assert list(dict.fromkeys(job for _, job, _ in Course(jobs).starts)) == ["busy", "short", "middle", "long"]

    def test_while_many_wait_gpus_cost_something_and_jobs_start_smaller(self) -> None:
        jobs = [rigid("busy", 8, 0, 500, preemptible=False)]
        jobs += [model("bert", f"j{number}", 8, 1 + number, 5_000 + number) for number in range(6)]
        alike = [gpus for at, job, gpus in Course(jobs).starts if job != "busy" and at == 500]
        assert len(alike) >= 3
        assert sum(alike) == 8
        free_of_charge = Course(jobs, Refold(price=0.0))
        assert free_of_charge.starts[1] == (500, "j0", 8)

    def test_a_job_of_which_nothing_is_known_runs_as_it_was_asked_for(self) -> None:
        course = Course(
            [rigid("third", 3, 0, 100), make_job("half", gpus=1, share=0.5), make_job("cpu", gpus=0, cpus=4)]
        )
        assert sorted(course.starts) == [(0, "cpu", 0), (0, "half", 0), (0, "third", 3)]
        assert course.stops == []


class TestMakingPlace:
    def test_a_long_job_is_shrunk_where_that_delays_it_less_than_it_helps(self) -> None:
        course = Course([model("vit", "long", 8, 0, 400_000), model("bert", "short", 4, 1000, 20_000)])
        assert course.starts[:3] == [(0, "long", 8), (1000, "long", 4), (1000, "short", 4)]
        at, job, why = course.stops[0]
        assert (at, job) == (1000, "long")
        assert re.fullmatch(r"gave 4 GPUs to short: −6% here, ends [\d a-z]+ later", why)

    def test_where_shrinking_would_delay_it_more_it_is_stopped_for_a_short_one(self) -> None:
        course = Course([model("bert", "long", 8, 0, 400_000), model("bert", "short", 4, 1000, 2_000)])
        assert course.starts == [(0, "long", 8), (1000, "short", 8), (1087, "long", 8)]
        # 2,000 steps take 87 s on 8 GPUs.
        why = "gave all 8 GPUs to short, which has less left: back in about 2 min 45 s"
        assert course.stops == [(1000, "long", why)]

    def test_a_job_that_is_nearly_done_is_not_disturbed(self) -> None:
        # At 900 there are 2,293 steps left, which take 100 s; the new one would take 87 s and the restart 78 s.
        course = Course([model("bert", "nearly", 8, 0, 23_000), model("bert", "new", 4, 900, 2_000)])
        assert course.starts == [(0, "nearly", 8), (1000, "new", 8)]
        assert course.stops == []

    def test_nobody_gives_way_to_a_longer_one(self) -> None:
        course = Course([model("bert", "first", 8, 0, 23_000), model("bert", "longer", 8, 100, 230_000)])
        assert course.starts == [(0, "first", 8), (1000, "longer", 8)]

    def test_with_no_claims_everybody_waits_for_what_is_free(self) -> None:
        jobs = [model("vit", "long", 8, 0, 400_000), model("bert", "short", 4, 1000, 20_000)]
        assert Course(jobs, Refold(claims=0)).stops == []

    def test_who_may_not_be_stopped_is_left_alone(self) -> None:
        jobs = [model("vit", "fixed", 8, 0, 40_000, preemptible=False), make_job("sure", gpus=1, at=10)]
        course = Course(jobs)
        assert course.starts == [(0, "fixed", 8), (888, "sure", 1)]
        assert course.stops == []

    def test_who_may_not_be_reshaped_is_stopped_or_left_but_not_moved(self) -> None:
        cluster = make_cluster(4, 4, types="A800-80GB")
        jobs = [rigid("a", 2, 0, 9000), rigid("a2", 2, 1, 30), rigid("b", 2, 2, 9000), rigid("b2", 2, 3, 30)]
        course = Course([*jobs, rigid("wide", 4, 2000, 50)], cluster=cluster)
        # What refold believes of `wide` is that it takes a minute; `a` has had 2,000 s, and would have as many more.
        assert next(start for start in course.starts if start[0] >= 2000) == (2000, "wide", 4)
        assert [job for _, job, _ in course.stops] == ["a"]

    def test_a_job_that_waits_for_a_place_that_is_being_given_back_is_told_so(self) -> None:
        journal = ListJournal()
        jobs = [model("bert", "long", 8, 0, 400_000), model("bert", "short", 4, 1000, 2_000)]
        charge = ModelledSpeeds(Speeds(ONE_NODE), RecordedSpeeds(ONE_NODE))
        simulate(jobs, ONE_NODE, Refold(), journal=journal, charge=charge, costs=Costs(stop=5.0, restart=78.0))
        said = [(entry.now, wait.job, wait.reason) for entry in journal.entries for wait in entry.waits]
        assert said[0] == (1000, "short", Reason.RELEASING)


class TestGrowing:
    def test_growth_waits_for_quiet_and_then_happens(self) -> None:
        course = Course([rigid("beside", 4, 0, 100, preemptible=False), model("bert", "long", 4, 10, 400_000)])
        # It is 67 % faster on 8 GPUs: a restart of 78 s is made good in 78 / (1 - 13.8/23.0) = 195 s. The last job came
        # at 10, so it has been quiet for that long at 205.
        assert course.wakes == [205]
        assert course.starts == [(0, "beside", 4), (10, "long", 4), (205, "long", 8)]
        assert course.stops == [(205, "long", "took 4 free GPUs: +67% here, pays back in 3 min 15 s")]

    def test_where_it_has_been_quiet_for_long_enough_it_happens_at_once(self) -> None:
        course = Course([rigid("beside", 4, 0, 500, preemptible=False), model("bert", "long", 4, 10, 400_000)])
        assert course.wakes == []
        assert course.starts[2:] == [(500, "long", 8)]

    def test_nobody_grows_while_that_does_not_pay_back(self) -> None:
        # At 500 there are 2,200 steps left: 163 s as it is, 98 + 78 s after a restart.
        course = Course([rigid("beside", 4, 0, 500, preemptible=False), model("bert", "nearly", 4, 10, 9_000)])
        assert course.starts == [(0, "beside", 4), (10, "nearly", 4)]
        assert (course.stops, course.wakes) == ([], [])

    def test_a_dearer_restart_is_worth_it_later_or_never(self) -> None:
        jobs = [rigid("beside", 4, 0, 100, preemptible=False), model("bert", "long", 4, 10, 40_000)]
        assert Course(jobs, Refold(restart_seconds=260.0)).wakes == [659]  # 10 + 260 / (1 - 13.8/23.0)
        assert Course(jobs, Refold(restart_seconds=2000.0)).stops == []

    def test_who_may_not_be_stopped_does_not_grow(self) -> None:
        jobs = [rigid("beside", 4, 0, 500), model("bert", "fixed", 4, 10, 400_000, preemptible=False)]
        assert Course(jobs).starts == [(0, "beside", 4), (10, "fixed", 4)]


class TestPromises:
    def test_a_promised_job_starts_at_once_by_shrinking_a_best_effort_one(self) -> None:
        sure = model("bert", "sure", 4, 1000, 20_000, job_class="guaranteed", plan=Plan(4))
        course = Course([model("vit", "long", 8, 0, 400_000), sure])
        assert course.starts[:3] == [(0, "long", 8), (1000, "long", 4), (1000, "sure", 4)]

    def test_it_does_not_wait_for_one_that_has_less_left(self) -> None:
        sure = model("bert", "sure", 8, 10, 200_000, job_class="guaranteed", plan=Plan(8))
        course = Course([rigid("short", 8, 0, 60), sure])
        assert course.starts[:2] == [(0, "short", 8), (10, "sure", 8)]

    def test_it_is_not_stopped_for_a_short_one(self) -> None:
        sure = model("bert", "sure", 8, 0, 200_000, job_class="guaranteed", plan=Plan(8))
        course = Course([sure, model("bert", "short", 8, 1000, 500)])
        assert course.starts[0] == (0, "sure", 8)
        assert [job for _, job, _ in course.stops] == []

    def test_who_came_before_it_with_a_promise_is_not_stopped_either(self) -> None:
        course = Course([make_job("first", gpus=8, work=1000), make_job("second", at=10, gpus=8, work=10)])
        assert course.starts == [(0, "first", 8), (1000, "second", 8)]

    def test_a_promised_job_beyond_its_minimum_gives_the_rest_to_another(self) -> None:
        first = model("bert", "first", 4, 0, 200_000, job_class="guaranteed", plan=Plan(4))
        second = model("bert", "second", 4, 1000, 200_000, job_class="guaranteed", plan=Plan(4))
        assert Course([first, second]).starts[:3] == [(0, "first", 8), (1000, "first", 4), (1000, "second", 4)]

    def test_where_there_are_no_quotas_nothing_is_promised(self) -> None:
        sure = model("bert", "sure", 8, 10, 200_000, job_class="guaranteed", plan=Plan(8))
        assert Course([rigid("short", 8, 0, 60), sure], cluster=NO_QUOTAS).starts[:2] == [
            (0, "short", 8),
            (60, "sure", 8),
        ]

    @pytest.mark.parametrize(("gpus", "tenant", "starts"), [(2, "A", 20), (4, "A", 50), (2, "other", 50)])
    def test_beyond_the_quota_a_guaranteed_job_is_as_any_other(self, gpus: int, tenant: str, starts: int) -> None:
        cluster = msgspec.structs.replace(ONE_NODE, tenants=(Tenant("A", 2.0),))
        jobs = [rigid("short", 8, 0, 50), make_job("sure", tenant=tenant, gpus=gpus, at=20, work=100)]
        assert Course(jobs, cluster=cluster).starts[1] == (starts, "sure", gpus)

    @pytest.mark.parametrize("seed", range(6))
    def test_no_promise_is_broken_where_the_model_is_right(self, seed: int) -> None:
        jobs, cluster = reshapable_workload(seed)
        history, speeds = HistoryJournal(), Speeds(cluster)
        simulate(
            jobs,
            cluster,
            Refold(),
            journal=history,
            charge=ModelledSpeeds(speeds, RecordedSpeeds(cluster)),
            costs=COSTS,
        )
        found = broken_guarantees(history.history(cluster), speeds, grace=78.0)
        assert found.promised > 2
        assert [(one.job, one.kind, one.why) for one in found.broken] == []


class TestPatience:
    JOBS = (
        rigid("long", 5, 0, 1000),
        rigid("wide", 8, 10, 100),
        *(rigid(f"s{number}", 3, 100 + 100 * number, 250) for number in range(6)),
    )

    def test_nobody_overtakes_a_job_that_has_starved(self) -> None:
        early = Course(self.JOBS, Refold(starving_seconds=300.0)).starts
        assert [job for _, job, _ in early[: [job for _, job, _ in early].index("wide")]] == ["long", "s0"]

    def test_before_that_shorter_ones_do(self) -> None:
        late = Course(self.JOBS).starts
        assert {"s1", "s2", "s3"} < {job for _, job, _ in late[: [job for _, job, _ in late].index("wide")]}


class TestUnknownWork:
    def test_a_job_that_is_not_believed_gives_way_to_one_that_has_had_less(self) -> None:
        jobs = [model("bert", "old", 8, 0, 23_000), model("bert", "new", 8, 500, 100_000)]
        assert Course(jobs).stops == []
        course = Course(jobs, Refold(trust_steps=False))
        assert course.starts[:2] == [(0, "old", 8), (500, "new", 8)]
        assert next(job for _, job, _ in course.stops) == "old"

    def test_so_does_one_that_does_not_say(self) -> None:
        jobs = [model("bert", "old", 8, 0, None, work=1000.0), model("bert", "new", 8, 500, None, work=1000.0)]
        assert Course(jobs).starts[:2] == [(0, "old", 8), (500, "new", 8)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"price": -1},
        {"patience_seconds": 0},
        {"starving_seconds": 0},
        {"claims": -1},
        {"safety": 0.5},
        {"restart_seconds": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        Course([make_job("a")], Refold(**wrong))  # type: ignore[arg-type]
