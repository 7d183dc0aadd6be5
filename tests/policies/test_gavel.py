"""Gavel: time on GPU types is divided by a linear program and granted in rounds."""

import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun, StopRun
from refold.errors import BadValue, UnknownName
from refold.model import Cluster, Job, Plan
from refold.policies.published.gavel import OBJECTIVES, Gavel, LpJob, time_fractions
from refold.simulator import Costs, Fault, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job


class TestGavel(PolicyContract):
    def make_policy(self) -> Policy:
        return Gavel(round_seconds=45.0)


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "max-min"])
def test_every_objective_keeps_the_contract(objective: str) -> None:
    class Contract(PolicyContract):
        seeds = range(1)

        def make_policy(self) -> Policy:
            return Gavel(objective, round_seconds=45.0)

    contract = Contract()
    contract.test_the_same_events_give_the_same_orders()
    contract.test_every_job_finishes_despite_overhead_and_lost_nodes()
    contract.test_the_policy_does_not_use_run_times_in_advance()


def lp_job(name: str, gpus: float = 1.0, remaining: float = 100.0, at: float = 0.0, **throughput: float) -> LpJob:
    return LpJob(make_job(name, at=at), (at, name), gpus, throughput, remaining)


def test_max_min_gives_wide_and_narrow_jobs_equal_gpu_time() -> None:
    jobs = [lp_job("wide", gpus=4.0, a100=1.0), *(lp_job(name, a100=1.0) for name in "bcde")]
    shares = time_fractions("max-min", jobs, {"a100": 4.0})
    # Five jobs share four GPUs: 0.8 GPUs each. The wide job needs four GPUs, so it gets a fifth of the time.
    assert shares == pytest.approx({("wide", "a100"): 0.2, **{(name, "a100"): 0.8 for name in "bcde"}}, abs=1e-6)


def test_max_min_gives_the_fast_type_to_the_job_that_gains_from_it() -> None:
    jobs = [lp_job("gains", fast=4.0, slow=1.0), lp_job("same", fast=1.0, slow=1.0)]
    shares = time_fractions("max-min", jobs, {"fast": 1.0, "slow": 1.0})
    assert shares["gains", "fast"] == pytest.approx(1.0)
    assert shares["same", "slow"] == pytest.approx(1.0)


def test_throughput_gives_the_fast_type_to_the_job_that_gains_most() -> None:
    jobs = [lp_job("gains", fast=10.0, slow=1.0), lp_job("gains-less", fast=2.0, slow=1.0)]
    shares = time_fractions("throughput", jobs, {"fast": 1.0, "slow": 1.0})
    assert shares["gains", "fast"] == pytest.approx(1.0)
    assert shares["gains-less", "slow"] == pytest.approx(1.0)


def test_makespan_gives_time_in_proportion_to_remaining_work() -> None:
    jobs = [lp_job("short", remaining=100.0, a100=1.0), lp_job("long", remaining=300.0, a100=1.0)]
    shares = time_fractions("makespan", jobs, {"a100": 1.0})
    assert shares == pytest.approx({("short", "a100"): 0.25, ("long", "a100"): 0.75}, abs=1e-6)


def test_fifo_gives_all_time_to_the_first_job() -> None:
    jobs = [lp_job("second", at=1.0, a100=1.0), lp_job("first", a100=1.0)]
    shares = time_fractions("fifo", jobs, {"a100": 1.0})
    assert shares == pytest.approx({("second", "a100"): 0.0, ("first", "a100"): 1.0}, abs=1e-6)


def test_without_gpus_there_are_no_time_fractions() -> None:
    assert time_fractions("max-min", [lp_job("a", a100=1.0)], {"a100": 0.0}) == {}


