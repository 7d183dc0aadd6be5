"""Nouns cannot be built wrong."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue, UnknownName
from refold.model import Allocation, Cluster, Demand, GpuType, Job, Link, Node, Plan, Share
from refold.model.allocation import beyond
from refold.model.units import seconds_from_text, text_from_seconds
from refold.testing import make_cluster


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Demand(instances=0), "1 to 1048576 instances"),
        (lambda: Demand(instances=2**30, gpus=0), "1 to 1048576 instances"),
        (lambda: Demand(gpus=-1), "0 or more GPUs"),
        (lambda: Demand(gpu_milli=0), "1 to 1000 thousandths"),
        (lambda: Demand(gpu_milli=1001), "1 to 1000 thousandths"),
        (lambda: Demand(cpu_milli=-5), "CPUs and memory"),
        (lambda: Demand(memory_mib=2**50), "CPUs and memory"),
        (lambda: Demand(gpu_types=("b", "a")), "alphabetical"),
        (lambda: Job(""), "needs an id"),
        (lambda: Job("a", submitted=float("nan")), "finite time"),
        (lambda: Job("a", work=float("inf")), "work is inf"),
        (lambda: Job("a", work=-1.0), "work is -1"),
        (lambda: Job("a", time_limit=0.0), "time limit"),
        (lambda: Job("a", steps=-1), "steps"),
        (lambda: Node(""), "needs a name"),
        (lambda: Node("a", gpus=63, gpu_type="x"), "0 to 62"),
        (lambda: Node("a", gpus=1), "no gpu_type"),
        (lambda: Node("a", cpu_milli=-1), "must be ≥ 0"),
        (lambda: GpuType(""), "needs a name"),
        (lambda: GpuType("a", speed=0.0), "speed > 0"),
        (lambda: GpuType("a", speed=float("nan")), "speed > 0"),
        (lambda: GpuType("a", memory_gib=float("inf")), "memory and power"),
        (lambda: Node("a", cpu_milli=2**63), "not beyond reason"),
        (lambda: Link("x", 0.0), "bandwidth"),
        (lambda: Link("x", float("nan")), "bandwidth"),
        (lambda: Cluster(()), "at least one node"),
        (lambda: Cluster((Node("a"), Node("a"))), "same name"),
        (lambda: Plan(data=0), "at least 1"),
        (lambda: Plan(zero=4), "stages 0 to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(build: Callable[[], object], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        build()


def test_what_is_read_is_checked_as_well() -> None:
    with pytest.raises(msgspec.ValidationError, match="1 to 1048576 instances"):
        msgspec.json.decode(b'{"instances": 0}', type=Demand)


def test_a_cluster_knows_its_types() -> None:
    cluster = make_cluster(8, 2, 0, types=["H100", "A100", ""], speeds={"H100": 2.0})
    assert (cluster.gpus, cluster.type_names) == (10, ("A100", "H100"))
    assert (cluster.gpu_type("H100").speed, cluster.gpu_type("A100").speed) == (2.0, 1.0)
    with pytest.raises(UnknownName, match="no GPU type 'B200'"):
        cluster.gpu_type("B200")


def test_things_say_what_they_are() -> None:
    assert str(Demand(2, 8, gpu_types=("A100", "H100"))) == "2 × 8 GPU (A100|H100)"
    assert str(Demand(1, 1, 500)) == "1 × 0.5 GPU"
    assert str(Demand(1, 0, cpu_milli=4000)) == "4 CPU"
    assert str(Plan(data=2, tensor=4, zero=2, accumulation=8)) == "DP2 TP4 ZeRO-2 accumulate 8"
    assert Plan(2, 4, 3).gpus == 24


def test_what_another_shape_needs_beyond_the_present_one() -> None:
    held = (Share(0, (0, 1), 500, 1000, 10), Share(1, (0,), 1000))
    wanted = (Share(0, (1, 2), 700, 4000, 5),)
    more = beyond(wanted, held)
    assert Allocation(more).gpu_milli == 200 + 700
    assert sum(share.cpu_milli for share in more) == 3000
    assert sum(share.memory_mib for share in more) == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), (" 2d ", 172800), ("1.5h", 5400), ("250ms", 0.25)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert seconds_from_text(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-3s", "1h potato", "nan", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="is not a duration"):
        seconds_from_text(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.25, "3.2 s"),
        (59.9, "60 s"),
        (61, "1 min 1 s"),
        (5400, "1 h 30 min"),
        (86400, "1 d"),
        (-90, "-1 min 30 s"),
    ],
)
def test_durations_are_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert text_from_seconds(seconds) == text


@given(st.floats(0, 1e9))
def test_a_duration_that_is_told_can_be_read_again(seconds: float) -> None:
    again = seconds_from_text(text_from_seconds(seconds))
    assert abs(again - seconds) <= max(0.06, seconds / 20)


def test_a_job_wants_no_more_steps_than_anybody_could_count() -> None:
    with pytest.raises(BadValue, match="not beyond reason"):
        Job("a", steps=10**400)
