"""The scripts of examples/train/converted train as they are, and converted, while the scheduler changes their plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from converted_scripts import FOLDER, converted

ARGUMENTS = {
    "bert_classifier": ["--output-dir", "OUT"],
    "diffusion_unet": ["--output-dir", "OUT"],
    "lora": ["--output-dir", "OUT", "--steps", "40"],
    "nano_gpt": ["OUT"],
    "run_clm": [
        *("--output_dir", "OUT", "--max_steps", "40", "--logging_steps", "1"),
        *("--report_to", "none", "--disable_tqdm", "true"),
    ],
    "torchvision_vit": ["--output-dir", "OUT"],
}
SAME_DATA = ("lora", "run_clm")
"""Scripts whose samples do not depend on the number of processes, nor on the conversion."""


def train(name: str, script: Path, folder: Path, *agent: str, **variables: str) -> list[float]:
    """Run a script with a folder for its output; return the losses that it prints."""
    (folder / "out").mkdir(parents=True)
    command = [sys.executable, *agent, str(script), *(word.replace("OUT", "out") for word in ARGUMENTS[name])]
    ended = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return [float(loss) for loss in re.findall(r"(?<!val )\bloss'?:? '?([\d.]+)", ended.stdout)]


def convert(name: str, folder: Path) -> Path:
    script = folder / "train.py"
    script.write_text(converted(name))
    return script


@pytest.mark.parametrize("name", ["bert_classifier", "diffusion_unet", "lora", "nano_gpt", "run_clm"])
def test_a_converted_script_goes_on_with_more_ranks(name: str, tmp_path: Path) -> None:
    plain = train(name, FOLDER / f"{name}.py", tmp_path / "plain")
    request = {"run": 2, "plan": {"data": 2}, "devices": None, "way": "live"}
    (tmp_path / "change").write_text(json.dumps(request))
    variables = {"REFOLD_CHANGE": str(tmp_path / "change"), "REFOLD_PROGRESS": str(tmp_path / "progress")}
    agent = ("-m", "refold.train", "--plan", "dp1")
    losses = train(name, convert(name, tmp_path), tmp_path / "changed", *agent, **variables)
    answer = json.loads((tmp_path / "change.done").read_text())
    assert (answer["plan"]["data"], answer["way"]) == (2, "cold")
    assert 0 < answer["step"] < len(plain)
    assert (tmp_path / "progress").read_text().split()[0] == str(len(plain))
    assert len(losses) == len(plain), "no step is lost or repeated"
    assert sum(losses[-5:]) < sum(losses[:5])
    if name in SAME_DATA:
        assert losses == pytest.approx(plain, abs=2e-3)


def test_a_converted_loop_has_the_same_losses_on_one_rank_and_on_two(tmp_path: Path) -> None:
    name = "torchvision_vit"
    plain = train(name, FOLDER / f"{name}.py", tmp_path / "plain")
    script = convert(name, tmp_path)
    alone = train(name, script, tmp_path / "alone")
    both = train(name, script, tmp_path / "both", "-m", "refold.train", "--plan", "dp2 zero3")
    assert len(alone) == len(plain)
    assert sorted(both) == pytest.approx(sorted([*alone, *alone]), abs=2e-4)
