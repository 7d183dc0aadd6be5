"""The loss of a batch whose samples have different numbers of tokens does not depend on the plan."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import SEQUENCE, VOCABULARY, SmallGpt
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput
from refold.model import Plan, parse_plan
from refold.train.local_model import SplittableModel
from refold.train.losses import IGNORED_LABEL, Loss, LossRecorder, has_uneven_labels
from refold.train.process_group import Rendezvous
from refold.train.reshaper import Reshaper
from refold.train.samples import SampleOrder
from refold.train.session import Session
from refold.train.training_options import TrainingOptions
from refold.train.training_state import TrainingState

STEPS = 2
"""Steps per plan."""


class PaddedWords:
    """Sequences of very different lengths; the first one has no label at all."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        labels = tokens.roll(-1)
        labels[index % SEQUENCE :] = IGNORED_LABEL
        return {"input_ids": tokens, "labels": labels}


def sum_and_count(logits: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), (labels != IGNORED_LABEL).sum()


def mean(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def train(
    meeting: Path, plans: list[Plan], loss: Loss, clip: float | None = None
) -> tuple[list[float], dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = SmallGpt(tied=True)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.5), SplittableModel(model))
    options = TrainingOptions(batch=8, steps=STEPS * len(plans), clip=clip)
    session = Session(Reshaper(state, 8, torch.device("cpu")), loss, options.batches_of(PaddedWords()), options)
    session.begin(plans[0], Rendezvous(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), meeting))
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        shape, steps = divmod(len(losses), STEPS)
        if steps == 0 and shape < len(plans):
            session.change(plans[shape])
    return losses, {name: value.tolist() for name, value in session.full_state_dict().items()}


def reference(steps: int) -> list[float]:
    """Return the losses of a plain loop of PyTorch over the same batches."""
    torch.manual_seed(0)
    model = SmallGpt(tied=True).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    order = SampleOrder(len(PaddedWords()), 8)
    losses = []
    for step in range(steps):
        samples = [PaddedWords()[index] for index in order.of_step(step)]
        batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        loss = mean(model(batch["input_ids"]), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


PLANS = ["dp2", "dp2 zero3 accumulate 4", "tp2 accumulate 2", "pp2 accumulate 4", "pp2 interleave 2 accumulate 4"]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_sum_and_a_count_give_the_same_losses_and_weights_under_every_plan(clip: float | None) -> None:
    plans = list(map(parse_plan, PLANS))
    [(expected, expected_weights)] = run_ranks(1, train, [Plan()] * len(plans), sum_and_count, clip, form_group=False)
    for losses, weights in run_ranks(2, train, plans, sum_and_count, clip, form_group=False):
        assert losses == pytest.approx(expected, rel=1e-10, abs=0)
        for name, value in expected_weights.items():
            torch.testing.assert_close(torch.tensor(weights[name]), torch.tensor(value), msg=name)


def test_the_losses_are_those_of_a_plain_loop() -> None:
    plans = [parse_plan("dp2 accumulate 4")] * 3
    (losses, _), _ = run_ranks(2, train, plans, sum_and_count, form_group=False)
    torch.set_default_dtype(torch.float64)
    try:
        assert losses == pytest.approx(reference(len(losses)), rel=1e-10, abs=0)
    finally:
        torch.set_default_dtype(torch.float32)


def means_and_warnings(meeting: Path, plan: Plan, caplog: Any) -> tuple[list[float], list[str]]:
    losses, _ = train(meeting, [plan] * 2, mean)
    return losses, [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_a_mean_over_different_numbers_of_labels_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _, warnings in run_ranks(2, means_and_warnings, Plan(data=2), caplog, form_group=False):
        assert len(warnings) <= 1
        assert all("return the sum and the number of labels" in warning for warning in warnings)
    [(_, warnings)] = run_ranks(1, means_and_warnings, Plan(), caplog, form_group=False)
    assert len(warnings) == 1


def test_labels_that_are_not_padded_need_no_warning() -> None:
    labels = torch.zeros(3, 5, dtype=torch.int64)
    assert not has_uneven_labels({"labels": labels})
    labels[0, 0] = IGNORED_LABEL
    assert has_uneven_labels({"labels": labels})
    labels[:, 0] = IGNORED_LABEL
    assert not has_uneven_labels({"labels": labels})
    assert not has_uneven_labels((labels, labels))
    assert not has_uneven_labels({"labels": torch.tensor([1, IGNORED_LABEL])})


def test_a_loss_returns_the_same_kind_at_all_times() -> None:
    results = iter([(torch.tensor(1.0), 2), torch.tensor(1.0)])
    recorder = LossRecorder(lambda *_: next(results), torch.device("cpu"))
    recorder.compute(None, None, 0)
    recorder.take()
    with pytest.raises(BadInput, match="returned a sum and a count before, and now a mean"):
        recorder.compute(None, None, 0)  # in the next step


class Unlabelled(PaddedWords):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**super().__getitem__(index), "labels": torch.full((SEQUENCE,), IGNORED_LABEL)}


def train_without_labels(meeting: Path) -> tuple[float, bool]:
    """Return the loss of a step, and whether it has changed the weights."""
    del meeting
    model = torch.nn.Embedding(VOCABULARY, VOCABULARY)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session = refold.train.start(model, optimizer, loss=sum_and_count, data=Unlabelled(), batch=4, steps=1)
    [loss] = [session.step(batch).item() for batch in session]
    return loss, not torch.equal(session.full_state_dict()["weight"], before)


def test_a_batch_without_any_label_changes_nothing() -> None:
    assert run_ranks(1, train_without_labels, form_group=False) == [(0.0, False)]
