"""The types of the data model: decoding, lookups and text."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue, UnknownName
from refold.model import Allocation, Demand, Plan, Share, Shortage
from refold.model.allocation import additional_shares
from refold.model.units import format_duration, parse_duration
from refold.testing import make_cluster


def test_decoded_values_are_checked_as_well() -> None:
    with pytest.raises(msgspec.ValidationError, match="0 instances, expected 1 to 1048576"):
        msgspec.json.decode(b'{"instances": 0}', type=Demand)


def test_a_cluster_lists_its_gpu_types() -> None:
    cluster = make_cluster(8, 2, 0, types=["H100", "A100", ""], speeds={"H100": 2.0})
    assert (cluster.gpus, cluster.type_names) == (10, ("A100", "H100"))
    assert (cluster.gpu_type("H100").speed, cluster.gpu_type("A100").speed) == (2.0, 1.0)
    with pytest.raises(UnknownName, match="unknown GPU type 'B200'"):
        cluster.gpu_type("B200")


def test_demands_and_plans_are_formatted() -> None:
    assert str(Demand(2, 8, gpu_types=("A100", "H100"))) == "2 × 8 GPUs (A100|H100)"
    assert str(Demand(1, 1, 500)) == "0.5 GPU"
    assert str(Demand(1, 0, cpu_milli=4000)) == "4 CPUs"
    assert str(Plan(data=2, tensor=4, zero=2, accumulation=8)) == "DP2 TP4 ZeRO-2 accumulate 8"
    assert Plan(2, 4, 3).gpus == 24


def test_additional_shares_exclude_what_is_already_held() -> None:
    held = (Share(0, (0, 1), 500, 1000, 10), Share(1, (0,), 1000))
    wanted = (Share(0, (1, 2), 700, 4000, 5),)
    more = additional_shares(wanted, held)
    assert Allocation(more).gpu_milli == 200 + 700
    assert sum(share.cpu_milli for share in more) == 3000
    assert sum(share.memory_mib for share in more) == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), (" 2d ", 172800), ("1.5h", 5400), ("250ms", 0.25)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-3s", "1h potato", "nan", "inf"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="is not a duration"):
        parse_duration(text)


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
def test_durations_are_formatted_with_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
def test_a_formatted_duration_can_be_parsed(seconds: float) -> None:
    again = parse_duration(format_duration(seconds))
    assert abs(again - seconds) <= max(0.06, seconds / 20)


@pytest.mark.parametrize(
    ("shortage", "demand", "text"),
    [
        (Shortage(nodes=1, too_few_gpus=1), Demand(gpus=2), "0 of 1 nodes fit: 1 has fewer than 2 free GPUs"),
        (
            Shortage(nodes=3, too_few_gpus=2, down=1),
            None,
            "0 of 3 nodes fit: 2 have too few free GPUs, 1 is down",
        ),
        (Shortage(nodes=2, too_few_gpus=2), Demand(gpus=1), "0 of 2 nodes fit: 2 have no free GPU"),
        (Shortage(nodes=1, too_few_gpus=1), Demand(1, 1, 500), "0 of 1 nodes fit: 1 has no GPU with 0.5 free"),
        (Shortage(3, 2, 2, 1, too_small=1), Demand(3, 4), "2 of 3 instances fit on 1 of 2 nodes: 1 has fewer than 4"),
    ],
)
def test_a_shortage_is_formatted_in_plain_english(shortage: Shortage, demand: Demand | None, text: str) -> None:
    assert shortage.text(demand).startswith(text)
