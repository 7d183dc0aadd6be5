"""The observer of the fault benchmark sees what it is there to see."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.kubernetes.faults import JOB_LABEL, PODS, GangWatch
from kubernetes_objects import make_pod

from refold.engines.kubernetes.objects import Pod


def member(number: int, node: str = "", gpus: str = "", **fields: Any) -> Pod:
    return make_pod(
        f"g-{number}", labels={JOB_LABEL: "g"}, nodeName=node, annotations={"refold.dev/gpus": gpus}, **fields
    )


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> GangWatch:
    return GangWatch(clock)


def test_a_gang_is_bound_in_part_from_its_first_binding_to_its_last(watch: GangWatch, clock: Clock) -> None:
    for number in range(PODS):
        clock.now = float(number)
        watch.change(member(number, "n0", str(number)), deleted=False)
    assert watch.durations() == [PODS - 1.0]
    assert watch.bindings == {"g": PODS}


def test_a_gang_that_stays_bound_in_part_is_seen(watch: GangWatch, clock: Clock) -> None:
    clock.now = 10.0
    watch.change(member(0, "n0"), deleted=False)
    clock.now = 110.0
    assert watch.durations() == [100.0]


def test_pods_that_have_succeeded_do_not_make_a_gang_partial(watch: GangWatch, clock: Clock) -> None:
    for number in range(PODS):
        watch.change(member(number, "n0", str(number)), deleted=False)
    watch.change(member(0, "n0", "0", status={"phase": "Succeeded"}), deleted=False)
    clock.now += 50.0
    assert max(watch.durations()) < 50.0


def test_a_gpu_with_two_pods_is_counted_until_one_has_ended(watch: GangWatch) -> None:
    watch.change(member(0, "n0", "0,1"), deleted=False)
    watch.change(member(1, "n0", "1,2"), deleted=False)
    assert watch.allocated_twice == 1
    watch.change(member(0, "n0", "0,1", status={"phase": "Succeeded"}), deleted=False)
    watch.change(member(2, "n0", "0"), deleted=False)
    watch.change(member(3, "n1", "1"), deleted=False)
    assert watch.allocated_twice == 1
