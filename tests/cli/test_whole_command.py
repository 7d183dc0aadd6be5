"""`refold` as a process: help, exit status, pipes; and the commands in the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from fake_service import FakeServer
from typer.core import TyperGroup
from typer.main import get_command

from refold.cli import lazy_group
from refold.cli.lazy_group import UsageError, app
from refold.cli.views.output import output_width, print_json, print_line, printable
from refold.cli.views.tables import Column, Table, print_tables
from refold.client.api.submissions import Submission

TextOf = Callable[..., str]
ROOT = Path(__file__).parents[2]


COMMANDS = [
    "serve",
    "open",
    "init",
    "run",
    "submit",
    "queue",
    "why",
    "whatif",
    "logs",
    "attach",
    "shell",
    "cancel",
    "hold",
    "release",
    "history",
    "top",
    "nodes",
    "drain",
    "resume",
    "tenants",
    "users",
    "token",
    "events",
    "snapshot",
    "backup",
    "restore",
    "report",
    "compare",
    "tune",
    "simulate",
    "show",
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


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        (("simulate",), "Random seed of the faults (default: 0). [≥ 0]", str(2**62)),
        (("submit",), "[0 to 1000]", "<="),
        (("submit",), "started as a gang (default: 1). [≥ 1]", ">="),
    ],
)
def test_ranges_of_numbers_are_words_and_leave_out_limits_of_the_implementation(
    words: tuple[str, ...], shown: str, hidden: str, stdout_of: TextOf
) -> None:
    text = " ".join(stdout_of(*words, "--help").split())
    assert shown in text
    assert hidden not in text


def test_help_lists_every_command_in_sections(stdout_of: TextOf) -> None:
    listed = stdout_of("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in listed
    assert list(lazy_group.COMMANDS) == COMMANDS
    assert [line for line in listed.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Options:",
        "Daemon:",
        "Jobs:",
        "Cluster:",
        "Simulation:",
        "Plans and performance:",
    ]


HEAVY = ("numpy", "rich", "refold.core", "refold.placement", "refold.policies")
PROGRAM = (
    "import sys; from refold.cli.app import _run; status = _run();"
    f"print([name for name in {HEAVY} if name in sys.modules], status, file=sys.stderr)"
)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("queue", "--help"), ("submit", "--help")])
def test_help_imports_no_heavy_libraries(words: tuple[str, ...]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert ended.stderr == "[] 0\n"


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "--json"),
        ("submit", "--gpus", "2", "--", "true"),
        ("logs", "1"),
        ("events",),
    ],
    ids=lambda words: words[0],
)
def test_commands_of_the_daemon_import_no_heavy_libraries(words: tuple[str, ...], served: FakeServer) -> None:
    served.call(served.service.add, Submission("train", ["true"]))
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert ended.stderr == "[] 0\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, stdout_of: TextOf) -> None:
    assert len(stdout_of(command, "--help").splitlines()) > 5


SUBCOMMANDS = [("token", "new"), ("token", "revoke"), ("trace", "show"), ("trace", "convert"), ("trace", "generate")]


@pytest.mark.parametrize("words", [*((command,) for command in COMMANDS), *SUBCOMMANDS], ids=" ".join)
def test_values_in_help_are_named_by_what_they_are_and_not_by_python_types(
    words: tuple[str, ...], stdout_of: TextOf
) -> None:
    assert re.findall(r"<[a-z]\S*|\[\[\w+\]\]", stdout_of(*words, "--help")) == []


def test_bad_input_gives_a_one_line_error_and_status_2() -> None:
    ended = refold("simulate", "nothing.csv", "--cluster", "2x4")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: nothing.csv: no such file\n"


def test_a_broken_pipe_prints_no_error() -> None:
    command = f"{sys.executable} -m refold.cli.app policies --json | head -n 1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.stdout == "{\n"
    assert ended.stderr == ""


def test_a_broken_pipe_gives_status_141() -> None:
    command = f"{sys.executable} -m refold.cli.app trace show demo --json | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_characters_that_the_output_cannot_encode_are_replaced(variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "refold.cli.app", "trace", "show", "demo"]
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"?" in ended.stdout


def test_without_arguments_the_help_is_shown() -> None:
    ended = refold()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: ")


def test_a_full_disk_gives_a_one_line_error() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    ended = refold("simulate", "demo", "--limit", "50", "--journal", str(full))
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: /dev/full: cannot be written: No space left")
    assert ended.stderr.count("\n") == 1


def test_output_to_a_pipe_is_wider_than_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_width() >= 200


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\tb\x1b[31m\x9b2J\x7f\u202e\udc80"
    assert printable(evil) == "a b�[31m�2J���"
    print_line(evil)
    print_line(evil, err=True)
    print_tables(Table(evil, [Column("x", str)], [evil], after=[evil]))
    print_json({"x": evil[:-1]})
    out, err = capsys.readouterr()
    assert all(one.isprintable() or one in {"\n", "\u202e"} for one in out + err)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_on(page: Path) -> Iterator[list[str]]:
    """Yield the words of the commands in the shell blocks of a page, except `refold --version` and the like."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        if "refold " in line.partition(" #")[0]:
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            words.whitespace_split = True
            for is_between, part in groupby(words, lambda word: not set(word) - set("|&;<>")):
                command = list(part)
                if not is_between and command[0] == "refold" and not command[1].startswith("-"):
                    yield command[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_documentation_parses(page: Path) -> None:
    for line in commands_on(page):
        words, command = line, get_command(app)
        while isinstance(command, TyperGroup):
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
        try:
            command.make_context(command.name, words)
        except UsageError as error:
            pytest.fail(f"{page.name}: {line}: {error.format_message()}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("top", "--interval", "5"), "--interval is no longer an option: the screen is refreshed every two seconds"),
        (("tune", "demo", "--report-share=0.3"), "--report-share is no longer an option: settings are chosen on the"),
        (("top", "--intervall", "5"), "No such option: --intervall; see refold top --help"),
    ],
)
def test_a_removed_option_is_rejected_with_what_to_do_without_it(
    error_of: Callable[..., str], words: tuple[str, ...], message: str
) -> None:
    assert error_of(*words).startswith(f"error: {message}")