def starts(policy: Gavel, jobs: list[Job], cluster: Cluster) -> list[tuple[float, str, int]]:
    """Return the time, job and node of every start."""
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(Audit(cluster), journal))
    return [
        (entry.now, order.job, order.allocation.placement[0].node)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def test_equal_jobs_alternate_on_one_gpu() -> None:
    jobs = [make_job("a", work=1000.0), make_job("b", work=700.0)]
    # b ends after its 700 s at 1420 s, between two rounds; a resumes at once.
    expected = [(0, "a", 0), (360, "b", 0), (720, "a", 0), (1080, "b", 0), (1420, "a", 0)]
    assert starts(Gavel(), jobs, make_cluster(1)) == expected


def test_a_job_that_has_received_nothing_goes_first_and_others_keep_their_gpus() -> None:
    jobs = [make_job(name, work=500.0) for name in "abc"]
    # a and b tie; a sorts first by name and stays, b is preempted for c.
    assert starts(Gavel(), jobs, make_cluster(2))[:3] == [(0, "a", 0), (0, "b", 0), (360, "c", 0)]


def test_a_job_that_fits_between_two_rounds_does_not_wait_for_the_next() -> None:
    jobs = [make_job("a", work=1000.0), make_job("b", at=10.0, work=20.0)]
    assert starts(Gavel(), jobs, make_cluster(2)) == [(0, "a", 0), (10, "b", 0)]


def test_the_largest_job_of_a_round_is_placed_first() -> None:
    jobs = [make_job("small", at=0.0, work=100.0), make_job("large", at=0.0, gpus=4, work=100.0)]
    # Alone, best fit would place the small job on the 4-GPU node.
    cluster = make_cluster(4, 8, types=["A100", "A100"])
    assert starts(Gavel(), jobs, cluster) == [(0, "large", 0), (0, "small", 1)]


def test_small_runs_are_moved_for_a_job_that_needs_a_whole_node() -> None:
    fillers = [make_job(f"filler-{index}", work=50.0) for index in range(2)]
    jobs = [
        *fillers,
        make_job("left", work=2000.0, reshapable=True),
        make_job("right", work=2000.0, reshapable=True),
        make_job("whole", at=100.0, gpus=2, work=100.0),
    ]
    cluster = make_cluster(2, 2)
    given = starts(Gavel(placement="worst-fit"), jobs, cluster)
    assert given[4:] == [(360, "left", 1), (360, "whole", 0)]


def test_a_job_that_is_not_preemptible_is_never_stopped() -> None:
    jobs = [make_job("a", work=2000.0, preemptible=False), make_job("b", work=100.0)]
    assert starts(Gavel(), jobs, make_cluster(1)) == [(0, "a", 0), (2000, "b", 0)]


def test_a_job_with_a_speed_model_runs_on_the_type_where_it_gains_most() -> None:
    cluster = make_cluster(1, 1, types=["A800-80GB", "T4"])
    known = make_job("known", workload="bert-large", plan=Plan(), steps=1000, reshapable=True, work=1000.0)
    unknown = make_job("an-unknown", work=1000.0)
    assert starts(Gavel(), [known, unknown], cluster)[:2] == [(0, "an-unknown", 1), (0, "known", 0)]


def test_no_job_is_stopped_if_all_jobs_fit() -> None:
    jobs = [make_job(name, work=5000.0) for name in "abcd"]
    cluster, journal = make_cluster(4), ListJournal()
    simulate(jobs, cluster, Gavel(), journal=Journals(Audit(cluster), journal))
    assert not [order for entry in journal.entries for order in entry.orders if isinstance(order, StopRun)]
    assert len(journal.entries) == 2, "all start, all end: a round in between could change nothing"


def test_all_jobs_complete_despite_node_failures_and_stop_times() -> None:
    cluster = make_cluster(8, 8, types="A800-80GB")
    jobs = [
        make_job(f"j{index}", at=60.0 * index, gpus=8 if index % 2 else 4, workload="gpt2", steps=900, work=900.0,
                 reshapable=bool(index % 3), plan=Plan(data=8 if index % 2 else 4))
        for index in range(9)
    ]  # fmt: skip
    audit = Audit(cluster)
    faults = [Fault(0, 500.0, 1500.0)]
    simulate(jobs, cluster, Gavel(), journal=audit, costs=Costs(start=5.0, stop=3.0, restart=78.0), faults=faults)
    assert set(audit.ended) == {job.id for job in jobs}


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(UnknownName):
        Gavel("fairness")
    with pytest.raises(BadValue):
        Gavel(round_seconds=0.0)
