"""What `refold serve` prints when the daemon is ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold.cli.commands.serve import _print_ready
from refold.server import DaemonReady


@pytest.mark.parametrize("home", ["state", "elsewhere"])
def test_commands_of_another_terminal_need_refold_home_only_if_the_state_folder_is_another(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / home))
    monkeypatch.chdir(tmp_path)
    _print_ready(DaemonReady("http://127.0.0.1:7170", "rf_x", 0, 0, []), Path("state"))
    hint = f"  export REFOLD_HOME={tmp_path}/state\n" if home == "elsewhere" else ""
    assert capsys.readouterr().out.endswith(
        "next, in another terminal:\n"
        f"{hint}  refold submit -- python -c 'print(\"hello\")'\n  refold queue --watch\n  refold top\n  refold open\n"
    )


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
