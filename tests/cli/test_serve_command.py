"""What `refold serve` prints when the daemon is ready."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.cli.commands.serve import _activation, _print_ready
from refold.server import DaemonReady


@pytest.mark.parametrize("home", ["state", "elsewhere"])
def test_commands_of_another_terminal_need_refold_home_only_if_the_state_folder_is_another(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / home))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # installed for all
    _print_ready(DaemonReady("http://127.0.0.1:7170", "rf_x", 0, 0, []), Path("state"))
    hint = f"  export REFOLD_HOME={tmp_path}/state\n" if home == "elsewhere" else ""
    assert capsys.readouterr().out.endswith(
        "next, in another terminal:\n"
        f"{hint}  refold submit -- python -c 'print(\"hello\")'\n  refold queue --watch\n  refold top\n  refold open\n"
    )


@pytest.mark.parametrize("has_activate", [True, False])
def test_another_terminal_finds_refold_after_the_printed_command(
    has_activate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    (folder / "refold").write_text("#!/bin/sh\necho found\n")
    (folder / "refold").chmod(0o755)
    if has_activate:
        (folder / "activate").write_text(f"PATH='{folder}':$PATH\n")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "prefix", str(folder.parent))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "state"))
    _print_ready(DaemonReady("http://127.0.0.1:7170", "rf_x", 0, 0, []), tmp_path / "state")
    command = capsys.readouterr().out.partition("next, in another terminal:\n")[2].splitlines()[0]
    shell = ["/bin/bash", "--norc", "-c", f"{command}; refold"]
    ran = subprocess.run(shell, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert ran.stdout == "found\n"


def test_a_program_that_every_terminal_finds_needs_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "refold"
    installed.write_text("")
    installed.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", "/somewhere/else")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _activation() is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--pool", "2"], "--pool, --pool-time and --pool-job need --on slurm"),
        (["serve", "--on", "slurm", "--pool-time", "never"], "--pool-time: 'never' is not a duration"),
        (
            ["serve", "--on", "slrum"],
            "Invalid value for '--on': 'slrum' is not one of 'local', 'kubernetes', 'slurm', 'ray'",
        ),
        (["compare", "--from", "slurm", "--since", "yesterday"], "--since: 'yesterday' is not a duration"),
    ],
)
def test_wrong_options_are_named(words: list[str], message: str, error_of: Callable[..., str]) -> None:
    assert error_of(*words).startswith(f"error: {message}")
