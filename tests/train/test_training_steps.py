"""A plan changes how a step is computed, and not what is learned."""

from __future__ import annotations

import pytest

from refold.errors import BadInput
from refold.model.plan import Plan, plan_from_text
from refold.perf.shapes import ModelShape

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'refold[train]'")

import torch

from refold.train import optimizers
from refold.train.models import Batch, random_batch
from refold.train.optimizers import ALIGNED, buckets_of
from refold.train.steps import StepTimes, Trainer, middle_of

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


def trained(shape: ModelShape, plan: Plan, steps: int = 2) -> tuple[list[float], torch.Tensor]:
    """Losses of the first steps, and the weights after them."""
    trainer, batch = Trainer(shape), random_batch(shape, 8, 16)
    return [trainer.step(batch, plan).loss for _ in range(steps)], weights_of(trainer)


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("shape", [GPT, MIXTURE], ids=lambda shape: shape.name)
def test_every_plan_learns_the_same(shape: ModelShape, text: str) -> None:
    losses, weights = trained(shape, Plan())
    others, same = trained(shape, plan_from_text(text))
    assert losses[1] < losses[0]
    assert others == pytest.approx(losses, rel=1e-5)
    assert torch.allclose(same, weights, atol=1e-6)


def test_weights_in_many_buckets_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(GPT, Plan())
    monkeypatch.setattr(optimizers, "BUCKET", 5000)
    assert len(buckets_of(Trainer(GPT).model)) > 3
    for plan in (Plan(), Plan(offload=True)):
        losses, weights = trained(GPT, plan)
        assert losses == pytest.approx(whole[0], rel=1e-5)
        assert torch.allclose(weights, whole[1], atol=1e-6)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # older CPUs: slow, and no fault of ours
def test_half_precision_learns_nearly_the_same_on_device_and_host() -> None:
    """As on a GPU: weights in bfloat16, and AdamW with a copy in float32."""
    exact, _ = trained(GPT, Plan())
    for plan in (Plan(), Plan(offload=True)):
        trainer, batch = Trainer(GPT, dtype=torch.bfloat16), random_batch(GPT, 8, 16)
        losses = [trainer.step(batch, plan).loss for _ in range(2)]
        assert {weights.dtype for weights in trainer.model.parameters()} == {torch.bfloat16}
        assert losses == pytest.approx(exact, rel=0.01)
        assert losses[1] < losses[0]


def test_one_plan_may_follow_another() -> None:
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    plans = [Plan(), Plan(offload=True), Plan(accumulation=2), Plan(offload=True, accumulation=2)]
    losses = [trainer.step(batch, plan).loss for plan in plans]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("plan", [Plan(accumulation=2), Plan(accumulation=2, offload=True)], ids=str)
def test_a_step_that_broke_off_leaves_nothing_behind(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained(GPT, plan)
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    losses = [trainer.step(batch, plan).loss]
    with monkeypatch.context() as broken:
        broken.setattr(trainer.model, "forward", runs_out_of_memory_at_second(trainer))
        with pytest.raises(torch.OutOfMemoryError):
            trainer.step(batch, plan)
    trainer.give_up_step()
    losses.append(trainer.step(batch, plan).loss)
    assert losses == pytest.approx(whole, rel=1e-6)


def runs_out_of_memory_at_second(trainer: Trainer) -> object:
    forward, calls = trainer.model.forward, []

    def broken(part: Batch, recompute: object) -> object:
        calls.append(part)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return forward(part, "none")

    return broken


def test_the_parts_of_a_step_are_its_whole() -> None:
    taken = Trainer(GPT).step(random_batch(GPT, 8, 16), Plan(accumulation=2, offload=True))
    assert min(taken.forward, taken.backward, taken.optimizer, taken.transfer) > 0
    assert taken.forward + taken.backward + taken.optimizer <= taken.whole


def test_the_middle_of_steps_is_taken_part_by_part() -> None:
    steps = [StepTimes(1, 2, 3, 4, 5, 6), StepTimes(3, 2, 1, 4, 9, 6), StepTimes(2, 9, 2, 0, 1, 0)]
    assert middle_of(steps) == StepTimes(2, 2, 2, 4, 5, 6)


def test_offload_uses_the_threads_it_was_given_and_no_more_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    Trainer(GPT).step(random_batch(GPT, 2, 16), Plan(offload=True), threads=3)
    assert asked == [3, before]


def test_every_parameter_begins_where_kernels_like_it() -> None:
    for bucket in buckets_of(Trainer(GPT).model):
        assert [slot.start % ALIGNED for slot in bucket.slots] == [0] * len(bucket.parameters)
        assert all(weights.is_contiguous() for weights in bucket.parameters)


def test_a_plan_for_more_than_one_device_is_refused() -> None:
    trainer, batch = Trainer(GPT), random_batch(GPT, 8, 16)
    with pytest.raises(BadInput, match="plan DP2 is for 2 GPUs"):
        trainer.step(batch, Plan(data=2))
    with pytest.raises(BadInput, match="a batch of 8 cannot be parted into 3"):
        trainer.step(batch, Plan(accumulation=3))
