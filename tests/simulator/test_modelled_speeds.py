"""Speeds from the performance model."""

from __future__ import annotations

import pytest

from refold.errors import BadInput
from refold.model import Allocation, Plan, Share
from refold.planning.plans.speeds import Speeds
from refold.simulator import RecordedSpeeds
from refold.simulator.costs import ModelledSpeeds
from refold.testing import make_cluster, make_job

CLUSTER = make_cluster(8, 8, types="A800-80GB")
SPEEDS = Speeds(CLUSTER)
CHARGE = ModelledSpeeds(SPEEDS, RecordedSpeeds(CLUSTER))
TRAINED = make_job("a", gpus=8, work=100.0, reshapable=True, workload="gpt2", plan=Plan(8), steps=500)


def on(gpus: int, plan: Plan | None = None) -> Allocation:
    return Allocation((Share(0, tuple(range(gpus))),), plan)


def test_on_the_requested_resources_the_run_time_is_as_recorded() -> None:
    assert CHARGE.work(TRAINED) == 100.0
    assert CHARGE.speed(TRAINED, on(8)) == pytest.approx(1.0)


def test_on_other_resources_the_speed_is_that_of_the_model() -> None:
    requested = SPEEDS.requested_speed(TRAINED).steps_per_second
    for gpus, plan in ((4, Plan(4)), (8, Plan(4, 2)), (8, Plan(8, zero=2, offload=True))):
        here = SPEEDS.with_plan(TRAINED, "A800-80GB", (gpus,), 0.0, plan).steps_per_second
        assert here != pytest.approx(requested)
        assert CHARGE.speed(TRAINED, on(gpus, plan)) == pytest.approx(here / requested)


def test_without_a_recorded_run_time_the_steps_determine_it() -> None:
    unrecorded = make_job("a", gpus=8, work=None, reshapable=True, workload="gpt2", plan=Plan(8), steps=500)
    assert CHARGE.work(unrecorded) == pytest.approx(500 / SPEEDS.requested_speed(TRAINED).steps_per_second)
    with pytest.raises(BadInput, match="'b' has neither a duration nor a number of steps"):
        CHARGE.work(make_job("b", gpus=8, work=None, reshapable=True, workload="gpt2"))


@pytest.mark.parametrize("extra", [{"reshapable": False, "workload": "gpt2"}, {"reshapable": True, "workload": "own"}])
def test_other_jobs_use_the_fallback(extra: dict[str, object]) -> None:
    job = make_job("a", gpus=8, work=70.0, **extra)  # type: ignore[arg-type]
    recorded = RecordedSpeeds(CLUSTER)
    assert CHARGE.work(job) == 70.0
    assert CHARGE.speed(job, on(4)) == recorded.speed(job, on(4))
