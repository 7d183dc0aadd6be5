"""A model is evaluated alike under every plan, and every sample counts once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor
from torch_ranks import run_ranks

from refold.errors import BadInput
from refold.model import Plan, parse_plan
from refold.train.evaluation import EvaluatedSamples, shares
from refold.train.layout import with_micro_batches
from refold.train.local_model import SplittableModel
from refold.train.process_group import Rendezvous
from refold.train.reshaper import Reshaper
from refold.train.session import Session
from refold.train.training_options import TrainingOptions
from refold.train.training_state import TrainingState


class Fewer(RepeatedWords):
    """Eleven samples: no multiple of a batch of eight."""

    def __len__(self) -> int:
        return 11


def correct_tokens(logits: Tensor, batch: Any) -> tuple[Tensor, int]:
    return (logits.argmax(-1) == batch[1]).sum(), batch[1].numel()


def make_session(meeting: Path, steps: int = 2) -> Session:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = SmallGpt(dropout=0.5)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.5), SplittableModel(model))
    options = TrainingOptions(batch=8, steps=steps)
    reshaper = Reshaper(state, 8, torch.device("cpu"))
    session = Session(reshaper, next_token_loss, options.batches_of(RepeatedWords()), options)
    ranks = int(os.environ["WORLD_SIZE"])
    session.begin(Plan(data=ranks), Rendezvous(int(os.environ["RANK"]), ranks, meeting))
    return session


def evaluate(meeting: Path, plans: list[str]) -> list[tuple[float, float]]:
    """Return loss and share of correct tokens under each plan, before any step."""
    session = make_session(meeting)
    results = []
    for plan in plans:
        session.change(parse_plan(plan))
        results.append((session.evaluate(Fewer()), session.evaluate(Fewer(), correct_tokens, batch=16)))
    assert session.model.training
    return results


def expected_results() -> tuple[float, float]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = SmallGpt(dropout=0.5).eval()
    samples = [Fewer()[index] for index in range(len(Fewer()))]
    batch = tuple(torch.stack(parts) for parts in zip(*samples, strict=True))
    logits = model(batch[0])
    correct, count = correct_tokens(logits, batch)
    return next_token_loss(logits, batch).item(), correct.item() / count


def test_loss_and_metric_are_those_of_a_plain_loop_under_every_plan() -> None:
    plans = ["dp2", "dp2 zero3 accumulate 2", "tp2", "pp2 accumulate 4", "pp2 interleave 2 accumulate 4"]
    try:
        expected = expected_results()
    finally:
        torch.set_default_dtype(torch.float32)
    for results in run_ranks(2, evaluate, plans, form_group=False):
        assert results == [pytest.approx(expected, rel=1e-9)] * len(plans)


def evaluate_frozen(meeting: Path) -> tuple[list[float], list[bool], str]:
    """Evaluate by metrics that return numbers, while a part of the model is switched off; return what is on then."""
    session = make_session(meeting)
    frozen = [module for module in session.model.modules() if isinstance(module, torch.nn.Dropout)]
    for module in frozen:
        module.eval()
    means = [session.evaluate(Fewer(), lambda *_: 0.25), session.evaluate(Fewer(), lambda _, batch: (len(batch[1]), 2))]
    try:
        session.evaluate(Fewer(), lambda logits, _: logits)
    except BadInput as error:
        message = str(error)
    assert session.model.training
    return means, [module.training for module in frozen], message


def test_metrics_may_return_numbers_and_what_was_switched_off_stays_so() -> None:
    [(means, modes, message)] = run_ranks(1, evaluate_frozen, form_group=False)
    assert means == pytest.approx([0.25, 11 / 4])
    assert modes
    assert not any(modes)
    assert message.endswith("numbers, expected one, or a sum and a count")


def test_ranks_repeat_samples_so_that_all_take_equal_steps() -> None:
    assert list(shares(5, 4, 0, 2)) == [EvaluatedSamples([0, 1], 2), EvaluatedSamples([4, 0], 1)]
    assert list(shares(5, 4, 1, 2)) == [EvaluatedSamples([2, 3], 2), EvaluatedSamples([1, 2], 0)]
    assert list(shares(1, 4, 1, 2)) == [EvaluatedSamples([0, 0], 0)]


def call_stages(meeting: Path) -> list[str]:
    """Return what a call of the model says on this rank, and whether the session goes on."""
    session = make_session(meeting)
    session.change(parse_plan("pp2"))
    try:
        session.model(RepeatedWords()[0][0][None])
    except BadInput as error:
        message = str(error)
    losses = [session.step(batch).item() for batch in session]
    return [message, f"{session.plan}", f"{len(losses)} steps"]


def test_a_call_of_a_pipeline_stage_is_an_error_on_every_rank() -> None:
    for rank, results in enumerate(run_ranks(2, call_stages, form_group=False)):
        assert results == [
            f"the model is divided into 2 pipeline stages, and this rank has stage {rank}; call "
            "session.evaluate(data, metric) on all ranks instead of the model",
            "DP1 PP2 accumulate 8",
            "2 steps",
        ]


@pytest.mark.parametrize(
    ("plan", "batch", "micro_batches"),
    [
        ("pp2", 32, 8),
        ("pp2", 4, 4),
        ("pp2 dp2", 12, 6),
        ("pp3", 8, 8),
        ("pp4 interleave 2", 24, 12),
        ("pp4 accumulate 4", 64, 4),
    ],
)
def test_a_pipeline_without_micro_batches_gets_some(plan: str, batch: int, micro_batches: int) -> None:
    assert with_micro_batches(parse_plan(plan), batch).accumulation == micro_batches


@pytest.mark.parametrize(("plan", "batch"), [("dp2", 8), ("pp4", 2), ("pp2 dp3", 8), ("pp2 accumulate 2", 64)])
def test_other_plans_are_left_alone(plan: str, batch: int) -> None:
    assert with_micro_batches(parse_plan(plan), batch) == parse_plan(plan)


def stop_early(meeting: Path, folder: Path) -> tuple[int, int | None]:
    from refold.train.checkpoints import Checkpoints

    session = make_session(meeting, steps=100)
    session._checkpoints.checkpoints = Checkpoints(folder)
    for batch in session:
        session.step(batch)
        if session.steps_done == 3:
            session.stop()
    return session.steps_done, Checkpoints(folder).latest()


def test_a_training_that_is_stopped_early_has_a_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(2, stop_early, tmp_path, form_group=False) == [(3, 3), (3, 3)]
