"""Copies of the state on hosts: which is complete, what a second host must have, and who reads what from whom."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from refold.train.copies import (
    HostCopy,
    TensorRegions,
    newest_complete,
    parts_to_back_up,
    pieces_of,
    volume,
)
from refold.train.copy_files import memory_left
from refold.train.copy_ledger import CopyLedger
from refold.train.handover import Region
from refold.train.run_settings import HostSlots

WHOLE = {"w": (4, 6), "step": ()}
SIZES = {"w": 24, "step": 1}
LEFT, RIGHT = ((0, 4), (0, 3)), ((0, 4), (3, 6))


def copy(step: int, regions: TensorRegions, slot: int = 0, generation: int = 1) -> HostCopy:
    return HostCopy(generation, step, slot, SIZES, regions)


def host(instance: int) -> HostSlots:
    return HostSlots(instance, 1, 2, f"10.0.0.{instance}", 29500, 29400)


def cells(region: Region) -> set[tuple[int, ...]]:
    return set(product(*(range(first, end) for first, end in region)))


def test_the_newest_copy_that_is_complete_on_the_hosts_together_is_loaded() -> None:
    old = [copy(10, {"w": [LEFT], "step": [()]}, 0), copy(10, {"w": [RIGHT]}, 0)]
    new = [copy(20, {"w": [LEFT], "step": [()]}, 1), copy(20, {"w": [LEFT]}, 1)]
    assert newest_complete({0: [old[0], new[0]], 1: [old[1], new[1]]}) == {0: old[0], 1: old[1]}
    assert newest_complete({0: [old[0]], 2: [new[1]]}) == {}


def test_copies_of_one_step_by_different_generations_are_not_mixed() -> None:
    one, other = copy(10, {"w": [LEFT], "step": [()]}), copy(10, {"w": [RIGHT], "step": [()]}, generation=2)
    assert newest_complete({0: [one], 1: [other]}) == {}


def test_the_next_host_fetches_what_only_one_host_has() -> None:
    copies = {0: copy(5, {"w": [LEFT], "step": [()]}), 1: copy(5, {"w": [RIGHT], "step": [()]})}
    assert parts_to_back_up(copies, [0, 1, 2]) == {1: {0: {"w": [LEFT]}}, 2: {1: {"w": [RIGHT]}}}
    assert parts_to_back_up(copies, [0, 1]) == {1: {0: {"w": [LEFT]}}, 0: {1: {"w": [RIGHT]}}}
    assert parts_to_back_up({0: copies[0]}, [0]) == {}


def cuts(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Ways to divide so many rows."""

    def pairs(inner: set[int]) -> list[tuple[int, int]]:
        bounds = [0, *sorted(inner), size]
        return list(pairwise(bounds))

    return st.sets(st.integers(1, size - 1), max_size=3).map(pairs)


@given(cuts(4), cuts(6), st.data())
def test_every_element_is_read_once_from_a_host_that_has_it_and_from_the_own_one_if_possible(
    rows: list[tuple[int, int]], columns: list[tuple[int, int]], data: st.DataObject
) -> None:
    grid: list[Region] = list(product(rows, columns))
    holders = {region: data.draw(st.sets(st.integers(0, 2), min_size=1)) for region in grid}
    holdings: dict[int, TensorRegions] = {
        number: {"w": [region for region in grid if number in holders[region]]} for number in range(3)
    }
    first, second = (sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in (4, 6))
    wanted: Region = ((first[0], first[1]), (second[0], second[1]))
    own, turn = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
    pieces = pieces_of("w", wanted, holdings, own, turn)
    assert sum(volume(piece.region) for piece in pieces) == volume(wanted)
    assert set().union(*(cells(piece.region) for piece in pieces)) == cells(wanted)
    for piece in pieces:
        found = next(region for region in grid if cells(piece.region) <= cells(region))
        assert piece.host in holders[found]
        assert piece.host == own or own not in holders[found]


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=6, max_size=6), st.sets(st.integers(0, 3), min_size=2))
def test_after_fetching_a_copy_survives_the_loss_of_any_host(holders: list[set[int]], alive: set[int]) -> None:
    grid: list[Region] = [((0, 4), (column, column + 1)) for column in range(6)]
    hosts = sorted(alive)
    by_region = list(zip(grid, holders, strict=True))
    held: dict[int, TensorRegions] = {
        number: {"w": [region for region, by in by_region if number in by], "step": [()]} for number in hosts
    }
    copies = {number: copy(5, regions) for number, regions in held.items()}
    is_complete = bool(newest_complete({number: [found] for number, found in copies.items()}))
    assert is_complete == all(by & alive for by in holders)
    for target, sources in parts_to_back_up(copies, hosts).items():
        for source, regions in sources.items():
            assert all(region in held[source]["w"] for region in regions["w"])
            held[target] = {**held[target], "w": [*held[target]["w"], *regions["w"]]}
    for lost in hosts if is_complete else ():
        left = {number: [copy(5, regions)] for number, regions in held.items() if number != lost}
        assert newest_complete(left)


