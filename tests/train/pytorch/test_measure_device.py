"""The GPU benchmark, run on the CPU with small models."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.accuracy import measure_device
from benchmarks.accuracy.measure_device import SHARE_OF_TIME, configs_of, measure_model, measure_models, toy_of

from refold.errors import BadInput
from refold.planning.catalogue import read_model
from refold.planning.catalogue.measurements import read_samples

ROOT = Path(__file__).parents[3]


def make_options(folder: Path, model: str, minutes: float = 1.0, skip: int = 0) -> argparse.Namespace:
    return argparse.Namespace(
        out=folder, minutes=minutes, models=model, tiny=True, device="cpu", only_here=True, skip=skip
    )


def test_the_benchmark_needs_only_pytorch() -> None:
    """The GPU machine may have no network, none of Refold's other dependencies, and no compiled kernels."""
    unneeded = {"refold.placement", "refold.predict", "rich", "scipy", "typer"}
    code = f"import sys, benchmarks.accuracy.measure_device; print({unneeded} & {{*sys.modules}})"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


@pytest.mark.parametrize("name", SHARE_OF_TIME)
def test_every_model_has_enough_configurations(name: str) -> None:
    shape = read_model(name)
    assert shape.name == name
    configs = [*dict.fromkeys(configs_of(shape, cpus=16))]
    assert len(configs) >= 25
    assert {config.threads for config in configs if config.plan.offload} == {2, 4, 8, 16}
    assert {config.plan.recompute for config in configs} == {"none", "selective", "full"}
    assert len({config.batch for config in configs}) >= 4


def test_a_model_is_measured_in_a_separate_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy.measure_device", "--out", str(tmp_path), "--tiny"]
    command += ["--device", "cpu", "--models", "t5-1.2b", "--minutes", "2"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    rows = read_samples(tmp_path / "measured.csv")
    assert process.stdout.endswith(f"t5-1.2b: {len(rows)} rows, 0 of them out of memory\n")
    assert len(rows) == len({*configs_of(toy_of(read_model("t5-1.2b")), os.cpu_count() or 1)})
    assert json.loads((tmp_path / "machine.json").read_text())["torch"]


def test_rows_are_appended_until_the_time_limit(tmp_path: Path) -> None:
    measure_model(make_options(tmp_path, "gpt2-xl", skip=20))
    before = read_samples(tmp_path / "measured.csv")
    measure_model(make_options(tmp_path, "vit-base-16", skip=20))
    measure_model(make_options(tmp_path, "vit-base-16", minutes=0.0))
    rows = read_samples(tmp_path / "measured.csv")
    assert rows[: len(before)] == before
    assert {row.model for row in rows} == {"gpt2-xl", "vit-base-16"}


def test_a_process_that_fails_is_replaced_by_one_for_the_remaining_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process fails at its third configuration; after three processes the benchmark gives up."""
    skipped: list[int] = []

    def fail_at_third(_: object, name: str, skip: int, *__: object) -> tuple[int, bool]:
        skipped.append(skip)
        return skip + 3, False

    monkeypatch.setattr(measure_device, "_measure_in_process", fail_at_third)
    measure_models(make_options(tmp_path, "bert-large"))
    assert skipped == [0, 3, 6]


def test_a_toy_model_has_the_same_architecture() -> None:
    for name in SHARE_OF_TIME:
        shape = read_model(name)
        toy = toy_of(shape)
        assert (toy.kind, toy.gated, toy.bias, toy.tied) == (shape.kind, shape.gated, shape.bias, shape.tied)
        assert toy.parameters < 1e6
    with pytest.raises(BadInput):
        read_model("no-such-model")
