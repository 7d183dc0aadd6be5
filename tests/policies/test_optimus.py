"""Optimus keeps the contract, and gives each further GPU to whom it saves the most time."""

import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Demand, Job
from refold.policies.common.options import Option
from refold.policies.common.rounds import Budget
from refold.policies.published.optimus import Optimus, UnallocatedGpus, grown
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
    """When which job was started, with how many GPUs."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal))
    return [
        (entry.now, order.job, sum(order.allocation.gpus_on_node))
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def share(gpus: int, speed: float, *types: str) -> Option:
    return Option(gpus, Demand(1, gpus, gpu_types=types or ("A100",)), None, speed)


SCALES = (share(1, 1.0), share(2, 1.8), share(4, 3.0))


@pytest.mark.parametrize(
    ("gpus_left", "expected"),
    [
        (0, {"short": 1, "long": 1}),
        # `long` saves 1000 · (1 - 1/1.8) = 444 s, `short` 44 s
        (1, {"short": 1, "long": 2}),
        # `long` would save 111 s for each of two GPUs more, but there is only one left
        (2, {"short": 2, "long": 2}),
        (3, {"short": 1, "long": 4}),
        (4, {"short": 2, "long": 4}),
        (9, {"short": 4, "long": 4}),
    ],
)
def test_the_next_size_goes_where_it_saves_the_most_time_per_gpu(gpus_left: int, expected: dict[str, int]) -> None:
    first = {"short": SCALES[0], "long": SCALES[0]}
    options = {"short": SCALES, "long": SCALES}
    given = grown(first, options, {"short": 100.0, "long": 1000.0}, UnallocatedGpus(Budget({"A100": gpus_left * 1000})))
    assert {job: option.gpus for job, option in given.items()} == expected


def test_between_equal_gains_the_first_goes_first() -> None:
    first = {"b": SCALES[0], "a": SCALES[0]}
    given = grown(first, {"a": SCALES, "b": SCALES}, {"a": 9.0, "b": 9.0}, UnallocatedGpus(Budget({"A100": 1000})))
    assert {job: option.gpus for job, option in given.items()} == {"b": 2, "a": 1}


def test_nobody_gets_what_makes_it_slower() -> None:
    slower = (share(1, 1.0), share(2, 0.9))
    given = grown({"job": slower[0]}, {"job": slower}, {"job": 100.0}, UnallocatedGpus(Budget({"A100": 8000})))
    assert given == {"job": slower[0]}


def test_a_job_grows_on_its_own_type_of_gpu() -> None:
    both = (share(1, 1.0, "A100"), share(2, 9.0, "H100"), share(2, 1.8, "A100"))
    given = grown({"job": both[0]}, {"job": both}, {"job": 100.0}, UnallocatedGpus(Budget({"A100": 1000, "H100": 0})))
    assert given == {"job": both[2]}


def test_a_purse_pays_for_several_types_together() -> None:
    purse = UnallocatedGpus(Budget({"A100": 1000, "H100": 2000}))
    assert purse.pay(share(2, 1.0, "A100", "H100"), 2000)
    assert not purse.pay(share(1, 1.0, "H100"), 1000)  # the two came from where there was most
    assert purse.pay(share(1, 1.0, "A100"), 1000)


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
        # At 120 there are about 1,400 steps left: 111 s on 4 GPUs, 71 s on 8; a restart takes 78 s.
        (3_000, []),
        # Of 30,000 steps there are 28,400 left: 2,195 s against 1,390 s.
        (30_000, [(120, "bert", 8)]),
    ],
)
def test_a_run_grows_only_if_it_makes_good_for_its_restart(steps: int, expected: list[tuple[float, str, int]]) -> None:
    jobs = [
        make_job("bert", gpus=4, workload="bert", reshapable=True, work=900, steps=steps),
        make_job("rigid", gpus=4, work=100),
    ]
    found = starts(jobs, A800, Optimus(round_seconds=60))
    assert sorted(found[:2]) == [(0, "bert", 4), (0, "rigid", 4)]
    assert found[2:] == expected


def test_a_large_run_shrinks_for_who_comes() -> None:
    bert = {"gpus": 4, "workload": "bert", "reshapable": True, "work": 2000, "steps": 100_000}
    jobs = [make_job("first", **bert), make_job("second", at=10, **bert)]  # type: ignore[arg-type]
    found = starts(jobs, A800, Optimus(round_seconds=60, restart_seconds=20))
    assert found[:3] == [(0, "first", 8), (60, "first", 4), (60, "second", 4)]


def test_who_came_first_is_not_stopped_for_who_came_later() -> None:
    jobs = [make_job("first", gpus=2, work=5000), make_job("later", at=10, gpus=2, work=10)]
    assert starts(jobs, make_cluster(2), Optimus()) == [(0, "first", 2), (5000, "later", 2)]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadValue):
        Optimus(round_seconds=0)
