"""The typer application with all commands."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from refold import __version__
from refold.cli.lazy_group import CommandGroup

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
        print(f"refold {__version__}")
        raise typer.Exit


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
