"""Training steps: a plan changes how a step is computed, but not its result."""

from __future__ import annotations

import pytest
import torch

from refold.errors import BadInput
from refold.model.plan import Plan, parse_plan
from refold.planning.perf.shapes import ModelShape
from refold.train import optimizers
from refold.train.models import Batch, random_batch
from refold.train.optimizers import ALIGNMENT, make_buckets
from refold.train.steps import StepTimes, Trainer, median_times

GPT = ModelShape("gpt", layers=2, hidden=32, heads=4, vocabulary=100, positions=16)
MIXTURE = ModelShape(
    "mixture", layers=1, hidden=32, heads=4, gated=True, bias=False, vocabulary=100, experts=4, experts_per_token=2
)
PLANS = [
    "accumulate 2",
    "accumulate 4",
    "recompute selective",
    "recompute full",
    "offload",
    "offload accumulate 4 recompute full",
]


def weights_of(trainer: Trainer) -> torch.Tensor:
    return torch.cat([weights.detach().flatten() for weights in trainer.model.parameters()])


def train(shape: ModelShape, plan: Plan, steps: int = 2) -> tuple[list[float], torch.Tensor]:
    """Return the losses of the first steps and the weights after them."""
    trainer, batch = Trainer(shape), random_batch(shape, 8, 16)
    return [trainer.step(batch, plan).loss for _ in range(steps)], weights_of(trainer)


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("shape", [GPT, MIXTURE], ids=lambda shape: shape.name)
def test_every_plan_gives_the_same_losses_and_weights(shape: ModelShape, text: str) -> None:
    losses, weights = train(shape, Plan())
    plan_losses, plan_weights = train(shape, parse_plan(text))
    assert losses[1] < losses[0]
    assert plan_losses == pytest.approx(losses, rel=1e-5)
    assert torch.allclose(plan_weights, weights, atol=1e-6)


def test_the_number_of_buckets_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    expected_losses, expected_weights = train(GPT, Plan())
    monkeypatch.setattr(optimizers, "BUCKET_PARAMETERS", 5000)
    assert len(make_buckets(Trainer(GPT).model)) > 3
    for plan in (Plan(), Plan(offload=True)):
        losses, weights = train(GPT, plan)
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        assert torch.allclose(weights, expected_weights, atol=1e-6)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a warning of oneDNN on older CPUs
def test_bfloat16_gives_nearly_the_same_losses_on_device_and_host() -> None:
    """Weights in bfloat16 and master weights in float32, as on a GPU."""
    exact, _ = train(GPT, Plan())
    for plan in (Plan(), Plan(offload=True)):
        trainer, batch = Trainer(GPT, dtype=torch.bfloat16), random_batch(GPT, 8, 16)
        losses = [trainer.step(batch, plan).loss for _ in range(2)]
        assert {weights.dtype for weights in trainer.model.parameters()} == {torch.bfloat16}
        assert losses == pytest.approx(exact, rel=0.01)
        assert losses[1] < losses[0]


def test_a_trainer_can_switch_plans() -> None:
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    plans = [Plan(), Plan(offload=True), Plan(accumulation=2), Plan(offload=True, accumulation=2)]
    losses = [trainer.step(batch, plan).loss for plan in plans]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("plan", [Plan(accumulation=2), Plan(accumulation=2, offload=True)], ids=str)
def test_an_aborted_step_leaves_no_gradients_behind(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = train(GPT, plan)
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    losses = [trainer.step(batch, plan).loss]
    with monkeypatch.context() as patch:
        patch.setattr(trainer.model, "forward", out_of_memory_at_second_call(trainer))
        with pytest.raises(torch.OutOfMemoryError):
            trainer.step(batch, plan)
    trainer.abort_step()
    losses.append(trainer.step(batch, plan).loss)
    assert losses == pytest.approx(expected, rel=1e-6)


def out_of_memory_at_second_call(trainer: Trainer) -> object:
    forward, calls = trainer.model.forward, []

    def failing_forward(micro_batch: Batch, recompute: object) -> object:
        calls.append(micro_batch)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return forward(micro_batch, "none")

    return failing_forward


def test_the_phases_of_a_step_do_not_exceed_its_total() -> None:
    times = Trainer(GPT).step(random_batch(GPT, 8, 16), Plan(accumulation=2, offload=True))
    assert min(times.forward, times.backward, times.optimizer, times.transfer) > 0
    assert times.forward + times.backward + times.optimizer <= times.total


def test_median_times_are_computed_per_field() -> None:
    steps = [StepTimes(1, 2, 3, 4, 5, 6), StepTimes(3, 2, 1, 4, 9, 6), StepTimes(2, 9, 2, 0, 1, 0)]
    assert median_times(steps) == StepTimes(2, 2, 2, 4, 5, 6)


def test_offload_uses_the_given_number_of_threads_and_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    set_threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_threads.append)
    Trainer(GPT).step(random_batch(GPT, 2, 16), Plan(offload=True), threads=3)
    assert set_threads == [3, before]


def test_every_parameter_is_aligned_and_contiguous() -> None:
    for bucket in make_buckets(Trainer(GPT).model):
        assert [slice_.start % ALIGNMENT for slice_ in bucket.slices] == [0] * len(bucket.parameters)
        assert all(weights.is_contiguous() for weights in bucket.parameters)


def test_a_plan_for_several_devices_or_unequal_micro_batches_is_rejected() -> None:
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    with pytest.raises(BadInput, match="plan DP2 is for 2 GPUs"):
        trainer.step(batch, Plan(data=2))
    with pytest.raises(BadInput, match="a batch of 8 cannot be split into 3"):
        trainer.step(batch, Plan(accumulation=3))
