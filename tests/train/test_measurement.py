"""A measurement cannot be built wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refold.errors import BadValue
from refold.model.plan import Plan
from refold.perf.measurement import Measurement

MEASURED = Measurement("gpt", "H200", (4, 4), Plan(data=4, tensor=2, accumulation=2), 64, 1024, 16.0, step_seconds=0.5)


def test_what_follows_from_it() -> None:
    assert MEASURED.micro_batch == 8
    assert MEASURED.samples_per_second == 128
    assert Measurement("gpt", "H200", (1,), Plan(), 64, 1024, status="oom").samples_per_second == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus_on_node": (4,)}, "DP4 TP2 accumulate 2 is for 8 GPUs, not \\(4,\\)"),
        ({"gpus_on_node": ()}, "is for 8 GPUs"),
        ({"batch": 0}, "at least one sample"),
        ({"step_seconds": None}, "go with the status 'ok', and only with it"),
        ({"status": "oom"}, "go with the status 'ok', and only with it"),
        ({"step_seconds": 0.0}, "step_seconds are 0.0, expected > 0"),
        ({"forward_seconds": -1.0}, "-1.0 is not a number ≥ 0"),
        ({"memory_gib": float("nan")}, "nan is not a number ≥ 0"),
    ],
)
def test_what_it_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        msgspec.structs.replace(MEASURED, **changes)


def test_it_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MEASURED), type=Measurement) == MEASURED
