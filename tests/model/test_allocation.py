"""Allocations: totals, text, and what a job needs in addition to what it holds."""

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from refold.model import WHOLE, Allocation, Plan, Share, additional_shares
from refold.testing import make_cluster

SPREAD = Allocation(
    (Share(2, (0, 1), WHOLE, 4000, 10), Share(0, (3,), 500, 1500, 20), Share(2, (5,), 250), Share(1, (), WHOLE, 1000))
)


def test_totals_are_sums_over_the_shares() -> None:
    assert (SPREAD.gpu_milli, SPREAD.cpu_milli) == (2000 + 500 + 250, 6500)
    assert SPREAD.nodes == {0, 1, 2}


def test_gpus_are_counted_per_node_in_descending_order() -> None:
    assert SPREAD.gpus_on_node == (3, 1)  # node 1 has CPUs only
    assert Allocation((Share(0, (1,)), Share(1, (0, 1, 2)), Share(2, (0, 1)))).gpus_on_node == (3, 2, 1)


def test_an_allocation_without_gpus() -> None:
    cpus_only = Allocation((Share(0, cpu_milli=2000),))
    assert (cpus_only.gpu_milli, cpus_only.gpus_on_node, cpus_only.nodes) == (0, (), frozenset({0}))


def test_an_allocation_names_nodes_and_gpus() -> None:
    cluster = make_cluster(8, 8, 8)
    assert SPREAD.text(cluster) == "n2 (GPUs 0, 1), n0 (0.5 of GPU 3), n2 (0.25 of GPU 5), n1"
    assert Allocation((Share(1, (7,)),), Plan(2)).text(cluster) == "n1 (GPU 7)"
    assert Allocation((Share(1, (6, 7), 300),)).text(cluster) == "n1 (0.3 of GPUs 6, 7)"


@pytest.mark.parametrize(
    ("wanted", "held", "more"),
    [
        ((Share(0, (0, 1)),), (), (Share(0), Share(0, (0,)), Share(0, (1,)))),
        ((Share(0, (0, 1)),), (Share(0, (0, 1, 2)),), (Share(0),)),
        ((Share(0, (0,), 700),), (Share(0, (0,), 500),), (Share(0), Share(0, (0,), 200))),
        ((Share(0, (0,), 500, 100, 5),), (Share(0, (0,), 700, 300, 9),), (Share(0),)),
        (
            (Share(1, (), WHOLE, 500, 7), Share(0, (), WHOLE, 100, 1), Share(1, (), WHOLE, 600, 7)),
            (Share(1, (), WHOLE, 1000, 4),),
            (Share(0, cpu_milli=100, memory_mib=1), Share(1, cpu_milli=100, memory_mib=10)),
        ),
    ],
)
def test_additional_shares_are_listed_by_node(
    wanted: tuple[Share, ...], held: tuple[Share, ...], more: tuple[Share, ...]
) -> None:
    assert additional_shares(wanted, held) == more


shares = st.builds(
    Share,
    st.integers(0, 2),
    st.sets(st.integers(0, 3)).map(lambda gpus: tuple(sorted(gpus))),
    st.sampled_from([250, 500, 1000]),
    st.integers(0, 3000),
    st.integers(0, 30),
)
placements = st.lists(shares, max_size=4).map(tuple)


def amounts(placement: tuple[Share, ...]) -> Counter[tuple[int, str]]:
    """Every resource of every node, counted."""
    total: Counter[tuple[int, str]] = Counter()
    for share in placement:
        total[(share.node, "cpu")] += share.cpu_milli
        total[(share.node, "memory")] += share.memory_mib
        for gpu in share.gpus:
            total[(share.node, f"gpu {gpu}")] += share.gpu_milli
    return total


@settings(max_examples=60)
@given(placements, placements)
def test_what_is_held_and_what_is_added_are_the_larger_of_both(
    wanted: tuple[Share, ...], held: tuple[Share, ...]
) -> None:
    together = amounts(held) + amounts(additional_shares(wanted, held))
    assert together == amounts(wanted) | amounts(held)
