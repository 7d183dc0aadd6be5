"""The table of commands shown by `refold --help`. A command's module is imported only when the command is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from refold import __version__


class CommandEntry(NamedTuple):
    """A command: its summary in `refold --help`, and `module:attribute` of its function or group of subcommands."""

    summary: str
    target: str


SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "Daemon": {
        "serve": CommandEntry("Start the scheduler daemon.", "serve:serve"),
        "open": CommandEntry("Open the web UI.", "show:open_web_ui"),
        "init": CommandEntry("Write a commented refold.yaml.", "serve:init"),
        "run": CommandEntry("Run a list of jobs without a daemon.", "run:run"),
    },
    "Jobs": {
        "submit": CommandEntry("Submit a job: a file, a script, or a command.", "submit:submit"),
        "queue": CommandEntry("Show jobs, why they wait and when they may start.", "queue:queue"),
        "why": CommandEntry("Show the history of a job and the reason for each change.", "why:why"),
        "whatif": CommandEntry("Estimate when a job would start and end.", "whatif:whatif"),
        "logs": CommandEntry("Show job output.", "logs:logs"),
        "attach": CommandEntry("Follow a job until it ends.", "attach:attach"),
        "shell": CommandEntry("Open a shell on allocated GPUs.", "shell:shell"),
        "cancel": CommandEntry("Cancel jobs.", "cancel:cancel"),
        "hold": CommandEntry("Hold jobs so that they do not start.", "cancel:hold"),
        "release": CommandEntry("Release held jobs.", "cancel:release"),
        "history": CommandEntry("List ended jobs.", "history:history"),
    },
    "Cluster": {
        "top": CommandEntry("Show GPU memory, utilisation, temperature, power and jobs.", "top:top"),
        "nodes": CommandEntry("List nodes and their free GPUs.", "nodes:nodes"),
        "drain": CommandEntry("Stop scheduling jobs on a node or GPU.", "drain:drain"),
        "resume": CommandEntry("Return a drained node or GPU to service.", "drain:resume"),
        "tenants": CommandEntry("List tenants with quota, usage and demand.", "tenants:tenants"),
        "users": CommandEntry("List users with their jobs and GPU time used.", "tenants:users"),
        "token": CommandEntry("Manage access tokens.", "token:app"),
        "events": CommandEntry("Show scheduler events.", "events:events"),
        "snapshot": CommandEntry("Save the current state to a file.", "snapshot:snapshot"),
        "backup": CommandEntry("Back up the daemon's store.", "backup:backup"),
        "restore": CommandEntry("Restore the daemon's store from a backup.", "backup:restore"),
        "report": CommandEntry("Write a report of recorded jobs.", "report:report"),
    },
    "Simulation": {
        "compare": CommandEntry("Compare policies on a trace.", "compare:compare"),
        "tune": CommandEntry("Choose the settings of a policy on a job history.", "tune:tune"),
        "simulate": CommandEntry("Simulate one policy on a trace.", "simulate:simulate"),
        "show": CommandEntry("Show a journal in the web UI.", "show:show"),
        "replay": CommandEntry("Replay a journal, with its own or another policy.", "replay:replay"),
        "predict": CommandEntry("Evaluate run-time predictions on a trace.", "predict:predict"),
        "policies": CommandEntry("List policies, their settings, and placement rules.", "policies:policies"),
        "trace": CommandEntry("Inspect, convert and generate traces.", "trace:app"),
    },
    "Plans and performance": {
        "plan": CommandEntry("Find the best plans for a model on given GPUs.", "plan:plan"),
        "curve": CommandEntry("Show how training throughput scales with GPUs.", "curve:curve"),
        "profile": CommandEntry("Measure training steps of a model on this machine.", "profile:profile"),
        "fit": CommandEntry("Fit the performance model to measured steps.", "fit:fit"),
        "models": CommandEntry("List the models in the catalogue.", "models:models"),
        "gpus": CommandEntry("List the GPUs in the catalogue.", "models:gpus"),
        "engines": CommandEntry("List the training frameworks in the catalogue.", "models:engines"),
    },
}

COMMANDS: dict[str, CommandEntry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class _LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each loaded on first access."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load_command(name, COMMANDS[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _load_command(name: str, entry: CommandEntry) -> Any:
    """Import the command's module and build the command, as the only member of a temporary typer group."""
    module, _, attribute = entry.target.partition(":")
    imported = import_module(f"refold.cli.commands.{module}")
    command = getattr(imported, attribute)
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    group.callback()(_do_nothing)
    if isinstance(command, typer.Typer):
        group.add_typer(command, name=name)
    else:
        group.command(name, cls=getattr(imported, "COMMAND_CLASSES", {}).get(name))(command)
    built: Any = get_command(group)
    built = built.commands[name]
    for subcommand in getattr(built, "commands", {name: built}).values():
        _hide_argument_types(subcommand)
        _simplify_ranges(subcommand)
        _convert_lazily(subcommand)
    return built


