"""A training that changes its shape gives the losses and weights of one that does not."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch.utils.data import default_collate
from torch_ranks import run_ranks

from refold.errors import BadInput
from refold.model import Plan, parse_plan
from refold.train import process_group
from refold.train.local_model import SplittableModel
from refold.train.process_group import Rendezvous
from refold.train.reshaper import Reshaper
from refold.train.samples import SampleOrder
from refold.train.session import Session
from refold.train.training_options import TrainingOptions
from refold.train.training_state import TrainingState

BATCH = 8
SEED = 3
STEPS = 3
"""Steps per plan."""

Result = tuple[list[float], dict[str, Any]]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A training in tests."""

    tied: bool = False
    dropout: float = 0.0
    dtype: str = "float64"
    clip: float | None = None
    shard_group: int | None = None
    optimizer: str = "AdamW"
    prepared: bool = False
    """Changes are prepared one step before."""


def make_session(meeting: Path, first: Plan, steps: int, setup: Setup, *, with_data: bool = True) -> Session:
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, setup.dtype))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)  # the initial values of rank 0 count
    model = SmallGpt(tied=setup.tied, dropout=setup.dropout)
    optimizer = getattr(torch.optim, setup.optimizer)(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    state = TrainingState(model, optimizer, SplittableModel(model))
    options = TrainingOptions(batch=BATCH, steps=steps, clip=setup.clip, scheduler=scheduler, seed=SEED)
    reshaper = Reshaper(state, BATCH, process_group.choose_device(), setup.shard_group)
    session = Session(reshaper, next_token_loss, options.batches_of(RepeatedWords()) if with_data else None, options)
    session.begin(first, Rendezvous(rank, ranks, meeting))
    return session


def train(meeting: Path, plans: Sequence[Plan], setup: Setup) -> Result:
    """Train a few steps with each plan; return all losses and the final weights."""
    session = make_session(meeting, plans[0], STEPS * len(plans), setup)
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        shape, steps = divmod(len(losses), STEPS)
        if setup.prepared and steps == STEPS - 1 and shape + 1 < len(plans):
            session.prepare(plans[shape + 1])
        if steps == 0 and shape < len(plans):
            session.change(plans[shape])
    return losses, {name: weights.tolist() for name, weights in session.full_state_dict().items()}


def train_on(ranks: int, plans: Sequence[str], setup: Setup) -> Result:
    first, *others = run_ranks(ranks, train, [parse_plan(plan) for plan in plans], setup, form_group=False)
    assert all(other == first for other in others)
    result: Result = first
    return result


def assert_close(result: Result, expected: Result, tolerance: float, weight_tolerance: float) -> None:
    losses, weights = result
    assert losses == pytest.approx(expected[0], rel=tolerance, abs=0)
    assert weights.keys() == expected[1].keys()
    for name, values in expected[1].items():
        torch.testing.assert_close(
            torch.tensor(weights[name]), torch.tensor(values), rtol=0, atol=weight_tolerance, msg=name
        )


TWO_RANKS = [
    "dp2",
    "tp2",
    "pp2 accumulate 2",
    "dp2 zero3",
    "tp2 recompute full accumulate 4",
    "dp2 zero1 accumulate 2 recompute selective",
    "pp2 interleave 2 accumulate 4",
    "dp2 zero2 offload",
    "dp2 zero2 accumulate 4",
]
FOUR_RANKS = [
    "dp4",
    "dp2 tp2",
    "pp2 dp2 accumulate 2",
    "dp2 tp2 zero3",
    "pp2 tp2 accumulate 4",
    "pp2 dp2 zero2 accumulate 2",
    "tp4",
    "pp4 accumulate 4 recompute full",
    "dp4 zero1 offload",
    "dp4 zero3 replicate 2",
]


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(tied=True, optimizer="SGD"),
        Setup(shard_group=2, tied=True, clip=0.5),
        Setup(shard_group=2, tied=True, prepared=True),
    ],
)
@pytest.mark.parametrize(("ranks", "plans"), [(2, TWO_RANKS), (4, FOUR_RANKS)])
def test_a_training_in_many_shapes_equals_one_in_one_shape(ranks: int, plans: list[str], setup: Setup) -> None:
    expected = train_on(1, ["dp1"] * len(plans), setup)
    assert len({*expected[0]}) == len(expected[0])
    assert_close(train_on(ranks, plans, setup), expected, 1e-10, 1e-9)


