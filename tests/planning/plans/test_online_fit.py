"""Speeds that jobs report correct the parameters of the performance model, once several plans are measured."""

from __future__ import annotations

import pytest

from refold.model import MeasuredShape, Plan
from refold.planning.catalogue import known_model
from refold.planning.perf import CorrectedForm, Fitted
from refold.planning.plans import Knowledge, Speeds
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
CLUSTER = make_cluster(8, types=GPU)
JOB = make_job("a", gpus=4, workload="bert-large", batch=64, reshapable=True)
MEASURED = [Plan(data=4), Plan(data=2, tensor=2), Plan(tensor=4), Plan(data=2, pipeline=2, accumulation=8)]
UNSEEN = [Plan(), Plan(tensor=2), Plan(data=2), Plan(data=8), Plan(data=2, tensor=4), Plan(data=4, tensor=2)]


def actual_speeds(**factors: float) -> Speeds:
    """Return speeds of machines that differ from the model by these factors."""
    values = {parameter.name: factors.get(parameter.name, 1.0) for parameter in CorrectedForm.default_parameters}
    model = known_model(JOB.workload)
    assert model is not None
    return Speeds(CLUSTER, Knowledge(fits=(Fitted("corrected", model.name, GPU, values, {}, (), (), ()),)))


def speed(speeds: Speeds, plan: Plan) -> float:
    return speeds.with_plan(JOB, GPU, (plan.gpus,), 0.0, plan).steps_per_second


def learned(actual: Speeds, plans: list[Plan]) -> Speeds:
    """Return speeds that have learned those of some plans."""
    speeds = Speeds(CLUSTER)
    shapes = {MeasuredShape("bert-large", 64, 0, GPU, (plan.gpus,), plan): speed(actual, plan) for plan in plans}
    assert speeds.learn(shapes)
    return speeds


def largest_error(actual: Speeds, speeds: Speeds) -> float:
    return max(abs(speed(speeds, plan) / speed(actual, plan) - 1) for plan in UNSEEN)


def test_slow_links_are_recognised_from_a_few_plans() -> None:
    actual = actual_speeds(compute=1.4, link=5.0)
    assert largest_error(actual, Speeds(CLUSTER)) > 1.0
    assert largest_error(actual, learned(actual, MEASURED[:2])) > 0.4, "a common factor"
    assert largest_error(actual, learned(actual, MEASURED[:3])) < 0.02
    assert largest_error(actual, learned(actual, MEASURED)) < 0.02


def test_a_fit_follows_speeds_that_change() -> None:
    before, after = actual_speeds(compute=1.4), actual_speeds(compute=2.5)
    speeds = learned(before, MEASURED)
    shapes = {MeasuredShape("bert-large", 64, 0, GPU, (plan.gpus,), plan): speed(after, plan) for plan in MEASURED}
    assert speeds.learn(shapes)
    assert largest_error(after, speeds) < 0.05


@pytest.mark.parametrize(
    ("failed", "degree"),
    [
        (Plan(data=2, tensor=2), "tensor"),
        (Plan(pipeline=4, accumulation=8), "pipeline"),
        (Plan(tensor=2, pipeline=2, accumulation=8), "pipeline"),
    ],
    ids=str,
)
def test_plans_that_split_a_model_as_it_cannot_be_split_are_not_chosen(failed: Plan, degree: str) -> None:
    speeds = Speeds(CLUSTER)

    def largest_degree() -> int:
        best = speeds.fastest(JOB, GPU, (4,), 0.0)
        assert best is not None
        plans = [best.plan, *speeds.plans_to_profile(JOB, GPU, (4,), 0.0)]
        return max(int(getattr(plan, degree)) for plan in plans)

    assert largest_degree() > 1
    assert speeds.learn({MeasuredShape("bert-large", 64, 0, GPU, (4,), failed): 0.0})
    assert largest_degree() == 1


def test_the_next_best_plan_is_chosen_if_a_job_cannot_use_the_best() -> None:
    speeds = Speeds(CLUSTER)
    best = speeds.fastest(JOB, GPU, (4,), 0.0)
    assert best is not None
    shape = MeasuredShape("bert-large", 64, 0, GPU, (4,), best.plan)
    assert speeds.learn({shape: 0.0})
    assert not speeds.learn({shape: 0.0})
    other = speeds.fastest(JOB, GPU, (4,), 0.0)
    assert other is not None
    assert other.plan != best.plan
    assert other.steps_per_second <= best.steps_per_second