def _hide_argument_types(command: Any) -> None:
    """Show arguments as 'JOB', not as 'JOB <list[str]>', which new versions of typer print."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005


MANY_DIGITS = 19
"""Python refuses to convert thousands of digits, and limits with so many are of no use to anyone."""

_RANGE = re.compile(r"x>=([\d.]+)|([\d.]+)<=x<=([\d.]+)")


def _simplify_ranges(command: Any) -> None:
    """Show the range of a number as '≥ 0' or '1 to 256', not as 'x>=0' or '1<=x<=256'."""

    def simplify(record: tuple[str, str] | None) -> tuple[str, str] | None:
        return record and (record[0], _RANGE.sub(_format_range, record[1]))

    for parameter in command.params:
        get_record = parameter.get_help_record
        parameter.get_help_record = lambda ctx, get_record=get_record: simplify(get_record(ctx))


def _format_range(match: re.Match[str]) -> str:
    low, high = match[1] or match[2], match[3] or ""
    return f"{low} to {high}" if 0 < len(high) < MANY_DIGITS else f"≥ {low}"


def _convert_lazily(command: Any) -> None:
    """Let typer build the converter of an option only for a value that needs one, since that imports pydantic.

    Versions of typer without pydantic have no `get_runtime_param`.
    """
    get_params = command.get_params

    def get_lazy_params(ctx: Any) -> list[Any]:
        parameters: list[Any] = get_params(ctx)
        for parameter in parameters:
            if build := getattr(parameter, "get_runtime_param", None):
                parameter.get_runtime_param = partial(_LazyConverter, build)
        return parameters

    command.get_params = get_lazy_params


class _LazyConverter:
    """Converts the value of an option; the usual values without the converter of typer."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        expected = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is expected or (expected is Path and isinstance(value, Path)):
            return value
        if expected == list[str] and not isinstance(value, str):
            return list(value)
        if isinstance(value, str) and (plain := _convert_plain(value, param.type_descriptor)) is not None:
            return plain
        return self._build().coerce(value, param=param, ctx=ctx)


def _convert_plain(value: str, expected: Any) -> Any:
    """Convert a number in digits within its range, the value of an enumeration, or a path; None: ask typer."""
    kind, about = expected.annotation, expected.parameter_info
    if kind is int and value.isascii() and value.isdigit() and len(value) < MANY_DIGITS:
        number = int(value)
        above, below = about.min is not None and number < about.min, about.max is not None and number > about.max
        return None if above or below else number
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next((member for member in kind if member.value == value), None)
    if kind is Path and not (about.exists or about.resolve_path):
        return Path(value)
    return None


def _do_nothing() -> None:
    """Callback of the temporary group: without one, typer collapses a group of one command into the command."""


class CommandGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": None})
        _convert_lazily(self)
        self.commands = _LazyCommands()

    def list_commands(self, *_: Any) -> list[str]:
        """Return the command names in the order of the help text."""
        return list(COMMANDS)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the sections of `refold --help`."""
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()])


# The typer application with all commands.

# Plain help: rich markup costs a tenth of a second. No pretty tracebacks: users never see a traceback.
app = typer.Typer(
    name="refold",
    cls=CommandGroup,
    help="A scheduler for shared GPU clusters: simulate policies on your job history, then run them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The base class of typer's usage errors, which typer does not export.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def _print_version(requested: bool) -> None:
    if requested:
        commit = _find_commit()
        print(f"refold {__version__}" + (f" (commit {commit})" if commit else ""))
        raise typer.Exit


def _find_commit() -> str:
    """Return the commit from which the package was built, or that of its checkout; '' if it is not known."""
    package = Path(__file__).parents[1]
    built, checkout = package / "_commit.txt", package.parents[1]
    if built.exists():
        return built.read_text(encoding="utf-8").strip()
    if not (checkout / ".git").exists():
        return ""
    import subprocess

    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A scheduler for shared GPU clusters: simulate policies on your job history, then run them."""


def run_command() -> int:
    """Run the command of this process and return its exit status. Usage errors are raised as exceptions of typer."""
    status = app(prog_name="refold", standalone_mode=False)
    return status if isinstance(status, int) else 0
