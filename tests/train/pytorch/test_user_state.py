"""What a script registers, averages of weights and the scale of the loss survive changes and restarts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput
from refold.model import parse_plan
from refold.train import process_group
from refold.train.checkpoints import Checkpoints
from refold.train.process_group import Rendezvous
from refold.train.session import Session
from refold.train.user_state import UserState
from refold.train.weight_update import FIRST_SCALE, GROWTH_STEPS, LossScaler

BATCH = 8
DECAY = 0.9


class Losses:
    """Remembers all losses."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "last": torch.tensor(self.values[-1:], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["last"].tolist() == state["values"][-1:]
        self.values = [*state["values"]]


def begin(meeting: Path, steps: int, checkpoint: Path | None, **options: Any) -> Session:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    process_group.from_environment = lambda: Rendezvous(rank, ranks, meeting)  # type: ignore[assignment]
    model = SmallGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return refold.train.start(
        model,
        optimizer,
        **{"loss": next_token_loss, "data": RepeatedWords(), "batch": BATCH, **options},
        steps=steps,
        checkpoint=checkpoint,
    )


def train_with_objects(meeting: Path, steps: int, checkpoint: Path | None, plans: list[str]) -> list[Any]:
    session = begin(meeting, steps, checkpoint)
    losses, draws = Losses(), []
    own = torch.Generator().manual_seed(1), random.Random(1), np.random.default_rng(1)
    for name, item in zip(["losses", "torch", "python", "numpy"], [losses, *own], strict=True):
        session.register(name, item)
    for batch in session:
        draws.append((random.random(), float(np.random.random()), float(torch.rand(()))))
        draws.append((own[1].random(), float(own[2].random()), float(torch.rand((), generator=own[0]))))
        losses.values.append(round(session.step(batch).item(), 3))
        if plans and session.steps_done % 2 == 0:
            session.change(parse_plan(plans[session.steps_done // 2 % len(plans)]))
    return [losses.values, draws]


def test_objects_and_random_numbers_go_on_after_changes_and_restarts(tmp_path: Path) -> None:
    [expected] = run_ranks(1, train_with_objects, 8, None, [], form_group=False)
    plans = ["tp2", "dp2"]
    first = run_ranks(2, train_with_objects, 3, tmp_path, plans, form_group=False)[0]
    assert first[1] == expected[1][:6], "rank 0 draws the same"
    second = run_ranks(1, train_with_objects, 8, tmp_path, [], form_group=False)[0]
    assert second == [expected[0], expected[1][6:]]


def leave(meeting: Path, checkpoint: Path, rank_that_leaves: int) -> int | None:
    process_group.AGREEMENT_TIMEOUT /= 5  # type: ignore[assignment]
    session = begin(meeting, 100, checkpoint)
    for batch in session:
        session.step(batch)
        if session.steps_done == 3 and rank_that_leaves in (session.rank, -1):
            break
        if session.steps_done == 4:
            break
    return Checkpoints(checkpoint).latest()


def test_leaving_the_loop_writes_a_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(2, leave, tmp_path, -1, form_group=False) == [3, 3]


def fail(meeting: Path, checkpoint: Path) -> int | None:
    session = begin(meeting, 100, checkpoint)
    with pytest.raises(ZeroDivisionError):
        for batch in session:
            if session.steps_done == 2:
                session.step(batch[1 / 0])
            session.step(batch)
    return Checkpoints(checkpoint).latest()


def test_an_error_before_the_end_of_a_step_writes_none(tmp_path: Path) -> None:
    assert run_ranks(1, fail, tmp_path, form_group=False) == [None]


def average(meeting: Path, steps: int, checkpoint: Path | None, plans: list[str], dtype: Any) -> list[Any]:
    torch.set_default_dtype(dtype)
    session = begin(meeting, steps, checkpoint, ema=DECAY)
    for batch in session:
        session.step(batch)
        if plans and session.steps_done % 2 == 0:
            session.change(parse_plan(plans[session.steps_done // 2 % len(plans)]))
    own = {name: value.double().sum().item() for name, value in session.full_state_dict().items()}
    with session.averaged_weights():
        averaged = {name: value.double().sum().item() for name, value in session.full_state_dict().items()}
        loss = session.evaluate(RepeatedWords())
    assert own == {name: value.double().sum().item() for name, value in session.full_state_dict().items()}
    return [averaged, loss]


def average_in_a_plain_loop(steps: int) -> list[Any]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = SmallGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    from refold.train.samples import SampleOrder

    for step in range(steps):
        samples = [RepeatedWords()[index] for index in SampleOrder(200, BATCH, 0).of_step(step)]
        batch: Any = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
        next_token_loss(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
    everything: Any = tuple(torch.stack(parts) for parts in zip(*(RepeatedWords()[i] for i in range(200)), strict=True))
    loss = next_token_loss(averaged.module(everything[0]), everything).item()
    return [{name: value.sum().item() for name, value in averaged.module.state_dict().items()}, loss]


def test_averages_of_weights_are_those_of_pytorch_under_every_plan_and_after_a_restart(tmp_path: Path) -> None:
    [expected] = run_ranks(1, average_in_a_plain_loop, 9)
    plans = ["dp2 zero3 offload", "dp2 zero3", "tp2", "pp2 accumulate 4", "dp2 offload", "dp2"]
    run_ranks(2, average, 4, tmp_path, plans, torch.float64, form_group=False)
    for averaged, loss in run_ranks(2, average, 9, tmp_path, plans, torch.float64, form_group=False):
        assert averaged == pytest.approx(expected[0], rel=1e-9)
        assert loss == pytest.approx(expected[1], rel=1e-9)


def test_averages_of_weights_of_16_bits_have_32() -> None:
    [(expected, _)] = run_ranks(1, average, 6, None, [], torch.bfloat16, form_group=False)
    for averaged, _ in run_ranks(2, average, 6, None, ["dp2 zero3", "tp2"], torch.bfloat16, form_group=False):
        assert averaged == pytest.approx(expected, rel=0.02, abs=0.1)


def train_in_half_precision(meeting: Path, plans: list[str], overflow: bool) -> list[Any]:
    def loss(logits: Tensor, batch: Any) -> Tensor:
        mean = next_token_loss(logits.float(), batch)
        return mean * 1e30 if overflow and session.steps_done == 2 else mean

    session = begin(meeting, 6, None, loss=loss, autocast=torch.float16, clip=1.0)
    losses, scales = [], []
    for batch in session:
        losses.append(session.step(batch).item())
        scales.append(session._update.loss_scale)
        if plans and session.steps_done % 2 == 0:
            session.change(parse_plan(plans[session.steps_done // 2 % len(plans)]))
    return [losses, scales]


def test_in_float16_the_loss_is_scaled_and_steps_that_overflow_are_left_out() -> None:
    [(expected, scales)] = run_ranks(1, train_in_half_precision, [], False, form_group=False)
    assert scales == [FIRST_SCALE] * 6
    for losses, _ in run_ranks(2, train_in_half_precision, ["dp2 zero3", "tp2", "pp2"], False, form_group=False):
        assert losses == pytest.approx(expected, rel=2e-2)
    for losses, scales in run_ranks(2, train_in_half_precision, ["dp2 zero3", "tp2", "pp2"], True, form_group=False):
        assert scales == [FIRST_SCALE] * 2 + [FIRST_SCALE / 2] * 4
        assert losses == pytest.approx(losses, nan_ok=False)
        assert max(losses[3:]) < losses[0] + 0.5


def test_the_scale_of_the_loss_grows_after_many_good_steps() -> None:
    scaler = LossScaler()
    for _ in range(GROWTH_STEPS):
        scaler.note(is_finite=True)
    assert (scaler.scale, scaler.good_steps) == (2 * FIRST_SCALE, 0)
    for _ in range(100):
        scaler.note(is_finite=False)
    assert scaler.scale == 1.0


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"function": begin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "item", "message"),
    [
        ("counter", 3, "'counter' is a int, expected an object with state_dict and load_state_dict"),
        ("odd", Odd(), "the state of 'odd' cannot be part of a checkpoint"),
        ("taken", random.Random(), "'taken' is registered already"),
    ],
)
def test_objects_that_cannot_be_registered_are_an_error(name: str, item: Any, message: str) -> None:
    assert message in run_ranks(1, register, name, item)[0]


def register(name: str, item: Any) -> str:
    user = UserState(lambda _: None)
    user.register("taken", random.Random())
    try:
        user.register(name, item)
        user.encode(0)
    except BadInput as error:
        return str(error)
    return ""


def encode_and_wait() -> list[Any]:
    """Objects that are registered late, or never, keep their state."""
    first = UserState(lambda step: {"step": step})
    first.register("early", random.Random(1))
    first.register("late", random.Random(2))
    second = UserState(lambda _: None)
    position = second.decode(first.encode(7))
    second.register("early", random.Random())
    third = UserState(lambda _: None)
    third.decode(second.encode(8))
    late = random.Random()
    third.register("late", late)
    return [position, late.random() == random.Random(2).random(), UserState(lambda _: None).encode(0)]


def test_the_state_of_objects_that_are_not_registered_yet_is_kept() -> None:
    assert run_ranks(1, encode_and_wait) == [[{"step": 7}, True, None]]


@pytest.mark.parametrize("ema", [0.0, 1.0, -3, 7])
def test_a_decay_that_is_none_is_an_error(ema: float) -> None:
    make: Callable[..., Any] = refold.train.training_options.TrainingOptions
    with pytest.raises(BadInput, match="expected a number between 0 and 1"):
        make(batch=1, steps=1, ema=ema)
