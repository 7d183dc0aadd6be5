"""The placer: windows of demands, what it learns from submissions, and its errors. Rules have their own tests."""

import msgspec
import numpy as np
import pytest

from refold.core import Scheduler, View
from refold.core.events import JobSubmitted
from refold.errors import UnknownName
from refold.model import NO_CHANGE, Decision, Demand, Job, Share
from refold.placement import RULES, FreeResources, Placer
from refold.testing import make_cluster, make_job

ONE, TWO, THREE = Demand(gpus=1), Demand(gpus=2), Demand(gpus=3)
GREEDY = [name for name in RULES if not name.startswith("genetic")]
GENETIC = [name for name in RULES if name.startswith("genetic")]


def placed_gpus(placer: Placer, free: FreeResources, *demands: Demand, in_order: bool = False) -> list[int | None]:
    """Return the number of GPUs that each demand of a window gets."""
    return [
        None if placement is None else sum(len(share.gpus) for share in placement)
        for placement in placer.place_all(free, demands, in_order)
    ]


class Observing:
    """A policy that lets a placer observe all submissions."""

    name = "observing"

    def __init__(self, placer: Placer) -> None:
        self.placer = placer

    def decide(self, view: View) -> Decision:
        self.placer.observe(view)
        return NO_CHANGE


def observe(placer: Placer, jobs: list[Job], *sizes: int) -> None:
    Scheduler(make_cluster(*sizes), Observing(placer)).step(0.0, [JobSubmitted(job) for job in jobs])


def test_an_unknown_rule_is_rejected() -> None:
    with pytest.raises(UnknownName, match="unknown placement 'best'; did you mean 'best-fit'"):
        Placer("best")


@pytest.mark.parametrize("name", RULES)
def test_only_genetic_rules_place_windows_of_several_jobs(name: str) -> None:
    placer = Placer(name)
    assert placer.window == (100 if name in GENETIC else 1)
    assert placer.is_exhaustive == (name != "genetic-paper")
    assert placer.respects_power_limits == (name == "genetic-power")


@pytest.mark.parametrize("name", RULES)
def test_a_window_without_demands_is_empty(name: str) -> None:
    assert Placer(name).place_all(FreeResources(make_cluster(2)), []) == []


@pytest.mark.parametrize("name", GREEDY)
def test_a_window_is_placed_one_by_one_and_demands_that_do_not_fit_are_left_out(name: str) -> None:
    free = FreeResources(make_cluster(4))
    assert placed_gpus(Placer(name), free, THREE, TWO, ONE, ONE) == [3, None, 1, None]
    assert free.gpu_milli == 0


@pytest.mark.parametrize("name", [*GREEDY, *GENETIC])
def test_in_order_nothing_is_placed_after_the_first_demand_that_does_not_fit(name: str) -> None:
    free = FreeResources(make_cluster(4))
    assert placed_gpus(Placer(name), free, THREE, TWO, ONE, in_order=True) == [3, None, None]
    assert free.gpu_milli == 1000


def test_a_demand_that_did_not_fit_is_not_tried_again_in_the_same_window() -> None:
    class Counting(Placer):
        calls = 0

        def place(self, free: FreeResources, demand: Demand) -> tuple[Share, ...] | None:
            self.calls += 1
            return super().place(free, demand)

    placer = Counting("first-fit")
    free = FreeResources(make_cluster(2))
    assert placed_gpus(placer, free, THREE, THREE, ONE, THREE) == [None, None, 1, None]
    assert placer.calls == 2


@pytest.mark.parametrize("name", RULES)
def test_every_instance_of_a_gang_gets_what_was_requested(name: str) -> None:
    free = FreeResources(make_cluster(4, 4, cpus=8, memory_gib=8))
    placement = Placer(name).place(free, Demand(3, 2, 1000, 1500, 1024))
    assert placement is not None
    assert [(len(set(share.gpus)), *msgspec.structs.astuple(share)[2:]) for share in placement] == [
        (2, 1000, 1500, 1024)
    ] * 3
    assert free.gpu_milli == 2000
    free.release(placement)
    assert free.gpu_milli == 8000


