"""The owner is asked, or told, the costs and benefits of preemption."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from refold.cli import preemption_choice
from refold.cli.commands.serve import _choose_preemption
from refold.cli.preemption_choice import choose_preemption, demo_outlook
from refold.cli.views import format_number
from refold.model import PreemptionOutlook, PreemptionRules, format_duration
from refold.server.config import Config
from refold.server.config.reader import read_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Pretend to be on a terminal; return the list of what the owner types."""
    typed: list[str] = []
    monkeypatch.setattr(preemption_choice, "is_on_terminal", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda _text, default: typed.pop(0) or default)
    return typed


def test_off_a_terminal_nobody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_preemption() is None
    text = " ".join(capsys.readouterr().out.split())
    assert "Simulated on the demo workload (92 GPUs) under policy refold" in text
    assert demo_outlook().sentence in text
    assert "It is `consent`, unless refold.yaml has another value" in text


def test_the_figures_of_the_owners_own_jobs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    demo = demo_outlook()
    choose_preemption(PreemptionOutlook("my jobs", "las", 60, demo.always, demo.consent, demo.never))
    assert "Simulated on my jobs under policy las" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("typed", "chosen"), [(["always"], "always"), ([""], "consent"), (["yes", "NEVER "], "never"), (["c"], "consent")]
)
def test_on_a_terminal_the_owner_chooses(on_terminal: list[str], typed: list[str], chosen: str) -> None:
    on_terminal += typed
    assert choose_preemption() == chosen


def test_the_answer_of_the_first_start_is_written(
    on_terminal: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    on_terminal += ["never"]
    assert _choose_preemption(Config()) == Config(preemption=PreemptionRules("never"))
    assert read_config(tmp_path / "refold.yaml") == Config(preemption=PreemptionRules("never"))
    assert f"wrote {tmp_path}/refold.yaml; start the daemon in this folder" in capsys.readouterr().out


def test_an_answer_that_cannot_be_written_holds_until_the_daemon_ends(
    on_terminal: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refold.yaml").mkdir()
    on_terminal += ["always"]
    assert _choose_preemption(Config()).preemption == PreemptionRules("always")
    assert "refold.yaml cannot be written" in capsys.readouterr().err


def test_the_figures_of_the_demo_are_those_of_the_demo_page() -> None:
    page = (ROOT / "docs" / "results" / "demo.md").read_text(encoding="utf-8")
    rows = page.partition("\njobs that may be preempted ")[2].splitlines()[1:4]
    shown = [re.split(r"  +", row.replace(" *", "")) for row in rows]
    assert shown == [
        [
            who,
            format_duration(outcome.mean_wait or 0.0),
            format_duration(outcome.longest_wait or 0.0),
            str(outcome.preemptions),
            format_number(outcome.overhead_gpu_hours) if outcome.overhead_gpu_hours else "0.0",
        ]
        for who, outcome in demo_outlook().rows
    ]
