"""Fragments by hand: free GPU capacity that typical demands cannot use; and which demands are typical."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.model import WHOLE, Demand, Share
from refold.placement import (
    DemandHistory,
    FreeResources,
    Need,
    cluster_fragmentation,
    empty_demand_history,
    update_typical_demands,
)
from refold.placement.demand_history import empty_score_cache, is_update_due
from refold.placement.fragmentation import fragmentation_after, node_fragmentation
from refold.testing import make_cluster

CLUSTER = make_cluster(4, 2, types=["A100", "V100"], cpus=8)


def typical_of(free: FreeResources, counts: dict[Demand, int]) -> DemandHistory:
    history = empty_demand_history()
    shapes = np.concatenate([free.vector(demand) for demand in counts])
    update_typical_demands(shapes, np.array(list(counts.values())), len(counts), history)
    return history


def fragment(demand: Demand, *shares: Share, node: int = 0) -> float:
    """The fragment of a node for one typical demand, when these shares are in use."""
    free = FreeResources(CLUSTER)
    assert free.take(shares) is None
    return node_fragmentation(free.arrays, node, typical_of(free, {demand: 1}))


@pytest.mark.parametrize(
    ("demand", "shares", "expected"),
    [
        (Demand(1, 1), (), 0),
        (Demand(1, 1), (Share(0, (0,), 400),), 600),  # 0.6 of a GPU is of no use
        (Demand(1, 1, 500), (Share(0, (0,), 400),), 0),
        (Demand(1, 1, 500), (Share(0, (0, 1), 600),), 800),
        (Demand(1, 4), (Share(0, (0,), 400),), 3600),  # four whole GPUs are not left: all of it
        (Demand(1, 3), (Share(0, (0,), 400),), 600),
        (Demand(1, 5), (), 4000),  # more than the node has
        (Demand(1, 1, gpu_types=("V100",)), (), 4000),
        (Demand(1, 1, cpu_milli=4000), (Share(0, (), WHOLE, 5000),), 4000),
        (Demand(1, 1, cpu_milli=3000), (Share(0, (), WHOLE, 5000),), 0),
        (Demand(1, 0, cpu_milli=1000), (), 4000),  # jobs without GPUs use none
    ],
)
def test_the_fragment_of_a_node(demand: Demand, shares: tuple[Share, ...], expected: float) -> None:
    assert fragment(demand, *shares) == expected


def test_the_expected_fragment_is_weighted_by_submissions() -> None:
    free = FreeResources(CLUSTER)
    free.take((Share(0, (0,), 400),))
    history = typical_of(free, {Demand(1, 1): 3, Demand(1, 4): 1})
    expected = 0.75 * 600 + 0.25 * 3600
    assert node_fragmentation(free.arrays, 0, history) == pytest.approx(expected)
    of_other_node = 0.25 * 2000  # four GPUs never fit there
    assert cluster_fragmentation(free.arrays, history) == pytest.approx(expected + of_other_node)


def test_nodes_and_gpus_that_are_down_are_no_fragments() -> None:
    free = FreeResources(CLUSTER)
    history = typical_of(free, {Demand(1, 5): 1})
    free.set_node_up(1, False)
    free.set_gpu_up(0, 0, False)
    assert cluster_fragmentation(free.arrays, history) == 3000


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900)), max_size=4, unique_by=lambda used: used[0]),
    st.integers(0, 3),
    st.integers(1, 1000),
)
def test_the_fragment_after_a_placement_is_that_of_the_node_with_it(
    used: list[tuple[int, int]], gpu: int, milli: int
) -> None:
    free = FreeResources(CLUSTER)
    for other, taken in used:
        assert free.take((Share(0, (other,), taken),)) is None
    if free.gpu_milli_of(0)[gpu] < milli:
        return
    history = typical_of(free, {Demand(1, 1, 300): 2, Demand(1, 2): 1})
    before = free.gpus.tolist()
    predicted = fragmentation_after(free.arrays, 0, 1 << gpu, milli, 1000, history)
    assert free.gpus.tolist() == before
    free.take((Share(0, (gpu,), milli, 1000),))
    assert predicted == pytest.approx(node_fragmentation(free.arrays, 0, history))


def test_demands_that_leave_the_same_fragments_are_merged() -> None:
    """Neither the number of instances nor memory matters for fragments."""
    free = FreeResources(CLUSTER)
    counts = {Demand(1, 2): 2, Demand(3, 2): 1, Demand(1, 2, memory_mib=5): 1, Demand(1, 2, cpu_milli=5): 1}
    history = typical_of(free, counts)
    assert list(history.weights)[:3] == pytest.approx([0.8, 0.2, 0.0])
    assert [Need(*row).cpu for row in np.asarray(history.typical)[:2]] == [0, 5]


def test_the_most_frequent_demands_come_first_and_the_earliest_of_equals() -> None:
    free = FreeResources(CLUSTER)
    history = typical_of(free, {Demand(1, 1): 1, Demand(1, 2): 4, Demand(1, 3): 1, Demand(1, 4): 0})
    assert [Need(*row).gpus for row in np.asarray(history.typical)[:3]] == [2, 1, 3]
    assert list(history.weights)[:4] == pytest.approx([4 / 6, 1 / 6, 1 / 6, 0.0])


def test_the_48_most_frequent_demands_are_typical() -> None:
    free = FreeResources(CLUSTER)
    counts = {Demand(1, 1, milli): milli for milli in range(1, 61)}
    history = typical_of(free, counts)
    assert [Need(*row).milli for row in np.asarray(history.typical)] == list(range(60, 12, -1))
    assert sum(history.weights) == pytest.approx(1.0)
    assert history.weights[0] == pytest.approx(60 / sum(range(13, 61)))


def test_statistics_are_updated_after_powers_of_two_and_then_every_1024_jobs() -> None:
    due = [total for total in range(1, 5000) if is_update_due(total)]
    assert due == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096]


def test_a_cleared_cache_has_no_rows_of_demands() -> None:
    cache = empty_score_cache(4, 2)
    cache.owner[0] = 7
    cache.clear()
    assert list(cache.owner) == [-1] * 4


def test_without_history_a_fraction_is_worth_itself_and_caches_are_limited() -> None:
    assert list(empty_demand_history().worth) == [milli / 1000 for milli in range(1001)]
    assert np.shape(empty_score_cache(10_000, 3).scores) == (512, 3)
