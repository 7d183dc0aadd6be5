"""Loops of Accelerate and Lightning have the same losses, whether or not the scheduler changes their plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.errors import BadInput

STEPS = 36


def train(script: str, folder: Path, *agent: str) -> tuple[list[float], list[int]]:
    """Run a script; return its losses, and on how many ranks they were."""
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "REFOLD_CHANGE": str(folder / "change")}
    ended = subprocess.run(
        [sys.executable, *agent, str(Path(__file__).parent / script), str(folder)],
        env={**os.environ, **(variables if agent else {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in (folder / "losses").read_text().splitlines()]
    return [float(loss) for loss, _ in lines], [int(ranks) for _, ranks in lines]


@pytest.mark.parametrize("script", ["accelerate_script.py", "lightning_script.py"])
def test_a_change_of_the_plan_does_not_affect_the_losses(script: str, tmp_path: Path) -> None:
    alone, changed = tmp_path / "alone", tmp_path / "changed"
    for folder in (alone, changed):
        folder.mkdir()
    expected, _ = train(script, alone)
    (changed / "change").write_text(json.dumps({"run": 2, "plan": {"data": 2}}))
    losses, ranks = train(script, changed, "-m", "refold.train", "--plan", "dp1")
    assert len(expected) == STEPS
    assert losses == pytest.approx(expected, rel=1e-5)
    assert (ranks[0], ranks[-1], sorted(ranks)) == (1, 2, ranks)
    first, second = sorted(int(path.name.removeprefix("step-")) for path in (changed / "out").iterdir())
    assert (first, second) == (ranks.count(1), STEPS)
    assert train(script, changed)[0] == losses, "a training that has ended does nothing more"


@pytest.mark.in_child
def test_only_the_last_epoch_of_an_accelerate_loop_may_end_early(tmp_path: Path) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from refold.train import AccelerateRun

    run = AccelerateRun(4, tmp_path)
    accelerator = run.accelerator()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.zeros(16, 1)), batch_size=run.loader_batch))
    steps = 0
    for _ in run.epochs(loader, 2):
        for _ in run.batches(loader):
            steps += 1
            if steps == 6:
                break
    assert (steps, [path.name for path in tmp_path.iterdir()]) == (6, ["step-6"])
    run = AccelerateRun(4, tmp_path)
    run.accelerator()
    with pytest.raises(BadInput, match="only the last epoch may end early"):
        for _ in run.epochs(loader, 3):
            pass


@pytest.mark.in_child
def test_a_framework_with_other_ranks_than_the_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refold.train import AccelerateRun

    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    run = AccelerateRun(4, tmp_path)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(BadInput, match="DP2 has 2 ranks, and the framework trains with 1"):
        run.accelerator()
