"""Print the manual page of all commands, from their help: `make man`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

import refold.cli.app  # noqa: F401  # as users start it
from refold.cli.lazy_group import SECTIONS, app

HEAD = r""".TH REFOLD 1 "" "Refold" "User Commands"
.SH NAME
refold \- a scheduler for shared GPU clusters
.SH SYNOPSIS
.B refold
.I COMMAND
[\fIOPTIONS\fR] [\fIARGUMENTS\fR]
.SH DESCRIPTION
Simulate policies on your job history, then run them. \fBrefold \fICOMMAND\fB \-\-help\fR shows the same as below."""

TAIL = r""".SH ENVIRONMENT
.TP
.B REFOLD_ADDRESS, REFOLD_TOKEN
Address of the daemon, and access token (default: those of the daemon of this user).
.TP
.B REFOLD_HOME
State folder (default: ~/.refold).
.SH EXIT STATUS
0 on success, 1 if the answer is no or a job failed, 2 for bad input."""


def escape(text: str) -> str:
    """Return a text as one line of a manual page."""
    line = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{line}" if line.startswith((".", "'")) else line


def lines() -> Iterator[str]:
    """Yield the lines of the manual page."""
    yield HEAD
    group: Any = get_command(app)
    for section, entries in SECTIONS.items():
        yield f".SH {section.upper()} COMMANDS"
        for name in entries:
            yield from command_lines(f"refold {name}", group.commands[name])
    yield TAIL


def command_lines(name: str, command: Any) -> Iterator[str]:
    """Yield the lines of a command and its subcommands."""
    subcommands = getattr(command, "commands", None)
    if subcommands:
        for each in subcommands:
            yield from command_lines(f"{name} {each}", subcommands[each])
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = " ".join(one.metavar or one.name.upper() for one in arguments)
    yield f".SS {escape(name)} {escape(words)}".rstrip()
    for paragraph in (command.help or "").split("\n\n"):
        yield escape(paragraph)
        yield ".PP"
    for one in command.params:
        if one.param_type_name == "argument" or getattr(one, "hidden", False):
            continue
        names = ", ".join([*one.opts, *one.secondary_opts])
        value = "" if one.is_flag else f" \\fI{escape(one.metavar or one.name.upper())}\\fR"
        yield ".TP"
        yield rf"\fB{escape(names)}\fR{value}"
        yield escape(one.help or "")


def render() -> str:
    """Return the manual page."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    print(render(), end="")
