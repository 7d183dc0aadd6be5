"""What a whole training takes."""

import msgspec
import pytest

from refold.errors import BadValue
from refold.model.plan import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf.estimation import estimate
from refold.planning.perf.hardware import build_machines
from refold.planning.perf.training_cost import Training, compute_training_cost, default_tokens, explain_cost
from refold.planning.perf.training_setup import TrainingSetup, Tuning

SETUP = TrainingSetup(
    find_model("llama-3.1-8b"), build_machines(find_gpu("H100-80GB"), 16), find_engine("megatron-core"), 512, 8192
)
BEST = msgspec.structs.replace(estimate(SETUP, Plan(16, zero=1, accumulation=32)), step_seconds=10.0)


def test_time_money_and_energy_without_failures() -> None:
    cost = compute_training_cost(SETUP, BEST, Training(512 * 8192 * 99.5, price=2.0))
    assert (cost.seconds, cost.goodput, cost.interval_seconds) == (1000.0, 1.0, 0.0)  # the last step is a whole one
    assert cost.dollars == pytest.approx(1000 / 3600 * 16 * 2.0)
    assert cost.kilowatt_hours == pytest.approx(1000 / 3600 * 16 * 0.7)


def test_the_checkpoint_interval_loses_the_least() -> None:
    cost = compute_training_cost(SETUP, BEST, Training(1e12, mtbf_seconds=10_800.0))
    checkpoint = 14 * 8_030_261_248 / (2 * 2e9)  # two nodes write it

    def lost(interval: float) -> float:
        each = interval + checkpoint
        return checkpoint / each + (each / 2 + 300) / 10_800

    assert cost.interval_seconds == pytest.approx((2 * checkpoint * 10_800) ** 0.5)
    assert cost.goodput == pytest.approx(1 - lost(cost.interval_seconds))
    assert all(lost(cost.interval_seconds) <= lost(factor * cost.interval_seconds) + 1e-3 for factor in (0.5, 0.9, 2.0))
    lines = {line.name: line.value for line in explain_cost(SETUP, BEST, Training(1e12, mtbf_seconds=10_800.0)).lines}
    assert (lines["time"], lines["goodput"]) == (cost.seconds, cost.goodput)


def test_the_default_length_of_a_training() -> None:
    assert default_tokens(SETUP) == pytest.approx(20 * 8.03e9, rel=0.01)
    assert default_tokens(msgspec.structs.replace(SETUP, tuning=Tuning(16))) == 1e8


def test_a_job_that_fails_too_often_never_ends() -> None:
    with pytest.raises(BadValue, match=r"a failure every 60 s the training never ends: a checkpoint takes 28 s"):
        compute_training_cost(SETUP, BEST, Training(1e12, mtbf_seconds=60.0))
    with pytest.raises(BadValue, match="tokens is 0"):
        Training(0)