def test_a_change_to_another_plan_than_the_prepared_one_is_made_all_the_same() -> None:
    expected = train_on(1, ["dp1"] * 2, Setup())
    first, second = run_ranks(2, prepare_one_plan_and_take_another, form_group=False)
    assert first == second == pytest.approx(expected[0], rel=1e-10)


def prepare_one_plan_and_take_another(meeting: Path) -> list[float]:
    session = make_session(meeting, Plan(data=2), 2 * STEPS, Setup())
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        if len(losses) == STEPS:
            session.prepare(Plan(tensor=2))
            session.change(Plan(data=2, zero=3))
        if len(losses) == STEPS + 1:
            torch.distributed.new_group()  # the new process group can form further ones
            session.prepare(Plan(pipeline=2, accumulation=2))
            session.change(Plan(pipeline=2, accumulation=2))
    return losses


def test_in_single_precision_losses_differ_by_rounding_only() -> None:
    setup = Setup(dtype="float32")
    plans = random.Random(4).sample(TWO_RANKS, 6)
    expected = train_on(1, ["dp1"] * len(plans), setup)
    assert_close(train_on(2, plans, setup), expected, 1e-5, 1e-2)


def test_one_rank_changes_accumulation_recomputation_and_offloading() -> None:
    plans = ["dp1", "accumulate 4", "recompute full", "recompute selective offload", "offload accumulate 2", "dp1"]
    expected = train_on(1, ["dp1"] * len(plans), Setup())
    assert_close(train_on(1, plans, Setup()), expected, 1e-12, 1e-11)


def test_dropout_is_the_same_when_a_step_is_repeated_and_differs_between_steps() -> None:
    setup = Setup(dropout=0.5)
    first, again = (train_on(2, ["dp2", "dp2 zero3"], setup) for _ in range(2))
    assert first == again
    assert first[0] != train_on(2, ["dp2", "dp2 zero3"], Setup())[0]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("tp3", "cannot split"),
        ("pp8 accumulate 8", "the model has 4 layers, which cannot be split into 8 pipeline stages"),
        ("dp2 accumulate 3", "a batch of 8 samples cannot be divided into 6 micro-batches"),
        ("pp4 accumulate 2", "4 pipeline stages need at least as many micro-batches, the plan has 2"),
        ("dp4", "DP4 needs 4 ranks, the session has 2"),
        ("tp2 sp", "does not support sequence parallelism"),
    ],
)
def test_a_plan_that_does_not_fit_is_an_error_and_changes_nothing(plan: str, message: str) -> None:
    [(error, *result), _] = run_ranks(2, change_to_a_plan_that_does_not_fit, plan, form_group=False)
    assert message in error
    assert result == [Plan(data=2), STEPS]


def change_to_a_plan_that_does_not_fit(meeting: Path, plan: str) -> tuple[str, Plan, int]:
    session = make_session(meeting, Plan(data=2), STEPS, Setup())
    error = ""
    for batch in session:
        session.step(batch)
        if session.steps_done == 1:
            with pytest.raises(BadInput) as caught:
                session.change(parse_plan(plan))
            error = str(caught.value)
    return error, session.plan, session.steps_done


def test_a_plan_is_not_changed_between_a_batch_and_its_step() -> None:
    with pytest.raises(AssertionError, match=r"change the plan after session\.step\(batch\)"):
        run_ranks(1, change_before_step, form_group=False)


def change_before_step(meeting: Path) -> None:
    session = make_session(meeting, Plan(), 2, Setup())
    for _ in session:
        session.change(Plan(accumulation=2))


def test_a_loop_may_read_its_own_batches() -> None:
    [[losses, _]] = run_ranks(1, train, [Plan()], Setup(), form_group=False)
    assert run_ranks(2, train_with_own_batches, form_group=False) == [pytest.approx(losses, rel=1e-10)] * 2


def train_with_own_batches(meeting: Path) -> list[float]:
    session = make_session(meeting, Plan(data=2), STEPS, Setup(), with_data=False)
    with pytest.raises(BadInput, match="batches of your own"):
        next(iter(session))
    order, data = SampleOrder(len(RepeatedWords()), BATCH, SEED), RepeatedWords()
    losses: list[float] = []
    while session.steps_done < STEPS:
        samples = order.of_step(session.steps_done, session.data_rank, session.plan.data)
        losses.append(session.step(default_collate([data[sample] for sample in samples])).item())
    return losses


def test_a_loop_that_forgets_to_step_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"call session\.step\(batch\) once for every batch"):
        run_ranks(1, iterate_without_step, form_group=False)


def iterate_without_step(meeting: Path) -> None:
    for _ in make_session(meeting, Plan(), 2, Setup()):
        pass