@pytest.mark.parametrize("name", RULES)
def test_a_gang_that_does_not_fit_takes_nothing(name: str) -> None:
    free = FreeResources(make_cluster(4, 4))
    assert Placer(name).place(free, Demand(3, 3)) is None
    assert free.gpu_milli == 8000


@pytest.mark.parametrize("name", RULES)
def test_gangs_of_more_than_64_instances_are_placed(name: str) -> None:
    free = FreeResources(make_cluster(*[8] * 10))
    placement = Placer(name).place(free, Demand(80, 1))
    assert placement is not None
    assert (len(placement), free.gpu_milli) == (80, 0)
    assert len({(share.node, share.gpus) for share in placement}) == 80


@pytest.mark.parametrize("name", GENETIC)
def test_windows_of_more_than_64_instances_are_placed(name: str) -> None:
    free = FreeResources(make_cluster(*[8] * 10))
    found = Placer(name).place_all(free, [ONE] * 80)
    assert {(share.node, share.gpus) for placement in found if placement for share in placement} == {
        (node, (gpu,)) for node in range(10) for gpu in range(8)
    }


def test_equal_demands_of_a_window_are_placed_in_their_order() -> None:
    free = FreeResources(make_cluster(3))
    found = Placer("genetic").place_all(free, [TWO, TWO, ONE])
    assert [placement is not None for placement in found] == [True, False, True]


@pytest.mark.parametrize("name", ["fgd", "worth", "genetic"])
def test_more_than_64_distinct_demands_are_learned(name: str) -> None:
    placer = Placer(name)
    jobs = [make_job(f"j{n}", gpus=1 + n % 4, cpus=n / 10) for n in range(200)]
    observe(placer, jobs, 4, 4)
    free = FreeResources(make_cluster(4, 4))
    assert placer.place(free, THREE) is not None
    assert free.gpu_milli == 5000


def test_a_rule_that_learns_prefers_nodes_that_the_expected_jobs_need_least() -> None:
    """All jobs so far took a whole node of four GPUs, so a small job goes to the node where that is impossible."""
    for name in ("fgd", "worth"):
        placer = Placer(name)
        observe(placer, [make_job(f"j{n}", gpus=4) for n in range(64)], 4, 4, 4)
        free = FreeResources(make_cluster(4, 4, 4))
        free.take((Share(1, (0,)),))
        assert placer.place(free, ONE) == (Share(1, (1,)),)


@pytest.mark.parametrize("name", ["random", "genetic-paper"])
def test_the_seed_determines_the_placements(name: str) -> None:
    def placements(seed: int) -> list[object]:
        placer, free = Placer(name, seed), FreeResources(make_cluster(*[4] * 8))
        return [placer.place(free, demand) for demand in (ONE, TWO, ONE, THREE, ONE, TWO)]

    assert placements(1) == placements(1)
    assert any(placements(seed) != placements(1) for seed in range(2, 12))


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("random", "genetic-paper")])
def test_one_placer_can_be_used_on_several_clusters(name: str) -> None:
    placer = Placer(name)
    for sizes in ((2,), (4, 4, 4, 4), (8,)):
        free = FreeResources(make_cluster(*sizes))
        assert placer.place(free, ONE) is not None
        assert free.gpu_milli == 1000 * (sum(sizes) - 1)


def test_shortage_and_power_are_those_of_the_free_resources_for_rules_without_power() -> None:
    free = FreeResources(make_cluster(2, 1))
    placer = Placer("best-fit")
    assert placer.shortage(free, TWO) == free.shortage(TWO)
    assert placer.allows(free, (Share(0, (0, 1)),))


def test_positions_after_a_placement_are_indices_of_gpus() -> None:
    free = FreeResources(make_cluster(4))
    free.take((Share(0, (1,)),))
    assert Placer("first-fit").place(free, THREE) == (Share(0, (0, 2, 3)),)
    assert np.count_nonzero(free.gpu_milli_of(0)) == 0
