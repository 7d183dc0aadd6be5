"""The `refold profile` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from refold.cli.commands.profile import profile
from refold.errors import BadFile, BadInput, MissingExtra
from refold.model.plan import Plan
from refold.planning.catalogue.measurements import read_samples
from refold.train import profiling

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

RunProfile = Callable[..., Result]


@pytest.fixture
def run_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunProfile:
    """Run `refold profile toy.yaml WORDS` in a folder with toy.yaml."""
    (tmp_path / "toy.yaml").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(profile)
    return lambda *words: CliRunner().invoke(app, ["toy.yaml", *words])


def test_seven_samples_are_shown_and_written(run_profile: RunProfile) -> None:
    result = run_profile(*QUICK)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "toy on cpu: 7 samples" in result.stdout
    assert "note: toy on this machine's cpu: 4 samples of 16 tokens per step" in result.stderr
    assert result.stdout.endswith("samples: samples.csv\nnext: refold fit samples.csv\n")
    rows = read_samples(Path("samples.csv"))
    assert len(rows) == 7
    assert {(row.model, row.gpu, row.batch, row.sequence) for row in rows} == {("toy", "cpu", 4, 16)}
    assert [row.plan for row in rows[:3]] == [Plan(), Plan(recompute="full"), Plan(accumulation=2)]
    assert all(row.step_seconds and row.memory_gib for row in rows)


def test_samples_are_printed_as_json(run_profile: RunProfile) -> None:
    result = run_profile(
        *QUICK, "--samples", "2", "--layers", "1", "--batch", "2", "--seq", "8", "--json", "--out", "own.csv"
    )
    assert result.exit_code == 0, (result.output, result.exception)
    output = json.loads(result.stdout)
    assert (output["model"], output["device"], output["written"]) == ("toy-1-layers", "cpu", "own.csv")
    assert [(one["batch"], one["sequence"]) for one in output["samples"]] == [(2, 8)] * 2
    assert len(read_samples(Path("own.csv"))) == 2


def test_all_configurations_of_a_batch_can_be_measured(run_profile: RunProfile) -> None:
    result = run_profile(*QUICK, "--all", "--samples", "3", "--batch", "1", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    assert len(json.loads(result.stdout)["samples"]) == 6


def test_a_model_that_never_fits_exits_with_status_1(run_profile: RunProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from refold.train.steps import Trainer

    def run_out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainer, "step", run_out_of_memory)
    result = run_profile(*QUICK)
    assert result.exit_code == 1
    assert "out of memory" in result.stdout
    assert "only 0 of 7 samples fit into memory" in result.stderr
    assert {row.status for row in read_samples(Path("samples.csv"))} == {"oom"}


def test_invalid_options_are_rejected_before_measuring(run_profile: RunProfile, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for words, error, message in (
        (("--threads", "2,x"), BadInput, "--threads 2,x: expected numbers ≥ 1, such as --threads 2,4,8"),
        (("--device", "tpu"), BadInput, "no device 'tpu'"),
        (("--layers", "3"), BadInput, "model 'toy' has 2 layers: cannot reduce it to 3"),
        (("--seq", "17"), BadInput, "model 'toy' has 16 positions, fewer than 17 tokens"),
        (("--out", "folder"), BadFile, "folder: is a folder"),
        (("--out", "no/such.csv"), BadFile, "no/such.csv: the folder does not exist; create it first"),
    ):
        result = run_profile("--device", "cpu", *words)
        assert isinstance(result.exception, error), (words, result.exception)
        assert message in str(result.exception)
        assert not Path("samples.csv").exists()


def test_the_error_without_pytorch_names_the_extra(run_profile: RunProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "find_spec", lambda _: None)
    assert isinstance(run_profile().exception, MissingExtra)
