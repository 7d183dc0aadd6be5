"""The benchmark that measures a GPU runs on any machine, with toy models."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'refold[train]'")

from benchmarks.accuracy import measure_device
from benchmarks.accuracy.measure_device import SHARE_OF_TIME, measure_model, measure_models, toy_of, trials_of

from refold.catalogue import read_model
from refold.catalogue.measurements import read_samples
from refold.errors import BadInput

ROOT = Path(__file__).parents[2]


def asked(folder: Path, model: str, minutes: float = 1.0, skip: int = 0) -> argparse.Namespace:
    return argparse.Namespace(
        out=folder, minutes=minutes, models=model, tiny=True, device="cpu", only_here=True, skip=skip
    )


def test_it_needs_little_besides_pytorch() -> None:
    """The machine with the GPU may have neither a network nor the rest of what Refold depends on."""
    told = "import sys, benchmarks.accuracy.measure_device; print({'numba', 'rich', 'scipy', 'typer'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


@pytest.mark.parametrize("name", SHARE_OF_TIME)
def test_every_model_has_trials_enough(name: str) -> None:
    shape = read_model(name)
    assert shape.name == name
    trials = [*dict.fromkeys(trials_of(shape, cpus=16))]
    assert len(trials) >= 25
    assert {trial.threads for trial in trials if trial.plan.offload} == {2, 4, 8, 16}
    assert {trial.plan.recompute for trial in trials} == {"none", "selective", "full"}
    assert len({trial.batch for trial in trials}) >= 4


def test_a_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy.measure_device", "--out", str(tmp_path), "--tiny"]
    command += ["--device", "cpu", "--models", "t5-1.2b", "--minutes", "2"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = read_samples(tmp_path / "measured.csv")
    assert ended.stdout.endswith(f"t5-1.2b: {len(rows)} rows, 0 of them out of memory\n")
    assert len(rows) == len({*trials_of(toy_of(read_model("t5-1.2b")), os.cpu_count() or 1)})
    assert json.loads((tmp_path / "machine.json").read_text())["torch"]


def test_rows_are_added_to_those_of_other_models_until_time_is_up(tmp_path: Path) -> None:
    measure_model(asked(tmp_path, "gpt2-xl", skip=20))
    before = read_samples(tmp_path / "measured.csv")
    measure_model(asked(tmp_path, "vit-base-16", skip=20))
    measure_model(asked(tmp_path, "vit-base-16", minutes=0.0))
    rows = read_samples(tmp_path / "measured.csv")
    assert rows[: len(before)] == before
    assert {row.model for row in rows} == {"gpt2-xl", "vit-base-16"}


def test_a_process_that_breaks_off_is_followed_by_one_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each breaks off in its third trial; after three of them enough is enough."""
    begun: list[int] = []

    def breaks_off(_: object, name: str, skip: int, *__: object) -> tuple[int, bool]:
        begun.append(skip)
        return skip + 3, False

    monkeypatch.setattr(measure_device, "_measure_apart", breaks_off)
    measure_models(asked(tmp_path, "bert-large"))
    assert begun == [0, 3, 6]


def test_a_toy_is_of_the_same_kind() -> None:
    for name in SHARE_OF_TIME:
        shape = read_model(name)
        toy = toy_of(shape)
        assert (toy.kind, toy.gated, toy.bias, toy.tied) == (shape.kind, shape.gated, shape.bias, shape.tied)
        assert toy.parameters < 1e6
    with pytest.raises(BadInput):
        read_model("no-such-model")
