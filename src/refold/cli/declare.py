"""Declare options and arguments of commands in few words; typer reads them from the annotations of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def option(
    metavar: str,
    help: str,
    *flags: str,
    min: float | None = None,
    max: float | None = None,
    complete: Callable[..., list[str]] | None = None,
    show_default: bool = True,
) -> Any:
    """Return an option with a value. Without `flags`, it is named like its parameter."""
    return typer.Option(
        *flags, metavar=metavar, help=help, min=min, max=max, autocompletion=complete, show_default=show_default
    )


def switch(flag: str, help: str, *flags: str, show_default: bool = True) -> Any:
    """Return an option without a value."""
    return typer.Option(flag, *flags, help=help, show_default=show_default)


def argument(
    metavar: str, help: str, *, complete: Callable[..., list[str]] | None = None, show_default: bool = True
) -> Any:
    """Return an argument."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=show_default)
