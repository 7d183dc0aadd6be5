"""`refold profile`, from a file of shapes to a file of samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from refold.catalogue.measurements import read_samples
from refold.cli.commands.profile import profile
from refold.errors import BadFile, BadInput, MissingExtra
from refold.model.plan import Plan
from refold.train import profiling

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'refold[train]'")

TOY = """
name: toy
layers: 2
hidden: 32
heads: 4
vocabulary: 100
positions: 16
sequence: 16
batch: 4
"""
QUICK = ("--device", "cpu", "--steps", "1", "--threads", "1,2")

Typed = Callable[..., Result]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What comes of `refold profile toy.yaml WORDS` in a folder with toy.yaml."""
    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(profile)
    return lambda *words: CliRunner().invoke(app, ["toy.yaml", *words])


def test_seven_samples_are_shown_and_written(typed: Typed) -> None:
    result = typed(*QUICK)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "toy on cpu: 7 samples" in result.stdout
    assert "note: toy on this machine's cpu: steps of 4 samples, 16 tokens each" in result.stderr
    assert result.stdout.endswith("samples: samples.csv\nnext: refold fit samples.csv\n")
    rows = read_samples(Path("samples.csv"))
    assert len(rows) == 7
    assert {(row.model, row.gpu, row.batch, row.sequence) for row in rows} == {("toy", "cpu", 4, 16)}
    assert [row.plan for row in rows[:3]] == [Plan(), Plan(recompute="full"), Plan(accumulation=2)]
    assert all(row.step_seconds and row.memory_gib for row in rows)


def test_as_json(typed: Typed) -> None:
    result = typed(
        *QUICK, "--samples", "2", "--layers", "1", "--batch", "2", "--seq", "8", "--json", "--out", "own.csv"
    )
    assert result.exit_code == 0, (result.output, result.exception)
    told = json.loads(result.stdout)
    assert (told["model"], told["device"], told["written"]) == ("toy-1-layers", "cpu", "own.csv")
    assert [(one["batch"], one["sequence"]) for one in told["samples"]] == [(2, 8)] * 2
    assert len(read_samples(Path("own.csv"))) == 2


def test_all_of_a_batch(typed: Typed) -> None:
    result = typed(*QUICK, "--all", "--samples", "3", "--batch", "1", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    assert len(json.loads(result.stdout)["samples"]) == 6


def test_a_model_that_does_not_fit_at_all(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from refold.train.steps import Trainer

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainer, "step", full)
    result = typed(*QUICK)
    assert result.exit_code == 1
    assert "too much" in result.stdout
    assert "only 0 of 7 samples fit into memory" in result.stderr
    assert {row.status for row in read_samples(Path("samples.csv"))} == {"oom"}


def test_what_is_typed_wrongly_is_refused_before_anything_runs(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for words, error, said in (
        (("--threads", "2,x"), BadInput, "--threads 2,x: expected numbers ≥ 1, such as --threads 2,4,8"),
        (("--device", "abacus"), BadInput, "no device 'abacus'"),
        (("--layers", "3"), BadInput, "model 'toy' has 2 layers: it cannot be cut to 3"),
        (("--seq", "17"), BadInput, "model 'toy' has 16 positions: 17 tokens are too many"),
        (("--out", "folder"), BadFile, "folder: is a folder"),
        (("--out", "no/such.csv"), BadFile, "no/such.csv: has no folder to be in; make it first"),
    ):
        result = typed("--device", "cpu", *words)
        assert isinstance(result.exception, error), (words, result.exception)
        assert said in str(result.exception)
        assert not Path("samples.csv").exists()


def test_without_pytorch_the_extra_is_named(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "find_spec", lambda _: None)
    assert isinstance(typed().exception, MissingExtra)
