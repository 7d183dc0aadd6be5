"""The examples of `examples/train`: data that can be learned, models that learn it, and jobs that can be submitted."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.client.jobspec import read_spec

EXAMPLES = Path(__file__).parents[3] / "examples" / "train"
NAMES = ("gpt", "encoder", "vit", "hugging_face")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the examples."""
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


def losses_of(name: str, plan: str, ranks: int, folder: Path) -> list[float]:
    """Run an example under a plan, and return the losses that it prints."""
    script = [str(EXAMPLES / f"{name}.py"), "--steps", "20", "--batch", "8"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    variables = {"REFOLD_PLAN": plan, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), *script],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return [float(loss) for loss in re.findall(r"^step \d+, loss ([\d.]+)", ended.stdout, re.MULTILINE)]


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("gpt", '{"tensor": 2}'),
        ("vit", '{"pipeline": 2, "accumulation": 2}'),
    ],
)
def test_an_example_has_the_same_losses_under_another_plan(name: str, plan: str, tmp_path: Path) -> None:
    alone = losses_of(name, "{}", 1, tmp_path)
    assert len(alone) == 2
    assert losses_of(name, plan, 2, tmp_path) == pytest.approx(alone, abs=2e-4)


def test_the_five_lines_of_the_documentation_train() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "train.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), DP1", ended.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 4
