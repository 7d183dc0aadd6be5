"""The predicted throughput of running jobs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from refold.core import Header, JobSubmitted, Scheduler
from refold.model import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import TrainingSetup, build_machines
from refold.planning.plans import best_plans
from refold.server.job_queries import PredictedSpeeds
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job


def predict(workload: str, gpu_type: str = "A100-80GB", plan: Plan | None = None) -> float | None:
    cluster = make_cluster(8, types=gpu_type)
    scheduler = Scheduler(cluster, make_policy("fifo"))
    job = make_job("a", gpus=8, workload=workload, plan=plan or Plan(data=8))
    scheduler.step(0.0, [JobSubmitted(job)])
    state = SimpleNamespace(view=scheduler.view, header=Header(cluster, "fifo"))
    return PredictedSpeeds(state).samples_per_second("a")  # type: ignore[arg-type]


def test_it_is_that_of_the_planner() -> None:
    model = find_model("gpt2-medium")
    setup = TrainingSetup(
        model, build_machines(find_gpu("A100-80GB"), 8), find_engine("megatron"), model.batch, model.sequence
    )
    best = best_plans(setup).best[0]
    assert predict("gpt2-medium", plan=best.plan) == pytest.approx(best.samples_per_second, rel=0.02)


@pytest.mark.parametrize(("workload", "gpu_type"), [("", "A100-80GB"), ("own-model", "A100-80GB")])
def test_nothing_is_predicted_for_unknown_models(workload: str, gpu_type: str) -> None:
    assert predict(workload, gpu_type) is None
