"""Jobs, demands and launch settings: totals, text, and what they reject."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue
from refold.model import MAX_AMOUNT, MAX_GPUS, MAX_RETRIES, Demand, Job, Launch


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Demand(0), "a job has 0 instances, expected 1 to 1048576"),
        (lambda: Demand(2**20 + 1), "a job has 1048577 instances, expected 1 to 1048576"),
        (lambda: Demand(gpus=-1), "an instance has -1 GPUs, expected 0 to 1048576"),
        (lambda: Demand(gpus=2**20 + 1), "an instance has 1048577 GPUs, expected 0 to 1048576"),
        (lambda: Demand(gpu_milli=0), "gpu_milli is 0, expected 1 to 1000 thousandths of a GPU"),
        (lambda: Demand(gpu_milli=1001), "gpu_milli is 1001, expected 1 to 1000 thousandths of a GPU"),
        (lambda: Demand(cpu_milli=-5), "cpu_milli and memory_mib are -5 and 0, expected 0 to 1099511627776"),
        (
            lambda: Demand(memory_mib=2**50),
            "cpu_milli and memory_mib are 0 and 1125899906842624, expected 0 to 1099511627776",
        ),
        (
            lambda: Demand(cpu_milli=1, memory_mib=-1),
            "cpu_milli and memory_mib are 1 and -1, expected 0 to 1099511627776",
        ),
        (
            lambda: Demand(gpu_types=("A100", "A100")),
            "gpu_types is ('A100', 'A100'), expected each type once, in alphabetical order",
        ),
        (
            lambda: Demand(gpu_types=("V100", "A100")),
            "gpu_types is ('V100', 'A100'), expected each type once, in alphabetical order",
        ),
        (lambda: Job(""), "a job needs an id"),
        (lambda: Job("a", nan), "job 'a': submitted at nan, expected a finite time"),
        (lambda: Job("a", inf), "job 'a': submitted at inf, expected a finite time"),
        (lambda: Job("a", work=nan), "job 'a': work is nan, expected seconds ≥ 0"),
        (lambda: Job("a", work=inf), "job 'a': work is inf, expected seconds ≥ 0"),
        (lambda: Job("a", work=-1.0), "job 'a': work is -1.0, expected seconds ≥ 0"),
        (lambda: Job("a", steps=-1), "job 'a': steps is -1, expected 0 to 1099511627776"),
        (lambda: Job("a", steps=10**20), f"job 'a': steps is {10**20}, expected 0 to 1099511627776"),
        (lambda: Job("a", time_limit=0.0), "job 'a': time limit is 0.0, expected seconds > 0"),
        (lambda: Job("a", time_limit=-1.0), "job 'a': time limit is -1.0, expected seconds > 0"),
        (lambda: Job("a", time_limit=nan), "job 'a': time limit is nan, expected seconds > 0"),
        (
            lambda: Job("a", batch=-1, sequence=7),
            "job 'a': batch and sequence are -1 and 7, expected 0 to 1099511627776",
        ),
        (lambda: Job("a", sequence=-1), "job 'a': batch and sequence are 0 and -1, expected 0 to 1099511627776"),
        (lambda: Launch(stop_signal="KILL"), "stop_signal is 'KILL', expected one of TERM, INT, USR1, USR2, HUP"),  # type: ignore[arg-type]
        (lambda: Launch(retries=-1), "retries is -1, expected 0 to 1000"),
        (lambda: Launch(retries=MAX_RETRIES + 1), "retries is 1001, expected 0 to 1000"),
        (lambda: Launch(grace=-0.5), "grace is -0.5, expected seconds ≥ 0"),
        (lambda: Launch(grace=inf), "grace is inf, expected seconds ≥ 0"),
        (lambda: Launch(no_progress=0.0), "no_progress is 0.0, expected seconds > 0"),
        (lambda: Launch(no_progress=inf), "no_progress is inf, expected seconds > 0"),
    ],
)
def test_an_invalid_job_is_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == message


def reshapable(minimum: int, maximum: int, **changes: Any) -> Job:
    return Job("a", **{"demand": Demand(2, 4), "reshapable": True, "gpu_range": (minimum, maximum), **changes})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: reshapable(0, 8), "gpu_range is 0 to 8, expected 1 ≤ minimum ≤ maximum"),
        (lambda: reshapable(8, 7), "gpu_range is 8 to 7, expected 1 ≤ minimum ≤ maximum"),
        (lambda: reshapable(1, MAX_GPUS + 1), "gpu_range is 1 to 1048577, expected 1 ≤ minimum ≤ maximum"),
        (lambda: reshapable(1, 7), "gpu_range is 1 to 7, expected to include the requested 2 × 4 GPUs"),
        (lambda: reshapable(9, 16), "gpu_range is 9 to 16, expected to include the requested 2 × 4 GPUs"),
        (lambda: reshapable(1, 8, reshapable=False), "gpu_range needs a reshapable job that requests whole GPUs"),
        (
            lambda: reshapable(1, 8, demand=Demand(8, 1, 999)),
            "gpu_range needs a reshapable job that requests whole GPUs",
        ),
    ],
)
def test_a_gpu_range_includes_the_request_of_a_reshapable_job(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == f"job 'a': {message}"


def test_values_at_their_bounds_are_accepted() -> None:
    assert reshapable(8, 8).gpu_range == (8, 8)
    assert reshapable(1, MAX_GPUS).gpu_range == (1, 2**20)
    assert Demand(2**20, 2**20, 1, MAX_AMOUNT, MAX_AMOUNT).gpu_milli == 1
    assert Demand(gpus=0).total_gpus == 0
    job = Job("a", -5.0, work=0.0, steps=MAX_AMOUNT, batch=MAX_AMOUNT, sequence=MAX_AMOUNT)
    assert (job.submitted, job.work, job.steps) == (-5.0, 0.0, MAX_AMOUNT)
    assert Job("a", time_limit=inf).time_limit == inf
    assert Launch(retries=MAX_RETRIES, grace=0.0, no_progress=0.001).retries == 1000


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        (Demand(), "1 GPU"),
        (Demand(1, 8), "8 GPUs"),
        (Demand(4), "4 × 1 GPU"),
        (Demand(1, 1, 500), "0.5 GPU"),
        (Demand(2, 3, 250, gpu_types=("V100",)), "2 × 3 × 0.25 GPU (V100)"),
        (Demand(1, 0, cpu_milli=500), "0.5 CPU"),
        (Demand(3, 0, cpu_milli=2000), "3 × 2 CPUs"),
    ],
)
def test_a_demand_is_formatted_per_instance(demand: Demand, text: str) -> None:
    assert str(demand) == text


@given(st.integers(1, 64), st.integers(0, 64), st.integers(1, 1000))
def test_the_gpus_of_a_demand_are_those_of_all_instances(instances: int, gpus: int, milli: int) -> None:
    demand = Demand(instances, gpus, milli)
    assert demand.total_gpu_milli == sum(milli for _ in range(instances) for _ in range(gpus))
    assert round(demand.total_gpus * 1000) == demand.total_gpu_milli
