"""`refold` as a process: help, exit status, pipes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_service import Served
from typer.core import TyperGroup
from typer.main import get_command

from refold.api.wire import Submission
from refold.cli import lazy_group
from refold.cli.app import UsageError, app
from refold.cli.views.output import Column, Table, output_width, print_json, print_tables, printable, say

Said = Callable[..., str]
ROOT = Path(__file__).parents[2]


COMMANDS = [
    "serve",
    "init",
    "run",
    "submit",
    "queue",
    "why",
    "whatif",
    "logs",
    "cancel",
    "hold",
    "release",
    "history",
    "top",
    "nodes",
    "drain",
    "resume",
    "tenants",
    "token",
    "events",
    "snapshot",
    "report",
    "compare",
    "simulate",
    "replay",
    "predict",
    "policies",
    "trace",
    "plan",
    "curve",
    "profile",
    "fit",
    "models",
    "gpus",
    "engines",
]


def refold(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refold.cli.app", *words]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)


def test_help_lists_every_command_in_sections(said: Said) -> None:
    listed = said("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in listed
    assert list(lazy_group.COMMANDS) == COMMANDS
    assert [line for line in listed.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Options:",
        "The scheduler of this machine:",
        "Jobs:",
        "The cluster:",
        "What policies would do:",
        "Plans and speeds:",
    ]


HEAVY = ("numpy", "numba", "rich", "refold.core", "refold.policies")
PROGRAM = (
    "import sys; from refold.cli.app import _status; status = _status();"
    f"print([name for name in {HEAVY} if name in sys.modules], status, file=sys.stderr)"
)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("queue", "--help"), ("submit", "--help")])
def test_help_needs_none_of_the_heavy_libraries(words: tuple[str, ...]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert ended.stderr == "[] 0\n"


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "--json"),
        ("history", "--json"),
        ("submit", "--gpus", "2", "--", "true"),
        ("cancel", "1"),
        ("logs", "1"),
        ("events",),
        ("nodes", "--json"),
    ],
    ids=lambda words: words[0],
)
def test_asking_the_daemon_needs_none_of_them(words: tuple[str, ...], served: Served) -> None:
    served.do(served.service.add, Submission("train", ["true"]))
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert ended.stderr == "[] 0\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_gives_an_example_or_a_hint(command: str, said: Said) -> None:
    assert len(said(command, "--help").splitlines()) > 5


def test_bad_input_as_a_process_is_one_line_and_status_2() -> None:
    ended = refold("simulate", "nothing.csv", "--cluster", "2x4")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: nothing.csv: no such file\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m refold.cli.app policies --json | head -n 1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.stdout == "{\n"
    assert ended.stderr == ""


def test_a_reader_that_goes_away_ends_it_as_it_ends_other_commands() -> None:
    command = f"{sys.executable} -m refold.cli.app trace show demo --json | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_output_that_cannot_say_it_all_is_no_error(variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "refold.cli.app", "trace", "show", "demo"]
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"?" in ended.stdout


def test_nothing_typed_is_answered_with_help() -> None:
    ended = refold()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: ")


def test_a_full_disk_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    ended = refold("simulate", "demo", "--limit", "50", "--journal", str(full))
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: /dev/full: cannot be written: No space left")
    assert ended.stderr.count("\n") == 1


def test_what_goes_to_a_pipe_need_not_fit_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_width() >= 200


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\tb\x1b[31m\x9b2J\x7f\u202e\udc80"
    assert printable(evil) == "a b�[31m�2J���"
    say(evil)
    say(evil, err=True)
    print_tables(Table(evil, {"x": Column("x")}, [{"x": evil}], after=[evil]))
    print_json({"x": evil[:-1]})
    out, err = capsys.readouterr()
    assert all(one.isprintable() or one in {"\n", "\u202e"} for one in out + err)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def typed_on(page: Path) -> list[str]:
    """What is typed on a page, command by command, also what no test can run; `refold --version` and its like apart."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    typed = [part.strip() for line in lines for part in re.split(r" [|&>] | && |; ", line)]
    return [part for part in typed if part.startswith("refold ") and not part.startswith("refold -")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_line_of_the_documentation_can_be_typed(page: Path) -> None:
    """Options that act as soon as they are read, such as those that install completion, are none of a command's."""
    for line in typed_on(page):
        words, command = shlex.split(line)[1:], get_command(app)
        while isinstance(command, TyperGroup):
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
        try:
            command.make_context(command.name, words)
        except UsageError as error:
            pytest.fail(f"{page.name}: {line}: {error.format_message()}")
