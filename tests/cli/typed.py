"""Commands as they are typed, without a process for each."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from refold.cli import app as command_line


def typed(*words: str) -> Result:
    """What comes of `refold WORDS`; mistakes of ours are raised, those of people are in the result."""
    return CliRunner().invoke(command_line.app, list(words))


def said(*words: str) -> str:
    """What the command prints, when all goes well."""
    result = typed(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def told(*words: str) -> Any:
    """The same with --json, read."""
    return json.loads(said(*words, "--json"))


class CommandLine:
    """The whole of `refold`, from its arguments to its exit status, as `main` runs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def refuses(self, *words: str) -> str:
        """The one line on stderr that says what is wrong; exit status 2 and nothing on stdout go with it."""
        self._monkeypatch.setattr(sys, "argv", ["refold", *words])
        with pytest.raises(SystemExit) as left:
            command_line.main()
        out, err = self._capsys.readouterr()
        assert (left.value.code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err
