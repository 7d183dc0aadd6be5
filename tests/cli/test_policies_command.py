"""`refold policies`, and what the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.packing import RULES
from refold.policies.table import POLICIES

Said = Callable[..., str]
Told = Callable[..., Any]


def test_every_policy_and_placement_is_listed(said: Said) -> None:
    printed = said("policies")
    for name in (*POLICIES, *RULES):
        assert name in printed
    assert "threshold_gpu_seconds=57600" in printed


def test_as_json(told: Told) -> None:
    document = told("policies")
    assert [one["name"] for one in document["policies"]] == list(POLICIES)
    assert [one["name"] for one in document["placements"]] == list(RULES)
    las = next(one for one in document["policies"] if one["name"] == "las")
    assert las["preempts"]
    assert not las["oracle"]
    assert las["settings"]["placement"] == "best-fit"


def test_a_file_in_the_folder_shows_up_and_can_be_called_by_name(
    mine: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch, said: Said, told: Told
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(mine.parent))
    own = told("policies")["policies"][-1]
    assert (own["name"], own["summary"], own["where"]) == ("mine", "Narrow jobs first.", str(mine))
    assert own["settings"] == {"placement": "best-fit", "patience": 2.5}
    assert "mine" in said("policies")
    assert told("simulate", str(jobs), "--cluster", "2x4", "--policy", "mine")["policy"] == "mine"


def test_a_folder_that_is_none_and_a_file_that_cannot_be_loaded_are_named(
    mine: Path, monkeypatch: pytest.MonkeyPatch, refuses: Said, said: Said, told: Told
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(mine))
    assert "is not a folder" in refuses("policies")
    monkeypatch.setenv("REFOLD_POLICIES", str(mine.parent))
    mine.write_text("class is not Python")
    assert f"cannot be used: {mine}: cannot be loaded: SyntaxError" in said("policies")
    assert "SyntaxError" in told("policies")["policies"][-1]["problem"]
    assert told("policies")["policies"][0]["problem"] is None


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("refold simulate demo --policy s", {"sia", "sjf", "srtf", "synergy"}),
        ("refold simulate demo --placement w", {"worst-fit", "worth"}),
        ("refold compare --policies fifo,l", {"fifo,las"}),
        ("refold compare --placements first-fit,t", {"first-fit,tetris"}),
        ("refold comp", {"compare"}),
        ("refold simulate demo --policy las/w", {"las/worst-fit", "las/worth"}),
        ("refold compare --policies fifo,las/t", {"fifo,las/tetris"}),
        ("refold simulate demo --policy mi", {"mine"}),
        ("refold simulate de", {"demo"}),
        ("refold compare dem", {"demo"}),
        ("refold compare demo --format he", {"helios"}),
        ("refold simulate demo --policy las --set thr", {"threshold_gpu_seconds=57600.0"}),
        ("refold simulate demo --policy mine --set p", {"placement=best-fit", "patience=2.5"}),
    ],
)
def test_the_shell_completes_names(line: str, completed: set[str], mine: Path, tmp_path: Path) -> None:
    words = line.split(" ")
    asked = {"_REFOLD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    # The name of the variable follows from the program's, which is `refold` where it is installed.
    script = "import sys; sys.argv = ['refold']; from refold.cli.app import main; main()"
    mine.rename(mine.with_name("a_file.py"))  # the name is the policy's, not the file's
    found = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked | {"REFOLD_POLICIES": str(mine.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(found.stdout.split()) == completed, found.stderr
