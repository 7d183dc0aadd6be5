"""Synergy-Tune: rounds, CPUs by sensitivity, and peers reduced to their proportional share; worked out by hand.

On nodes of A800-80GB with 12 CPUs per GPU, the best demand of GPT-2 on one GPU with ZeRO-Offload is 14 CPUs: there it
reaches 95 % of its speed with all CPUs of a node.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from refold.core import Policy
from refold.core.entries import ListJournal
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Job, Plan
from refold.policies.published.synergy import Synergy
from refold.simulator import simulate
from refold.testing import PolicyContract, make_cluster, make_job


def offloading(id: str, **more: Any) -> Job:
    """Return a GPT-2 job on one GPU with its optimiser on the host; it requests eight CPUs."""
    plan = Plan(zero=2, offload=True)
    return make_job(id, gpus=1, cpus=8, workload="gpt2", plan=plan, reshapable=True, **more)


def started(policy: Policy, jobs: Sequence[Job], cluster: Cluster) -> list[tuple[float, str, float]]:
    """Return the time, job and CPUs of every start."""
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=journal)
    return [
        (entry.now, order.job, order.allocation.cpu_milli / 1000)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def a800s(*sizes: int, cpus: float) -> Cluster:
    return make_cluster(*sizes, types="A800-80GB", cpus=cpus)


class TestSynergy(PolicyContract):
    def make_policy(self) -> Policy:
        return Synergy(round_seconds=1.0)


class TestSynergyThatStartsAtOnce(PolicyContract):
    def make_policy(self) -> Policy:
        return Synergy(start_at_once=True)


class TestSynergyByService(PolicyContract):
    def make_policy(self) -> Policy:
        return Synergy(order="las", start_at_once=True, round_seconds=60.0)


class TestRounds:
    def test_a_job_submitted_between_rounds_waits_for_the_next_round(self) -> None:
        jobs = [make_job("a", at=0), make_job("b", at=10)]
        assert started(Synergy(), jobs, make_cluster(2)) == [(0, "a", 0), (300, "b", 0)]

    def test_with_start_at_once_a_job_that_fits_does_not_wait(self) -> None:
        jobs = [make_job("a", at=0), make_job("b", at=10)]
        assert started(Synergy(start_at_once=True), jobs, make_cluster(2)) == [(0, "a", 0), (10, "b", 0)]

    def test_a_job_submitted_to_an_idle_cluster_starts_a_round(self) -> None:
        jobs = [make_job("a", at=50), make_job("b", at=220)]
        assert started(Synergy(), jobs, make_cluster(1)) == [(50, "a", 0), (220, "b", 0)]

    def test_a_skipped_job_preempts_later_jobs_in_the_next_round(self) -> None:
        jobs = [
            make_job("a", at=0, gpus=2, work=350),
            make_job("wide", at=1, gpus=4, work=100),
            make_job("b", at=2, gpus=2, work=1000),
        ]
        # b starts beside a. When a has ended, wide is first in the order, and b resumes in the round after it.
        expected = [(0, "a", 0), (300, "b", 0), (600, "wide", 0), (900, "b", 0)]
        assert started(Synergy(), jobs, make_cluster(4)) == expected

    def test_with_las_order_the_job_with_less_attained_service_goes_first(self) -> None:
        jobs = [make_job("a", at=0, work=1000), make_job("b", at=10, work=100)]
        assert started(Synergy(order="las"), jobs, make_cluster(1)) == [(0, "a", 0), (300, "b", 0), (600, "a", 0)]

    def test_a_job_that_is_not_preemptible_is_not_stopped(self) -> None:
        jobs = [make_job("a", at=0, work=1000, preemptible=False), make_job("b", at=10, work=100)]
        assert started(Synergy(order="las"), jobs, make_cluster(1)) == [(0, "a", 0), (1200, "b", 0)]

    def test_only_jobs_whose_gpus_are_needed_are_stopped(self) -> None:
        jobs = [
            make_job("left", at=0, gpus=3, work=350),
            make_job("right", at=0, gpus=3, work=350),
            make_job("wide", at=1, gpus=4, work=100),
            make_job("b", at=2, gpus=1, work=2000),
            make_job("c", at=3, gpus=1, work=2000),
        ]
        # b and c run on different nodes when wide is placed. c was submitted last and is preempted; b keeps running.
        expected = [(0, "left", 0), (0, "right", 0), (300, "b", 0), (300, "c", 0), (600, "wide", 0), (900, "c", 0)]
        assert started(Synergy(), jobs, make_cluster(4, 4)) == expected

    def test_a_reshapable_run_is_moved_instead_of_stopped(self) -> None:
        jobs = [
            make_job("left", at=0, gpus=3, work=350),
            make_job("right", at=0, gpus=3, work=350),
            make_job("wide", at=1, gpus=4, work=100),
            make_job("b", at=2, gpus=1, work=2000),
            make_job("c", at=3, gpus=1, work=2000, reshapable=True),
        ]
        assert started(Synergy(), jobs, make_cluster(4, 4))[4:] == [(600, "c", 0), (600, "wide", 0)]


class TestCpus:
    def test_each_job_gets_its_best_cpu_demand(self) -> None:
        plain = make_job("plain", at=0, gpus=2, cpus=16, workload="gpt2", plan=Plan(data=2, zero=2), reshapable=True)
        unknown = make_job("unknown", at=0, gpus=1, cpus=20)
        found = started(Synergy(), [offloading("offload", at=0), plain, unknown], a800s(8, cpus=96))
        assert found == [(0, "offload", 14), (0, "plain", 2), (0, "unknown", 20)]

    def test_a_job_gets_its_proportional_share_if_its_best_demand_does_not_fit(self) -> None:
        fixed = make_job("fixed", at=0, gpus=1, cpus=12, work=1000)
        found = started(Synergy(), [fixed, offloading("a", at=1)], a800s(2, cpus=24))
        assert found == [(0, "fixed", 12), (300, "a", 12)]

    def test_a_peer_above_its_proportional_share_is_reduced_to_it(self) -> None:
        jobs = [offloading("a", at=0, work=1000), offloading("b", at=10, work=1000)]
        found = started(Synergy(), jobs, a800s(2, cpus=24))
        # At 300 s ten CPUs are free and b's share is twelve: a restarts with twelve, and b starts beside it.
        assert found == [(0, "a", 14), (300, "a", 12), (300, "b", 12)]

    def test_a_peer_that_is_not_preemptible_keeps_its_cpus(self) -> None:
        jobs = [offloading("a", at=0, work=500, preemptible=False), offloading("b", at=10)]
        # Ten CPUs are free: fewer than b's share, more than its request.
        assert started(Synergy(), jobs, a800s(2, cpus=24)) == [(0, "a", 14), (300, "b", 8)]

    def test_freed_cpus_go_to_jobs_that_gain_from_them(self) -> None:
        jobs = [offloading("a", at=0, work=350), offloading("b", at=10, work=1000)]
        found = started(Synergy(restart_seconds=0), jobs, a800s(2, cpus=24))
        assert found[2:] == [(300, "b", 12), (600, "b", 14)]

    def test_a_run_gets_no_cpus_if_the_gain_does_not_recover_a_restart(self) -> None:
        jobs = [offloading("a", at=0, work=350), offloading("b", at=10, work=1000)]
        assert started(Synergy(), jobs, a800s(2, cpus=24))[2:] == [(300, "b", 12)]

    def test_jobs_run_as_requested_if_the_nodes_cpus_are_unknown(self) -> None:
        nodes = a800s(8, cpus=0).nodes
        cluster = Cluster(nodes, cpus_known=False)
        assert started(Synergy(), [offloading("a")], cluster) == [(0, "a", 8)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"order": "srtf"}, "order"),
        ({"round_seconds": 0}, "round_seconds"),
        ({"restart_seconds": -1}, "restart_seconds"),
    ],
)
def test_invalid_settings_are_rejected_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BadValue, match=named):
        Synergy(**settings)
