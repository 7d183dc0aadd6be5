"""When the layout changes, ranks write what others need of their state, and keep what does not change."""

from __future__ import annotations

from refold.train.handover import Handover, Region, intersection

WHOLE: Region = ((0, 8), (0, 4))
TOP, BOTTOM = ((0, 4), (0, 4)), ((4, 8), (0, 4))
LEFT, RIGHT = ((0, 8), (0, 2)), ((0, 8), (2, 4))


def test_regions_intersect_in_every_dimension() -> None:
    assert intersection(TOP, RIGHT) == ((0, 4), (2, 4))
    assert intersection(TOP, BOTTOM) is None
    assert intersection((), ()) == ()  # scalars


def test_what_does_not_change_is_kept_and_not_written() -> None:
    handover = Handover(0, before=[{"w": TOP}, {"w": BOTTOM}], after=[{"w": TOP}, {"w": BOTTOM}])
    assert handover.keeps("w")
    assert handover.part_to_write("w", TOP) is None


def test_a_rank_that_keeps_a_region_writes_it_for_others() -> None:
    handover = Handover(0, before=[{"w": TOP}, {"w": BOTTOM}], after=[{"w": TOP}, {"w": WHOLE}])
    assert handover.keeps("w")
    assert handover.part_to_write("w", TOP) == TOP


def test_a_rank_writes_only_the_part_that_is_read() -> None:
    handover = Handover(0, before=[{"w": WHOLE}, {}], after=[{}, {"w": BOTTOM}])
    assert not handover.keeps("w")
    assert handover.part_to_write("w", WHOLE) == BOTTOM


def test_a_rank_writes_its_share_if_several_parts_are_read() -> None:
    handover = Handover(1, before=[{"w": TOP}, {"w": BOTTOM}], after=[{"w": LEFT}, {"w": RIGHT}])
    assert handover.part_to_write("w", BOTTOM) == BOTTOM


def test_nothing_is_written_of_a_parameter_that_no_rank_will_have() -> None:
    assert Handover(0, before=[{"w": WHOLE}], after=[{}]).part_to_write("w", WHOLE) is None
