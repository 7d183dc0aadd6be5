"""The examples of `examples/train`: data that can be learned, models that learn it, and jobs that can be submitted."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.jobspec import read_spec

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
NAMES = ("gpt", "encoder", "vit", "hugging_face")
NO_TORCH = "PyTorch is not installed: pip install 'refold[train]'"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the examples."""
    pytest.importorskip("torch", reason=NO_TORCH)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (EXAMPLES / f"{name}.py").exists():
            del sys.modules[name]


def data_sets(example: Any) -> dict[str, Any]:
    data = example("synthetic_data")
    return {
        "gpt": data.MarkovText(64, 16),
        "encoder": data.MaskedText(64, 16),
        "vit": data.PatternImages(10, 16, 48),
        "hugging_face": data.MarkovText(64, 16),
    }


def test_a_sample_is_a_function_of_the_seed_and_its_number(example: Any) -> None:
    for name, data in data_sets(example).items():
        first, again = (values(one[5]) for one in (data, data_sets(example)[name]))
        assert first == again
        assert first != values(data[6])
        assert len(data) == 100_000


def values(sample: dict[str, Any]) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in sample.items()}


def test_all_samples_of_the_encoder_have_equally_many_masked_tokens(example: Any) -> None:
    data = example("synthetic_data").MaskedText(64, 32)
    samples = [data[index] for index in range(20)]
    assert {int((sample["labels"] >= 0).sum()) for sample in samples} == {4}
    for sample in samples:
        assert ((sample["input_ids"] == 64) == (sample["labels"] >= 0)).all()


def model_of(name: str, example: Any) -> Any:
    size = example("options").SIZES["tiny"]
    match name:
        case "gpt":
            return example("gpt").GPT(size, 64)
        case "encoder":
            return example("encoder").Encoder(size, 65)
        case "vit":
            return example("vit").ViT(size, 10)
        case _:
            pytest.importorskip("transformers", reason="Transformers is not installed")
            return example("hugging_face").build("llama", "tiny")


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_each_example_falls(name: str, example: Any) -> None:
    import torch
    from torch.utils.data import default_collate

    torch.manual_seed(0)
    model, data, loss_of = model_of(name, example), data_sets(example)[name], example(name).loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(40):
        batch = default_collate([data[index] for index in range(16 * step, 16 * step + 16)])
        output = model(next(iter(batch.values())))
        loss = loss_of(getattr(output, "logits", output), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_a_job(name: str) -> None:
    (job,) = read_spec(EXAMPLES / f"{name}.yaml").submissions
    assert job.command[-1].startswith(f"python examples/train/{name}.py ")
    assert job.may_be_reshaped
    steps = re.search(r"--steps (\d+)", job.command[-1])
    assert steps is not None and int(steps[1]) == job.steps
    batch = re.search(r"--batch (\d+)", job.command[-1])
    assert batch is not None and int(batch[1]) == job.batch
