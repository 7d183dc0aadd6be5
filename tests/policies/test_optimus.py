"""Optimus: the contract, its marginal-gain allocation, and rounds worked out by hand."""

import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Demand, Job
from refold.policies.common.options import Option
from refold.policies.common.rounds import GpuBudget
from refold.policies.published.optimus import Optimus, UnallocatedGpus, grow_by_marginal_gain
from refold.simulator import simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job

A800 = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)


class TestContract(PolicyContract):
    def make_policy(self) -> Policy:
        return Optimus()


class TestContractWithShortRounds(PolicyContract):
    def make_policy(self) -> Policy:
        return Optimus(round_seconds=7.0, restart_seconds=5.0)


def starts(jobs: list[Job], cluster: Cluster, policy: Policy) -> list[tuple[float, str, int]]:
    """Return the time, job and GPUs of every start."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal))
    return [
        (entry.now, order.job, sum(order.allocation.gpus_on_node))
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def option(gpus: int, speed: float, *types: str) -> Option:
    return Option(gpus, Demand(1, gpus, gpu_types=types or ("A100",)), None, speed)


SCALES = (option(1, 1.0), option(2, 1.8), option(4, 3.0))


@pytest.mark.parametrize(
    ("gpus_left", "expected"),
    [
        (0, {"short": 1, "long": 1}),
        # `long` saves 1000 · (1 - 1/1.8) = 444 s, `short` 44 s
        (1, {"short": 1, "long": 2}),
        # `long` would save 111 s per GPU with two more, but only one is left
        (2, {"short": 2, "long": 2}),
        (3, {"short": 1, "long": 4}),
        (4, {"short": 2, "long": 4}),
        (9, {"short": 4, "long": 4}),
    ],
)
def test_the_job_that_saves_the_most_time_per_gpu_gets_its_next_size(gpus_left: int, expected: dict[str, int]) -> None:
    first = {"short": SCALES[0], "long": SCALES[0]}
    options = {"short": SCALES, "long": SCALES}
    granted = grow_by_marginal_gain(
        first, options, {"short": 100.0, "long": 1000.0}, UnallocatedGpus(GpuBudget({"A100": gpus_left * 1000}))
    )
    assert {job: option.gpus for job, option in granted.items()} == expected


def test_equal_gains_are_granted_in_order() -> None:
    first = {"b": SCALES[0], "a": SCALES[0]}
    granted = grow_by_marginal_gain(
        first, {"a": SCALES, "b": SCALES}, {"a": 9.0, "b": 9.0}, UnallocatedGpus(GpuBudget({"A100": 1000}))
    )
    assert {job: option.gpus for job, option in granted.items()} == {"b": 2, "a": 1}


def test_a_job_does_not_grow_to_a_slower_size() -> None:
    slower = (option(1, 1.0), option(2, 0.9))
    granted = grow_by_marginal_gain(
        {"job": slower[0]}, {"job": slower}, {"job": 100.0}, UnallocatedGpus(GpuBudget({"A100": 8000}))
    )
    assert granted == {"job": slower[0]}


def test_a_job_grows_on_its_own_gpu_type() -> None:
    both = (option(1, 1.0, "A100"), option(2, 9.0, "H100"), option(2, 1.8, "A100"))
    granted = grow_by_marginal_gain(
        {"job": both[0]}, {"job": both}, {"job": 100.0}, UnallocatedGpus(GpuBudget({"A100": 1000, "H100": 0}))
    )
    assert granted == {"job": both[2]}


def test_gpus_of_several_types_are_taken_together() -> None:
    pool = UnallocatedGpus(GpuBudget({"A100": 1000, "H100": 2000}))
    assert pool.take(option(2, 1.0, "A100", "H100"), 2000)
    assert not pool.take(option(1, 1.0, "H100"), 1000)  # both GPUs came from the type with the most left
    assert pool.take(option(1, 1.0, "A100"), 1000)


def test_long_jobs_get_more_of_a_node_than_short_ones() -> None:
    bert = {"gpus": 1, "workload": "bert", "reshapable": True, "work": 100}
    jobs = [
        make_job("a", steps=1_000, **bert),  # type: ignore[arg-type]
        make_job("b", steps=1_000, **bert),  # type: ignore[arg-type]
        make_job("long", steps=100_000, **bert),  # type: ignore[arg-type]
    ]
    found = starts(jobs, A800, Optimus())
    assert sorted(found[:3]) == [(0, "a", 2), (0, "b", 2), (0, "long", 4)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # At 120 s, about 1,400 steps remain: 111 s on 4 GPUs, 71 s on 8; a restart takes 78 s.
        (3_000, []),
        # Of 30,000 steps 28,400 remain: 2,195 s on 4 GPUs, 1,390 s on 8.
        (30_000, [(120, "bert", 8)]),
    ],
)
def test_a_run_grows_only_if_that_saves_more_than_a_restart(steps: int, expected: list[tuple[float, str, int]]) -> None:
    jobs = [
        make_job("bert", gpus=4, workload="bert", reshapable=True, work=900, steps=steps),
        make_job("rigid", gpus=4, work=100),
    ]
    found = starts(jobs, A800, Optimus(round_seconds=60))
    assert sorted(found[:2]) == [(0, "bert", 4), (0, "rigid", 4)]
    assert found[2:] == expected


def test_a_large_run_shrinks_for_a_new_job() -> None:
    bert = {"gpus": 4, "workload": "bert", "reshapable": True, "work": 2000, "steps": 100_000}
    jobs = [make_job("first", **bert), make_job("second", at=10, **bert)]  # type: ignore[arg-type]
    found = starts(jobs, A800, Optimus(round_seconds=60, restart_seconds=20))
    assert found[:3] == [(0, "first", 8), (60, "first", 4), (60, "second", 4)]


def test_an_earlier_job_is_not_stopped_for_a_later_one() -> None:
    jobs = [make_job("first", gpus=2, work=5000), make_job("later", at=10, gpus=2, work=10)]
    assert starts(jobs, make_cluster(2), Optimus()) == [(0, "first", 2), (5000, "later", 2)]


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(BadValue):
        Optimus(round_seconds=0)
