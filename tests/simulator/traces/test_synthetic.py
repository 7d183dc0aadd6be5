"""Generated workloads have the specified mix, durations and load, and depend only on the seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tools.demo_trace import LOAD, demo_cluster, demo_trace

from refold.errors import BadValue
from refold.model import Demand, Job
from refold.model.units import DAY, HOUR
from refold.simulator.traces.formats import read_cluster, read_trace
from refold.simulator.traces.synthetic import (
    OFFICE_HOURS,
    Empirical,
    Lognormal,
    PoissonArrivals,
    SizeClass,
    WorkloadShape,
    enlarge,
    everyday_workload,
    fit_shape,
    generate,
)
from refold.simulator.traces.trace import Trace, make_trace
from refold.testing import make_cluster, make_job

CLUSTER = read_cluster("16x8:A100")


def _load(trace: Trace) -> float:
    return trace.gpu_seconds / (trace.span * CLUSTER.gpus)


def _quantiles(trace: Trace, demand: Demand) -> list[float]:
    work = [job.work for job in trace.jobs if job.demand == demand and job.work is not None]
    return [float(value) for value in np.quantile(work, [0.1, 0.25, 0.5, 0.75, 0.9])]


@pytest.mark.parametrize("jobs", [2, 10, 100, 4000])
@pytest.mark.parametrize("load", [0.5, 0.9, 1.3])
def test_the_generated_load_is_within_1_percent_of_the_specified_load(load: float, jobs: int) -> None:
    shape = everyday_workload(jobs).for_load(CLUSTER, load)
    assert shape.load(CLUSTER) == pytest.approx(load)
    for seed in range(5):
        assert _load(generate(shape, seed)) == pytest.approx(load, rel=0.01)


def test_a_note_says_why_the_load_of_the_generated_jobs_is_undefined() -> None:
    rarely_gpus = (
        SizeClass(Demand(gpus=0), 1.0, Empirical((60.0,))),
        SizeClass(Demand(), 1e-9, Empirical((60.0,))),
    )
    cpu_only = generate(WorkloadShape(20, PoissonArrivals(10.0), rarely_gpus).for_load(CLUSTER, 0.9), seed=1)
    assert cpu_only.notes[1:] == ("the offered load is undefined: no job requests GPU time",)
    single_job = generate(everyday_workload(1).for_load(CLUSTER, 0.9), seed=1)
    assert single_job.notes[1:] == ("the offered load is undefined: all jobs are submitted at the same time",)


def test_a_fitted_workload_has_the_sizes_durations_and_load_of_its_source() -> None:
    source = read_trace("demo")
    generated = generate(replace(fit_shape(source), jobs=3 * len(source.jobs)), seed=3)
    sizes, sizes_generated = (Counter(job.demand for job in trace.jobs) for trace in (source, generated))
    for demand, count in sizes.items():
        assert sizes_generated[demand] == pytest.approx(3 * count, abs=1), "rounded to whole jobs"
        if count >= 100:
            assert _quantiles(generated, demand) == pytest.approx(_quantiles(source, demand), rel=0.1)
    assert generated.gpu_seconds == pytest.approx(3 * source.gpu_seconds, rel=0.02)
    assert generated.span == pytest.approx(3 * source.span, rel=0.02)
    tenants, tenants_generated = (Counter(job.tenant for job in trace.jobs) for trace in (source, generated))
    assert {tenant: count * 3 for tenant, count in tenants.items()} == pytest.approx(dict(tenants_generated), abs=1)


def test_arrivals_follow_the_hourly_weights_and_the_fitted_weights() -> None:
    shape = replace(everyday_workload(20000), arrivals=PoissonArrivals(100.0, OFFICE_HOURS))
    generated = generate(shape, seed=5)
    refitted = generate(fit_shape(generated), seed=6)
    for trace in (generated, refitted):
        hours = np.bincount([int(job.submitted // HOUR) % 24 for job in trace.jobs], minlength=24)
        expected = np.array(OFFICE_HOURS) / sum(OFFICE_HOURS)
        assert hours / hours.sum() == pytest.approx(expected, abs=0.01)


def test_the_burst_size_is_recovered_by_fitting() -> None:
    shape = replace(everyday_workload(2000), arrivals=PoissonArrivals(60.0, burst=4.0, burst_seconds=0.5))
    fitted = fit_shape(generate(shape, seed=2)).arrivals
    assert fitted.burst == pytest.approx(4.0, rel=0.1)


def test_user_correlation_makes_a_users_run_times_similar_and_keeps_their_distribution() -> None:
    shape = WorkloadShape(
        1000,
        PoissonArrivals(10.0),
        (SizeClass(Demand(), 1.0, Lognormal(600, 1.5)),),
        users_per_tenant=20,
    )
    spread = {}
    for correlation in (0.0, 0.9):
        jobs = generate(replace(shape, user_correlation=correlation), seed=4).jobs
        assert np.median([job.work or 0 for job in jobs]) == pytest.approx(600, rel=0.02)
        users: dict[str, list[float]] = {}
        for job in jobs:
            users.setdefault(job.user, []).append(float(np.log(job.work or 1)))
        spread[correlation] = np.mean([np.std(logs) for logs in users.values()])
    assert spread[0.9] < 0.5 * spread[0.0]


def test_the_same_seed_gives_the_same_jobs_and_another_seed_gives_different_jobs() -> None:
    shape = everyday_workload(200)
    assert generate(shape, seed=7) == generate(shape, seed=7)
    assert generate(shape, seed=7).jobs != generate(shape, seed=8).jobs


def test_no_job_exceeds_its_time_limit() -> None:
    jobs = generate(everyday_workload(500), seed=0).jobs
    assert all(job.time_limit is not None and job.work is not None and job.work <= job.time_limit for job in jobs)


def test_durations_follow_their_distribution() -> None:
    levels = np.array([0.1, 0.5, 0.8413447, 1.0])
    assert Lognormal(100, 1.0, maximum=DAY).seconds(levels) == pytest.approx([27.76, 100, 271.8, DAY], rel=1e-3)
    assert Empirical((1.0, 3.0)).seconds(np.array([0.0, 0.25, 0.5, 0.75, 1.0])) == pytest.approx([1, 1, 2, 3, 3])


def test_an_enlarged_trace_repeats_jobs_with_new_ids_and_times() -> None:
    source = read_trace("demo")
    large = enlarge(source, 2.5, seed=1)
    assert len(large.jobs) == pytest.approx(2.5 * len(source.jobs), rel=0.03)
    assert len({job.id for job in large.jobs}) == len(large.jobs)
    assert set(source.jobs) <= set(large.jobs)
    assert large.gpu_seconds == pytest.approx(2.5 * source.gpu_seconds, rel=0.05)
    assert large.span <= source.span + source.jobs[0].submitted
    assert [job.submitted for job in large.jobs] == sorted(job.submitted for job in large.jobs)
    assert len(enlarge(source, 0.1, seed=1).jobs) == pytest.approx(150, abs=40)


def test_the_shipped_workload_matches_the_generator() -> None:
    # Compare mixes, not bytes: other versions of numpy may draw other numbers from the same seed.
    shipped, generated = read_trace("demo"), demo_trace()
    assert Counter(job.demand for job in shipped.jobs) == Counter(job.demand for job in generated.jobs)
    assert shipped.gpu_seconds == pytest.approx(generated.gpu_seconds, rel=0.02)
    assert read_cluster("demo") == demo_cluster()
    assert shipped.gpu_seconds / (shipped.span * demo_cluster().gpus) == pytest.approx(LOAD, rel=0.03)


@pytest.mark.parametrize(
    "build_invalid",
    [
        lambda: everyday_workload(0),
        lambda: everyday_workload(1).for_load(CLUSTER, float("nan")),
        lambda: enlarge(read_trace("demo"), -1, 0),
        lambda: fit_shape(Trace("none", (Job("a"),))),
        lambda: PoissonArrivals(0.0),
        lambda: PoissonArrivals(1.0, hour_weights=(0.0, 0.0)),
        lambda: Lognormal(10.0, 1.0, maximum=5.0),
        lambda: Empirical((2.0, 1.0)),
        lambda: SizeClass(Demand(), -1.0, Empirical((1.0,))),
    ],
)
def test_invalid_shapes_are_rejected(build_invalid: object) -> None:
    assert callable(build_invalid)
    with pytest.raises(BadValue):
        build_invalid()


@given(
    jobs=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    burst=st.floats(1.0, 20.0),
    weights=st.lists(st.floats(0.0, 5.0), max_size=24).filter(lambda weights: not weights or sum(weights) > 0.01),
    sizes=st.lists(st.tuples(st.integers(0, 16), st.floats(0.01, 10.0)), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_generated_jobs_are_valid_whatever_the_shape(
    jobs: int, seed: int, burst: float, weights: list[float], sizes: list[tuple[int, float]]
) -> None:
    shape = WorkloadShape(
        jobs,
        PoissonArrivals(6.0, tuple(weights), burst, 30.0),
        tuple(SizeClass(Demand(gpus=gpus), weight, Lognormal(600.0, 1.5), 0.5) for gpus, weight in sizes),
        tenants=(("x", 3.0), ("y", 1.0), ("never", 0.0)),
        users_per_tenant=2,
        time_limits=True,
    )
    trace = generate(shape, seed)
    assert trace == generate(shape, seed)
    assert len({job.id for job in trace.jobs}) == jobs
    submitted = [job.submitted for job in trace.jobs]
    assert submitted == sorted(submitted)
    assert submitted[0] >= 0.0
    assert {job.demand.gpus for job in trace.jobs} <= {gpus for gpus, _ in sizes}
    assert {job.user for job in trace.jobs} <= {"x-1", "x-2", "y-1", "y-2"}
    for job in trace.jobs:
        assert job.work is not None and 1.0 <= job.work <= 30 * 86400.0
        assert job.time_limit is not None and job.time_limit >= job.work


def test_each_size_and_tenant_has_its_share_to_within_one_job() -> None:
    durations = Lognormal(600.0, 1.0)
    shape = WorkloadShape(
        100,
        PoissonArrivals(10.0),
        tuple(SizeClass(Demand(gpus=gpus), weight, durations) for gpus, weight in ((1, 0.505), (2, 0.295), (4, 0.2))),
        tenants=(("x", 2.0), ("y", 1.0)),
    )
    trace = generate(shape, seed=4)
    sizes, tenants = Counter(job.demand.gpus for job in trace.jobs), Counter(job.tenant for job in trace.jobs)
    assert [abs(sizes[gpus] - share) <= 1 for gpus, share in ((1, 50.5), (2, 29.5), (4, 20))] == [True] * 3
    assert abs(tenants["x"] - 200 / 3) <= 1


def test_jobs_of_a_burst_arrive_within_its_seconds() -> None:
    shape = WorkloadShape(
        400, PoissonArrivals(1.0, burst=40.0, burst_seconds=2.0), (SizeClass(Demand(), 1.0, Lognormal(60.0, 0.1)),)
    )
    submitted = [job.submitted for job in generate(shape, seed=1).jobs]
    gaps = [later - sooner for sooner, later in pairwise(submitted)]
    assert sum(gap > 10.0 for gap in gaps) <= 10  # ten bursts of forty
    assert len(gaps) - sum(gap > 10.0 for gap in gaps) >= 389


def test_empirical_durations_keep_the_mean_of_what_they_were_fitted_to() -> None:
    work = [1.0, 2.0, 3.0, 50.0, 1000.0]
    trace = make_trace("t", [make_job(str(number), at=10.0 * number, work=each) for number, each in enumerate(work)])
    (size_class,) = fit_shape(trace).classes
    assert size_class.mean_gpu_seconds == pytest.approx(sum(work) / len(work), rel=0.01)


def test_a_load_of_jobs_without_gpus_cannot_be_set() -> None:
    shape = WorkloadShape(1, PoissonArrivals(1.0), (SizeClass(Demand(gpus=0), 1.0, Empirical((1.0,))),), name="cpu")
    with pytest.raises(BadValue, match="workload 'cpu' requests no GPUs: its load is 0 at any arrival rate"):
        shape.for_load(CLUSTER, 0.5)
    with pytest.raises(BadValue, match=r"load is 0, expected a number > 0 such as 0\.9"):
        everyday_workload(1).for_load(CLUSTER, 0)


def test_faster_gpus_count_as_more_capacity() -> None:
    shape = everyday_workload(10)
    slow, fast = make_cluster(8, types="A"), make_cluster(8, types="A", speeds={"A": 2.0})
    assert shape.load(slow) == pytest.approx(2 * shape.load(fast))
    assert shape.for_load(fast, 0.7).load(fast) == pytest.approx(0.7)


def test_a_trace_enlarged_by_a_whole_factor_has_exactly_as_many_copies() -> None:
    source = make_trace("t", [make_job("a", at=100.0), make_job("b", at=5000.0)])
    large = enlarge(source, 3, seed=1, jitter=50.0)
    assert sorted(job.id for job in large.jobs) == ["a", "a.2", "a.3", "b", "b.2", "b.3"]
    assert all(50.0 <= job.submitted <= 150.0 for job in large.jobs if job.id.startswith("a"))
    assert max(job.submitted for job in large.jobs) == 5000.0
    assert large.notes == ("enlarged 3 times with random seed 1: copies are shifted by up to 50 s",)
