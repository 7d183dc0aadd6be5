"""Charging what was measured, and between that what follows from the nearest point."""

import pytest

from refold.model import Allocation, Job, Plan, Share
from refold.perf.measurement import Measurement
from refold.plans.speeds import Speeds
from refold.simulator import RecordedSpeeds
from refold.simulator.measured_speeds import MeasuredSpeeds
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
    """Seconds of a step, as the performance model says."""
    return 1 / SPEEDS.with_plan(TRAINED, GPU, layout or (plan.gpus,), cpus, plan).steps_per_second


def charged(plan: Plan, *layout: int, cpus: float = 0.0) -> float:
    return CHARGE.step_seconds(TRAINED, GPU, layout or (plan.gpus,), cpus, plan)


@pytest.mark.parametrize("one", [one for one in TABLE if one.step_seconds], ids=lambda one: str(one.plan))
def test_what_was_measured_is_charged_exactly(one: Measurement) -> None:
    assert charged(one.plan, *one.gpus_on_node, cpus=one.cpus) == pytest.approx(one.step_seconds, rel=1e-12)


def test_a_job_takes_its_steps_as_it_asked_for_them_and_is_faster_or_slower_elsewhere() -> None:
    assert CHARGE.work(TRAINED) == 600 * 0.5
    on = Allocation((Share(0, tuple(range(8)), cpu_milli=64_000),))
    assert CHARGE.speed(TRAINED, on) == 1.0
    half = Allocation((Share(1, (0, 1, 2, 3)),), Plan(4))
    assert CHARGE.speed(TRAINED, half) == 0.5
    apart = Allocation((Share(0, (0, 1, 2, 3)), Share(1, (4, 5, 6, 7))), Plan(tensor=8))
    assert CHARGE.speed(TRAINED, apart) == pytest.approx(0.5 / 1.4)


@pytest.mark.parametrize(
    ("plan", "layout", "near", "there", "seconds"),
    [
        (Plan(1), (1,), Plan(2), (2,), 2.5),  # the nearest degree
        (Plan(16), (8, 8), Plan(8), (8,), 0.5),
        (Plan(tensor=4), (4,), Plan(tensor=8), (8,), 0.7),  # the same way before the same GPUs
        (Plan(4), (2, 2), Plan(4), (4,), 1.0),  # the same plan elsewhere
    ],
)
def test_between_measured_points_the_model_is_corrected_by_the_nearest(
    plan: Plan, layout: tuple[int, ...], near: Plan, there: tuple[int, ...], seconds: float
) -> None:
    expected = modelled(plan, *layout) * seconds / modelled(near, *there)
    assert charged(plan, *layout) == pytest.approx(expected)


def test_a_measured_point_is_charged_as_it_was_measured_even_beside_a_faster_one() -> None:
    table = (row(Plan(4), 1.0), row(Plan(4, accumulation=2), 0.8))
    charge = MeasuredSpeeds(table, SPEEDS, RecordedSpeeds(CLUSTER))
    assert [charge.step_seconds(TRAINED, GPU, (4,), 0.0, one.plan) for one in table] == [1.0, 0.8]


def test_an_offloading_plan_is_charged_by_the_cpus_it_has() -> None:
    plan = Plan(8, zero=2, offload=True)
    few = charged(plan, cpus=16.0)
    assert few == pytest.approx(2.0 * modelled(plan, cpus=16.0) / modelled(plan, cpus=64.0))
    assert few > 2.0


@pytest.mark.parametrize(
    "other",
    [
        make_job("a", gpus=8, work=70.0, workload="gpt2", steps=600),  # it may not be reshaped
        make_job("a", gpus=8, work=70.0, reshapable=True, workload="bert", steps=600),  # no row of its model
        make_job("a", gpus=8, work=70.0, reshapable=True, workload="gpt2", steps=600, batch=32),  # nor of its batch
        make_job("a", gpus=8, work=70.0, reshapable=True, workload="gpt2"),  # it does not count its steps
        make_job("a", gpus=8, work=70.0),
    ],
)
def test_other_jobs_are_charged_as_before(other: Job) -> None:
    recorded, half = RecordedSpeeds(CLUSTER), Allocation((Share(0, (0, 1, 2, 3)),))
    assert CHARGE.work(other) == 70.0
    assert CHARGE.speed(other, half) == recorded.speed(other, half)
