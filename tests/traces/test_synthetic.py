"""Made workloads keep what they were asked to keep: mix, durations, load; and a seed is a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from refold.errors import BadValue
from refold.model import Demand, Job
from refold.model.units import DAY, HOUR
from refold.traces.demo import LOAD, demo_cluster, demo_trace
from refold.traces.formats import read_cluster, read_trace
from refold.traces.synthetic import (
    OFFICE_HOURS,
    Empirical,
    Lognormal,
    PoissonArrivals,
    SizeClass,
    WorkloadShape,
    calibrated,
    enlarge,
    everyday,
    generate,
)
from refold.traces.trace import Trace

CLUSTER = read_cluster("16x8:A100")


def _load(trace: Trace) -> float:
    return trace.gpu_seconds / (trace.span * CLUSTER.gpus)


def _quantiles(trace: Trace, demand: Demand) -> list[float]:
    work = [job.work for job in trace.jobs if job.demand == demand and job.work is not None]
    return [float(value) for value in np.quantile(work, [0.1, 0.25, 0.5, 0.75, 0.9])]


@pytest.mark.parametrize("jobs", [2, 10, 100, 4000])
@pytest.mark.parametrize("load", [0.5, 0.9, 1.3])
def test_the_load_is_what_was_asked_for_within_1_percent(load: float, jobs: int) -> None:
    shape = everyday(jobs).for_load(CLUSTER, load)
    assert shape.load(CLUSTER) == pytest.approx(load)
    for seed in range(5):
        assert _load(generate(shape, seed)) == pytest.approx(load, rel=0.01)


def test_where_the_drawn_jobs_cannot_have_a_load_it_is_said() -> None:
    seldom = (
        SizeClass(Demand(gpus=0), 1.0, Empirical((60.0,))),
        SizeClass(Demand(), 1e-9, Empirical((60.0,))),
    )
    cpu_only = generate(WorkloadShape(20, PoissonArrivals(10.0), seldom).for_load(CLUSTER, 0.9), seed=1)
    assert cpu_only.notes[1:] == ("the 20 jobs drawn ask for no GPU time: no load can be said of them",)
    alone = generate(everyday(1).for_load(CLUSTER, 0.9), seed=1)
    assert alone.notes[1:] == ("the 1 job drawn came at one moment: no load can be said of them",)


def test_a_learned_workload_has_the_sizes_durations_and_load_of_its_source() -> None:
    source = read_trace("demo")
    made = generate(replace(calibrated(source), jobs=3 * len(source.jobs)), seed=3)
    sizes, sizes_made = (Counter(job.demand for job in trace.jobs) for trace in (source, made))
    for demand, count in sizes.items():
        assert sizes_made[demand] == pytest.approx(3 * count, abs=1), "give or take one job"
        if count >= 100:
            assert _quantiles(made, demand) == pytest.approx(_quantiles(source, demand), rel=0.1)
    assert made.gpu_seconds == pytest.approx(3 * source.gpu_seconds, rel=0.02)
    assert made.span == pytest.approx(3 * source.span, rel=0.02)
    tenants, tenants_made = (Counter(job.tenant for job in trace.jobs) for trace in (source, made))
    assert {tenant: count * 3 for tenant, count in tenants.items()} == pytest.approx(dict(tenants_made), abs=1)


def test_arrivals_follow_the_rhythm_and_the_learned_rhythm_too() -> None:
    shape = replace(everyday(20000), arrivals=PoissonArrivals(100.0, OFFICE_HOURS))
    made = generate(shape, seed=5)
    again = generate(calibrated(made), seed=6)
    for trace in (made, again):
        hours = np.bincount([int(job.submitted // HOUR) % 24 for job in trace.jobs], minlength=24)
        expected = np.array(OFFICE_HOURS) / sum(OFFICE_HOURS)
        assert hours / hours.sum() == pytest.approx(expected, abs=0.01)


def test_bursts_bring_jobs_together() -> None:
    shape = replace(everyday(2000), arrivals=PoissonArrivals(60.0, burst=4.0, burst_seconds=0.5))
    learned = calibrated(generate(shape, seed=2)).arrivals
    assert learned.burst == pytest.approx(4.0, rel=0.1)


def test_habit_makes_a_users_jobs_alike_and_changes_no_duration() -> None:
    shape = WorkloadShape(
        1000,
        PoissonArrivals(10.0),
        (SizeClass(Demand(), 1.0, Lognormal(600, 1.5)),),
        users_per_tenant=20,
    )
    spread = {}
    for habit in (0.0, 0.9):
        jobs = generate(replace(shape, habit=habit), seed=4).jobs
        assert np.median([job.work or 0 for job in jobs]) == pytest.approx(600, rel=0.02)
        users: dict[str, list[float]] = {}
        for job in jobs:
            users.setdefault(job.user, []).append(float(np.log(job.work or 1)))
        spread[habit] = np.mean([np.std(logs) for logs in users.values()])
    assert spread[0.9] < 0.5 * spread[0.0]


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    shape = everyday(200)
    assert generate(shape, seed=7) == generate(shape, seed=7)
    assert generate(shape, seed=7).jobs != generate(shape, seed=8).jobs


def test_users_state_limits_that_hold() -> None:
    jobs = generate(everyday(500), seed=0).jobs
    assert all(job.time_limit is not None and job.work is not None and job.work <= job.time_limit for job in jobs)


def test_durations_keep_to_their_distribution() -> None:
    levels = np.array([0.1, 0.5, 0.8413447, 1.0])
    assert Lognormal(100, 1.0, longest=DAY).seconds(levels) == pytest.approx([27.76, 100, 271.8, DAY], rel=1e-3)
    assert Empirical((1.0, 3.0)).seconds(np.array([0.0, 0.25, 0.5, 0.75, 1.0])) == pytest.approx([1, 1, 2, 3, 3])


def test_an_enlarged_trace_repeats_jobs_with_other_ids_and_times() -> None:
    source = read_trace("demo")
    large = enlarge(source, 2.5, seed=1)
    assert len(large.jobs) == pytest.approx(2.5 * len(source.jobs), rel=0.03)
    assert len({job.id for job in large.jobs}) == len(large.jobs)
    assert set(source.jobs) <= set(large.jobs)
    assert large.gpu_seconds == pytest.approx(2.5 * source.gpu_seconds, rel=0.05)
    assert large.span <= source.span + source.jobs[0].submitted
    assert [job.submitted for job in large.jobs] == sorted(job.submitted for job in large.jobs)
    assert len(enlarge(source, 0.1, seed=1).jobs) == pytest.approx(150, abs=40)


def test_the_shipped_workload_is_the_generators() -> None:
    # Mixes, not bytes: another numpy may draw other numbers from the same seed.
    shipped, made = read_trace("demo"), demo_trace()
    assert Counter(job.demand for job in shipped.jobs) == Counter(job.demand for job in made.jobs)
    assert shipped.gpu_seconds == pytest.approx(made.gpu_seconds, rel=0.02)
    assert read_cluster("demo") == demo_cluster()
    assert shipped.gpu_seconds / (shipped.span * demo_cluster().gpus) == pytest.approx(LOAD, rel=0.03)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: everyday(0),
        lambda: everyday(1).for_load(CLUSTER, float("nan")),
        lambda: enlarge(read_trace("demo"), -1, 0),
        lambda: calibrated(Trace("none", (Job("a"),))),
        lambda: PoissonArrivals(0.0),
        lambda: PoissonArrivals(1.0, rhythm=(0.0, 0.0)),
        lambda: Lognormal(10.0, 1.0, longest=5.0),
        lambda: Empirical((2.0, 1.0)),
        lambda: SizeClass(Demand(), -1.0, Empirical((1.0,))),
    ],
)
def test_shapes_that_cannot_be(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(BadValue):
        wrong()
