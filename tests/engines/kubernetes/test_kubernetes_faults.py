"""Failures on a real API server, at seeded moments: what `python -m benchmarks.kubernetes --faults` counts is zero."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.kubernetes.faults import measure

TIMES = {"leader killed": 3, "watches dropped": 3, "10 % of bindings fail": 5}


@pytest.mark.parametrize("fault", TIMES)
def test_no_gang_stays_half_bound_no_gpu_is_allocated_twice_and_no_pod_is_forgotten(
    fault: str, server_programs: Path
) -> None:
    found = measure(server_programs, fault, TIMES[fault])
    assert (found.half_bound, found.allocated_twice, found.forgotten) == (0, 0, 0)
