"""Speeds from measured step times, with interpolation from the nearest measured point."""

import pytest

from refold.model import Allocation, Job, Plan, Share
from refold.planning.perf.measurement import Measurement
from refold.planning.plans.speeds import Speeds
from refold.simulator import RecordedSpeeds
from refold.simulator.costs import MeasuredSpeeds
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
CLUSTER = make_cluster(8, 8, types=GPU, cpus=96, memory_gib=1600)
SPEEDS = Speeds(CLUSTER)


def row(plan: Plan, seconds: float | None, *layout: int, cpus: float = 0.0, model: str = "gpt2-xl") -> Measurement:
    status = "ok" if seconds is not None else "oom"
    return Measurement(model, GPU, layout or (plan.gpus,), plan, 16, 1024, cpus, seconds, status=status)  # type: ignore[arg-type]


TABLE = (
    row(Plan(8), 0.5),
    row(Plan(4), 1.0),
    row(Plan(2), 2.5),
    row(Plan(tensor=8), 0.7),
    row(Plan(tensor=8), 1.4, 4, 4),
    row(Plan(8, zero=2, offload=True), 2.0, cpus=64.0),
    row(Plan(2, 4), None),
)
CHARGE = MeasuredSpeeds(TABLE, SPEEDS, RecordedSpeeds(CLUSTER))
TRAINED = make_job("a", gpus=8, cpus=64, work=77.0, reshapable=True, workload="gpt2", plan=Plan(8), steps=600)


def modelled(plan: Plan, *layout: int, cpus: float = 0.0) -> float:
    """Return the step time of the performance model, in seconds."""
    return 1 / SPEEDS.with_plan(TRAINED, GPU, layout or (plan.gpus,), cpus, plan).steps_per_second


def charged(plan: Plan, *layout: int, cpus: float = 0.0) -> float:
    return CHARGE.step_seconds(TRAINED, GPU, layout or (plan.gpus,), cpus, plan)


@pytest.mark.parametrize("point", [point for point in TABLE if point.step_seconds], ids=lambda point: str(point.plan))
def test_a_measured_point_gives_the_measured_step_time(point: Measurement) -> None:
    assert charged(point.plan, *point.gpus_on_node, cpus=point.cpus) == pytest.approx(point.step_seconds, rel=1e-12)


def test_speed_is_relative_to_the_requested_resources() -> None:
    assert CHARGE.work(TRAINED) == 600 * 0.5
    on = Allocation((Share(0, tuple(range(8)), cpu_milli=64_000),))
    assert CHARGE.speed(TRAINED, on) == 1.0
    half = Allocation((Share(1, (0, 1, 2, 3)),), Plan(4))
    assert CHARGE.speed(TRAINED, half) == 0.5
    spread = Allocation((Share(0, (0, 1, 2, 3)), Share(1, (4, 5, 6, 7))), Plan(tensor=8))
    assert CHARGE.speed(TRAINED, spread) == pytest.approx(0.5 / 1.4)


@pytest.mark.parametrize(
    ("plan", "layout", "nearest", "nearest_layout", "seconds"),
    [
        (Plan(1), (1,), Plan(2), (2,), 2.5),  # the nearest degree
        (Plan(16), (8, 8), Plan(8), (8,), 0.5),
        (Plan(tensor=4), (4,), Plan(tensor=8), (8,), 0.7),  # the same method is nearer than the same GPUs
        (Plan(4), (2, 2), Plan(4), (4,), 1.0),  # the same plan elsewhere
    ],
)
def test_other_points_are_modelled_and_corrected_by_the_nearest_measured_point(
    plan: Plan, layout: tuple[int, ...], nearest: Plan, nearest_layout: tuple[int, ...], seconds: float
) -> None:
    expected = modelled(plan, *layout) * seconds / modelled(nearest, *nearest_layout)
    assert charged(plan, *layout) == pytest.approx(expected)


def test_a_measured_point_is_exact_even_next_to_a_faster_one() -> None:
    table = (row(Plan(4), 1.0), row(Plan(4, accumulation=2), 0.8))
    charge = MeasuredSpeeds(table, SPEEDS, RecordedSpeeds(CLUSTER))
    assert [charge.step_seconds(TRAINED, GPU, (4,), 0.0, measured.plan) for measured in table] == [1.0, 0.8]


def test_the_step_time_of_an_offloading_plan_depends_on_its_cpus() -> None:
    plan = Plan(8, zero=2, offload=True)
    with_few_cpus = charged(plan, cpus=16.0)
    assert with_few_cpus == pytest.approx(2.0 * modelled(plan, cpus=16.0) / modelled(plan, cpus=64.0))
    assert with_few_cpus > 2.0


@pytest.mark.parametrize(
    "other",
    [
        make_job("a", gpus=8, work=70.0, workload="gpt2", steps=600),  # not reshapable
        make_job("a", gpus=8, work=70.0, reshapable=True, workload="bert", steps=600),  # no measurement of its model
        make_job(
            "a", gpus=8, work=70.0, reshapable=True, workload="gpt2", steps=600, batch=32
        ),  # nor with its batch size
        make_job("a", gpus=8, work=70.0, reshapable=True, workload="gpt2"),  # without steps
        make_job("a", gpus=8, work=70.0),
    ],
)
def test_other_jobs_use_the_fallback(other: Job) -> None:
    recorded, half = RecordedSpeeds(CLUSTER), Allocation((Share(0, (0, 1, 2, 3)),))
    assert CHARGE.work(other) == 70.0
    assert CHARGE.speed(other, half) == recorded.speed(other, half)