def test_a_copy_is_secured_when_all_parts_are_on_two_hosts() -> None:
    ledger, hosts = CopyLedger(), [host(0), host(1)]
    ledger.set_hosts([0, 1])
    left, right = copy(5, {"w": [LEFT], "step": [()]}), copy(5, {"w": [RIGHT], "step": [()]})
    both = copy(5, {"w": [LEFT, RIGHT], "step": [()]})
    ledger.note(0, [left])
    assert ledger.next_orders(hosts) == (None, {})
    ledger.note(1, [right])
    step, orders = ledger.next_orders(hosts)
    assert step is None
    assert {target: set(order.sources) for target, order in orders.items()} == {0: {1}, 1: {0}}
    assert orders[0].sources[1].regions == {"w": [RIGHT]}
    assert ledger.next_orders(hosts) == (None, {}), "ordered once"
    ledger.note(0, [both])
    assert ledger.next_orders(hosts) == (None, {})
    ledger.note(1, [both])
    assert ledger.next_orders(hosts) == (5, {})
    assert ledger.next_orders(hosts) == (None, {}), "told once"


def test_a_copy_whose_parts_cannot_be_fetched_does_not_keep_the_next_one_from_being_written() -> None:
    ledger, hosts = CopyLedger(), [host(0), host(1)]
    ledger.set_hosts([0, 1])
    ledger.note(0, [copy(5, {"w": [LEFT, RIGHT], "step": [()]})])
    assert set(ledger.next_orders(hosts)[1]) == {1}
    ledger.note(1, [], failed=5)
    assert ledger.next_orders(hosts) == (5, {})


def test_what_only_one_host_has_after_a_loss_is_fetched_again() -> None:
    ledger = CopyLedger()
    ledger.set_hosts([0, 1])
    both = copy(5, {"w": [LEFT, RIGHT], "step": [()]})
    ledger.note(0, [both])
    ledger.note(1, [both])
    assert ledger.next_orders([host(0), host(1)]) == (5, {})
    ledger.set_hosts([0, 2])
    ledger.note(2, [])
    step, orders = ledger.next_orders([host(0), host(2)])
    assert step is None
    assert orders[2].sources[0].regions == {"w": [LEFT, RIGHT], "step": [()]}


@pytest.mark.parametrize(
    ("line", "names", "expected"),
    [
        ("0::/job/step", ("memory.max", "memory.current"), [300 + 50, 1000 - 500 + 50]),
        ("4:memory:/job/step", ("memory.limit_in_bytes", "memory.usage_in_bytes"), [300 + 50, 1000 - 500 + 50]),
        ("3:cpuset:/job/step", ("memory.max", "memory.current"), []),
    ],
)
def test_copies_must_fit_into_the_memory_that_the_cgroups_leave(
    tmp_path: Path, line: str, names: tuple[str, str], expected: list[int]
) -> None:
    hierarchy = tmp_path / line.split(":")[1]
    for folder, limit, used in (("job/step", "600", "300"), ("job", "1000", "500"), ("", "max", "900")):
        (hierarchy / folder).mkdir(parents=True, exist_ok=True)
        for name, text in zip(names, (limit, used), strict=True):
            (hierarchy / folder / name).write_text(text + "\n")
        (hierarchy / folder / "memory.stat").write_text("anon 7\ninactive_file 50\nactive_file 9\n")
    own = tmp_path / "own"
    own.write_text(line + "\n")
    assert sorted(memory_left(tmp_path, own))[:-1] == sorted(expected)
