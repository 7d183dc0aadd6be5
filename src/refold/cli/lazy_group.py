"""All commands, as `refold --help` lists them. Of a command that is typed, only its own module is imported."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command


class CommandEntry(NamedTuple):
    """A command: a line for people, and `module:function` (or the sub-commands, which are one too)."""

    summary: str
    where: str


SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "The scheduler of this machine": {
        "serve": CommandEntry("Run it: a daemon that the commands below ask.", "serve:serve"),
        "init": CommandEntry("Write a commented refold.yaml for it.", "init:init"),
        "run": CommandEntry("Without it: run a list of commands, and end.", "run:run"),
    },
    "Jobs": {
        "submit": CommandEntry("Submit a job: a file, a script, or a command.", "submit:submit"),
        "queue": CommandEntry("Who runs, who waits, why, and when they may start.", "queue:queue"),
        "why": CommandEntry("What became of a job, and why.", "why:why"),
        "whatif": CommandEntry("When would a job start and end, if it were submitted?", "whatif:whatif"),
        "logs": CommandEntry("What a job prints.", "logs:logs"),
        "cancel": CommandEntry("Cancel jobs.", "cancel:cancel"),
        "hold": CommandEntry("Hold jobs: they are not started.", "hold:hold"),
        "release": CommandEntry("Release jobs that were held.", "release:release"),
        "history": CommandEntry("Jobs that are over, and how they ended.", "history:history"),
    },
    "The cluster": {
        "top": CommandEntry("Every GPU: memory, load, heat, power, whose job.", "top:top"),
        "nodes": CommandEntry("The nodes, and what of them is free.", "nodes:nodes"),
        "drain": CommandEntry("Give a node, or one GPU, no more work.", "drain:drain"),
        "resume": CommandEntry("Give it work again.", "resume:resume"),
        "tenants": CommandEntry("The tenants: quota, use, what they wait for.", "tenants:tenants"),
        "token": CommandEntry("Who may ask the daemon, and for what.", "token:app"),
        "events": CommandEntry("What happens, a line each.", "events:events"),
        "snapshot": CommandEntry("The present as a file, to compare policies on.", "snapshot:snapshot"),
        "report": CommandEntry("Measures and pictures of what has happened.", "report:report"),
    },
    "What policies would do": {
        "compare": CommandEntry("Compare policies on a trace: a table, a report.", "compare:compare"),
        "simulate": CommandEntry("Simulate one policy on a trace, and measure it.", "simulate:simulate"),
        "replay": CommandEntry("Replay a journal, or ask another policy.", "replay:replay"),
        "predict": CommandEntry("How well the durations of a trace are foreseen.", "predict:predict"),
        "policies": CommandEntry("List policies, their settings, and placement rules.", "policies:policies"),
        "trace": CommandEntry("Look into job histories, convert them, make new ones.", "trace:app"),
    },
    "Plans and speeds": {
        "plan": CommandEntry("Find the best plans for a model on given GPUs.", "plan:plan"),
        "curve": CommandEntry("Show how much faster a model trains on more GPUs.", "curve:curve"),
        "profile": CommandEntry("Measure training steps of a model on this machine.", "profile:profile"),
        "fit": CommandEntry("Fit the model of a job to steps that were measured.", "fit:fit"),
        "models": CommandEntry("List the models of the catalogue.", "models:models"),
        "gpus": CommandEntry("List the GPUs of the catalogue.", "gpus:gpus"),
        "engines": CommandEntry("List the training frameworks of the catalogue.", "engines:engines"),
    },
}

COMMANDS: dict[str, CommandEntry] = {name: listed for section in SECTIONS.values() for name, listed in section.items()}


class _Commands(MutableMapping[str, Any]):
    """Commands by their names, each made when somebody asks for it."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, COMMANDS[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _made(name: str, listed: CommandEntry) -> Any:
    """The command as typer makes it: as the only one of a group."""
    module, _, attribute = listed.where.partition(":")
    imported = import_module(f"refold.cli.commands.{module}")
    found = getattr(imported, attribute)
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    group.callback()(_nothing)
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=name)
    else:
        group.command(name, cls=getattr(imported, "COMMAND_CLASSES", {}).get(name))(found)
    made: Any = get_command(group)
    return made.commands[name]


def _nothing() -> None:
    """What a group does itself."""


class CommandGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": None})
        self.commands = _Commands()

    def list_commands(self, *_: Any) -> list[str]:
        """Their names, in the order of the table."""
        return list(COMMANDS)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """What `refold --help` says of them."""
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, listed.summary) for name, listed in section.items()])
