"""Validation of measurements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refold.errors import BadValue
from refold.model.plan import Plan
from refold.planning.perf.measurement import Measurement

MEASURED = Measurement("gpt", "H200", (4, 4), Plan(data=4, tensor=2, accumulation=2), 64, 1024, 16.0, step_seconds=0.5)


def test_micro_batch_and_throughput_are_derived() -> None:
    assert MEASURED.micro_batch == 8
    assert MEASURED.samples_per_second == 128
    assert Measurement("gpt", "H200", (1,), Plan(), 64, 1024, status="oom").samples_per_second == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus_on_node": (4,)}, "DP4 TP2 accumulate 2 uses 8 GPUs, but gpus_on_node is \\(4,\\)"),
        ({"gpus_on_node": ()}, "uses 8 GPUs"),
        ({"batch": 0}, "batch and sequence must be ≥ 1"),
        ({"step_seconds": None}, "step_seconds is required with status 'ok', and only then"),
        ({"status": "oom"}, "step_seconds is required with status 'ok', and only then"),
        ({"step_seconds": 0.0}, "step_seconds is 0.0, expected > 0"),
        ({"forward_seconds": -1.0}, "value is -1.0, expected a number ≥ 0"),
        ({"memory_gib": float("nan")}, "value is nan, expected a number ≥ 0"),
    ],
)
def test_invalid_measurements_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        msgspec.structs.replace(MEASURED, **changes)


def test_a_measurement_can_be_encoded_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MEASURED), type=Measurement) == MEASURED
