"""Failures on a real Slurm, at seeded moments: what `python -m benchmarks.engines --faults` counts is zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import slurm_accounting
import slurm_servers
from benchmarks.engines.slurm_faults import measure_fault

TIMES = {
    "daemon killed": 4,
    "slurmctld killed": 2,
    "daemon and slurmctld killed": 1,
    "node killed": 1,
    "slurmdbd and slurmctld killed": 1,
}


POOL_TIMES = {**TIMES, "slurmctld killed": 1, "allocation cancelled": 2}


CASES = [*((fault, False) for fault in TIMES), *((fault, True) for fault in POOL_TIMES)]


@pytest.mark.parametrize(("fault", "pool"), CASES)
def test_no_job_is_lost_and_no_run_starts_twice(fault: str, pool: bool, need_programs: Callable[..., None]) -> None:
    need_programs(*slurm_servers.PROGRAMS, *(slurm_accounting.PROGRAMS if "slurmdbd" in fault else ()))
    found = measure_fault(fault, (POOL_TIMES if pool else TIMES)[fault], pool=pool)
    assert (found.lost, found.twice, found.left) == (0, 0, 0)
