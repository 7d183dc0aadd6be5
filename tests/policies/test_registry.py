"""Policies loaded from the user's own files."""

from pathlib import Path

import pytest

from refold.errors import BadFile, BadInput, UnknownName
from refold.simulator.registry import default_settings, list_policies, make_policy, policy_names

MINE = '''
from __future__ import annotations
from dataclasses import dataclass
from refold.model import NO_CHANGE

@dataclass
class Idle:
    """Does nothing, slowly."""
    pace: float = 1.0
    name = "idle"
    def decide(self, view):
        return NO_CHANGE
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFOLD_POLICIES", str(tmp_path))
    (tmp_path / "my_idle.py").write_text(MINE)
    return tmp_path


def test_a_file_in_the_folder_is_listed_and_found_by_either_name(folder: Path) -> None:
    listed = list_policies()[-1]
    assert (listed.name, listed.summary, listed.settings) == ("idle", "Does nothing, slowly.", {"pace": 1.0})
    assert make_policy("idle").name == make_policy("my_idle").name == "idle"
    assert "idle" in policy_names()


def test_a_file_is_found_by_its_path(folder: Path) -> None:
    assert default_settings(str(folder / "my_idle.py")) == {"pace": 1.0}


def test_a_broken_file_is_listed_with_its_problem_and_does_not_affect_others(folder: Path) -> None:
    (folder / "a_broken.py").write_text("def (")
    (folder / "exits.py").write_text("raise SystemExit(3)")
    (folder / "two.py").write_text(MINE + "\nclass Other(Idle):\n    name = 'other'\n")
    (folder / "taken.py").write_text(MINE.replace('"idle"', '"fifo"'))
    (folder / "test_mine.py").write_text("raise RuntimeError")
    problems = {listed.name: listed.problem for listed in list_policies() if listed.problem}
    assert problems["a_broken"].startswith("cannot be loaded: SyntaxError")
    assert problems["exits"] == "cannot be loaded: SystemExit: 3"
    assert problems["two"] == "has 2 classes with a name and decide(view), expected one"
    assert problems["fifo"] == "the name 'fifo' is a built-in policy"
    assert len(problems) == 4
    assert make_policy("idle").name == "idle"
    with pytest.raises(BadFile, match="cannot be loaded: SyntaxError"):
        make_policy("a_broken")


def test_a_setting_that_a_policy_had_once_is_rejected_with_what_replaces_it() -> None:
    with pytest.raises(BadInput, match=r"'starvation_seconds' any more; .* 'overtaking_share'"):
        make_policy("refold", {"starvation_seconds": 3600})
    with pytest.raises(BadInput, match=r"easy has no setting 'max_overtaken' any more; .* 'refold'"):
        make_policy("easy", {"max_overtaken": 3})


def test_unknown_names_files_and_folders_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="did you mean 'idle'"):
        make_policy("idel")
    with pytest.raises(BadFile, match="no such file"):
        make_policy("nowhere.py")
    with pytest.raises(BadInput, match="does not accept the settings"):
        make_policy("fifo", {"seed": 2**80})
    monkeypatch.setenv("REFOLD_POLICIES", "nowhere")
    with pytest.raises(BadInput, match="expected a folder"):
        list_policies()
