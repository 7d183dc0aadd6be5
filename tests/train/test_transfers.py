"""Who sends which part of the state to whom, and where ranks run, when hosts are lost or join."""

from __future__ import annotations

from itertools import product

from hypothesis import given, strategies as st

from refold.train.handover import Region, Regions
from refold.train.rank_places import places_for, renumbered
from refold.train.run_settings import HostSlots, Place
from refold.train.transfers import Holding, Transfer, newest_holdings, transfers

WHOLE: Region = ((0, 4),)
TOP, BOTTOM = ((0, 2),), ((2, 4),)
SIZES = {"w": 4}


def host(instance: int, slots: int = 2) -> HostSlots:
    return HostSlots(instance, 1, slots, "10.0.0.1", 29500, 29400)


def test_ranks_that_have_come_furthest_are_the_sources() -> None:
    holdings = [Holding(7, {"w": WHOLE}, SIZES), Holding(8, {"w": WHOLE}, SIZES), Holding(-1, {}, {})]
    held = newest_holdings(holdings)
    assert held == {1: {"w": WHOLE}}
    assert list(transfers(held, [{"w": WHOLE}] * 3)) == [
        Transfer("w", WHOLE, 1, 0),
        Transfer("w", WHOLE, 1, 1),
        Transfer("w", WHOLE, 1, 2),
    ]


def test_shards_of_which_one_is_lost_are_not_the_state() -> None:
    assert newest_holdings([Holding(8, {"w": TOP}, SIZES), Holding(7, {"w": BOTTOM}, SIZES)]) == {}
    both = [Holding(8, {"w": TOP}, SIZES), Holding(8, {"w": BOTTOM}, SIZES)]
    assert newest_holdings(both) == {0: {"w": TOP}, 1: {"w": BOTTOM}}
    assert newest_holdings([Holding(-1, {}, {})]) == {}


def test_ranks_with_equal_parts_take_turns_in_sending_them() -> None:
    held: dict[int, Regions] = {rank: {"a": WHOLE, "b": WHOLE} for rank in (0, 1)}
    sources = [transfer.source for transfer in transfers(held, [{}, {}, {"a": WHOLE, "b": WHOLE}])]
    assert sources == [0, 1]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_every_rank_gets_each_element_once(before: list[int], after: list[int]) -> None:
    """Shards of any sizes become shards of any other sizes."""

    def shards(sizes: list[int]) -> list[Regions]:
        ends = [12 * sum(sizes[: rank + 1]) // sum(sizes) for rank in range(len(sizes))]
        return [{"w": ((first, end),)} for first, end in zip([0, *ends], ends, strict=False)]

    held = {rank: regions for rank, regions in enumerate(shards(before)) if regions["w"][0][0] < regions["w"][0][1]}
    wanted = shards(after)
    found: dict[int, list[int]] = {rank: [] for rank in range(len(wanted))}
    for name, region, source, target in transfers(held, wanted):
        ((first, end),), ((low, high),) = region, held[source][name]
        assert low <= first < end <= high
        found[target] += range(first, end)
    assert {rank: sorted(cells) for rank, cells in found.items()} == {
        rank: list(range(*regions["w"][0])) for rank, regions in enumerate(wanted)
    }


def test_processes_keep_their_numbers_if_they_can() -> None:
    assert renumbered({11: 0, 13: 2, 14: 3}, 3) == {11: 0, 13: 2, 14: 1}
    assert renumbered({12: 1, 14: 3}, 2) == {12: 1, 14: 0}
    assert sorted(renumbered({10: 4, 11: 5, 12: 6}, 2).values()) == [0, 1, 2], "the third one is not needed"


def test_joining_ranks_fill_the_slots_that_are_free() -> None:
    stay = {0: Place(0, 1), 1: Place(2, 0)}
    assert places_for(stay, [host(0), host(2, 1), host(3)], 4) == (
        Place(0, 1, 2),
        Place(2, 0, 1),
        Place(0, 0, 2),
        Place(3, 0, 1),
    )
    assert places_for(stay, [host(0, 1), host(2)], 2) is None, "a slot was taken away"


def test_numbers_of_any_processes_are_distinct() -> None:
    for ranks in product(range(4), repeat=3):
        if len(set(ranks)) == 3:
            numbers = renumbered(dict(enumerate(ranks)), 2)
            assert sorted(numbers.values()) == [0, 1, 2]
