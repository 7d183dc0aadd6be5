"""What a model gets of a batch, and the losses that models compute themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor, nn
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput
from refold.train.local_model import adapt_hugging_face
from refold.train.losses import InputReader, Loss, ModelInputs, model_loss

TOKENS, MASK, LABELS = torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2)


class Masked(nn.Module):
    def forward(self, input_ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> None: ...


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (TOKENS, ModelInputs(TOKENS, {})),
        ((TOKENS, LABELS), ModelInputs(TOKENS, {})),
        ({"labels": LABELS, "mask": MASK, "input_ids": TOKENS}, ModelInputs(TOKENS, {"mask": MASK})),
        ({"mask": MASK, "text": TOKENS, "unknown": LABELS}, ModelInputs(TOKENS, {"mask": MASK})),
        ({"x": TOKENS, "y": LABELS}, ModelInputs(TOKENS, {})),
    ],
)
def test_a_model_gets_what_it_has_parameters_for(batch: Any, expected: ModelInputs) -> None:
    found = InputReader(Masked()).read(batch)
    assert found.main is expected.main
    assert found.named.keys() == expected.named.keys()
    assert all(found.named[name] is value for name, value in expected.named.items())


def test_labels_are_for_models_that_compute_their_loss() -> None:
    reader = InputReader(Masked(), with_labels=True)
    assert reader.read({"input_ids": TOKENS, "labels": LABELS}).named == {"labels": LABELS}


def test_a_script_may_select_the_inputs() -> None:
    reader = InputReader(Masked(), lambda batch: {"mask": batch[1], "input_ids": batch[0]})
    found = reader.read((TOKENS, MASK))
    assert found.main is TOKENS
    assert found.named["mask"] is MASK


@pytest.mark.parametrize("batch", [{"mask": MASK}, {"x": 3}, ("text", 1), {}])
def test_a_batch_without_an_input_is_named(batch: Any) -> None:
    with pytest.raises(BadInput, match=r"the input of the model would be a .*, expected a tensor; pass inputs="):
        InputReader(Masked()).read(batch)


class OwnLoss(nn.Module):
    """A model whose output has a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = SmallGpt()

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:
        logits = self.gpt(tokens)
        return SimpleNamespace(loss=next_token_loss(logits, (tokens, labels)))


class NamedWords(RepeatedWords):
    def __getitem__(self, index: int) -> Any:
        tokens, labels = super().__getitem__(index)
        return {"tokens": tokens, "labels": labels}


def losses_of(meeting: Path, make: Callable[[], nn.Module], data: Any, loss: Loss | None) -> list[float]:
    del meeting
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session = refold.train.start(model, optimizer, loss=loss, data=data, batch=8, steps=3)
    return [session.step(batch).item() for batch in session]


def test_a_model_whose_output_has_a_loss_needs_no_other() -> None:
    [losses] = run_ranks(1, losses_of, OwnLoss, NamedWords(), None, form_group=False)
    [expected] = run_ranks(1, losses_of, SmallGpt, RepeatedWords(), next_token_loss, form_group=False)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(set(losses)) == len(losses), "it trains"


class LossInDict(OwnLoss):
    """A model whose output is a dict."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:
        return {"loss": super().forward(tokens, labels).loss, "states": tokens}


def evaluated_loss(meeting: Path) -> tuple[float, float]:
    """Return the loss of a data set as a session evaluates it, and by the model itself."""
    del meeting
    model, data = LossInDict(), NamedWords()
    samples = [data[index] for index in range(len(data))]
    whole = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    expected = model(**whole)["loss"].item()
    session = refold.train.start(model, torch.optim.SGD(model.parameters(), lr=0.5), data=data, batch=8, steps=1)
    return session.evaluate(data), expected


def test_a_loss_in_a_dict_is_found_and_evaluated() -> None:
    [losses] = run_ranks(1, losses_of, LossInDict, NamedWords(), None, form_group=False)
    assert len(set(losses)) == len(losses), "it trains"
    [(found, expected)] = run_ranks(1, evaluated_loss, form_group=False)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batch", [{"labels": LABELS}, (TOKENS, LABELS), TOKENS])
@pytest.mark.parametrize("output", [TOKENS, {"logits": TOKENS}, None])
def test_an_output_without_a_loss_is_named(output: Any, batch: Any) -> None:
    with pytest.raises(BadInput, match=r"the model returned .* instead of a loss; pass loss=… to refold"):
        model_loss(is_shifted=False)(output, batch)


class Wrapper(nn.Module):
    """As a model of PEFT without a task: it passes on whatever it gets to a model of Hugging Face."""

    config = None

    def get_input_embeddings(self) -> None: ...

    def forward(self, *args: Any, **named: Any) -> Any:
        assert not args
        return SimpleNamespace(logits=named["input_ids"])


def test_a_wrapper_that_passes_on_its_inputs_gets_the_tokens() -> None:
    model = Wrapper()
    adapt_hugging_face(model)
    assert model(TOKENS) is TOKENS
    assert InputReader(model).read({"labels": LABELS, "input_ids": TOKENS}).main is TOKENS
