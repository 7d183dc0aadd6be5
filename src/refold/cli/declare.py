"""Options and arguments of commands, declared in few words. Typer reads them from the annotations of parameters.

A parameter whose type is a dataclass is a group: it stands for one option per field. A field may itself be a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

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


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each group replaced by its options, in place; typer reads the signature."""
    hints = get_type_hints(command, include_extras=True)
    parameters = [one.replace(annotation=hints[one.name]) for one in signature(command).parameters.values()]
    options = [option for parameter in parameters for option in _options_of(parameter)]

    @wraps(command)
    def call(**values: Any) -> None:
        command(**{one.name: _value_of(one.name, one.annotation, values) for one in parameters})

    call.__signature__ = Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call


def _options_of(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the options of a group, or the parameter itself. All are keyword-only, since groups have no default."""
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for one in fields(parameter.annotation):
        default = Parameter.empty if one.default is MISSING else one.default
        yield from _options_of(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[one.name]))


def _value_of(name: str, annotation: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of an option, or a group built from the values of its options."""
    if not is_dataclass(annotation):
        return values[name]
    hints = get_type_hints(annotation, include_extras=True)
    return annotation(**{one.name: _value_of(one.name, hints[one.name], values) for one in fields(annotation)})  # type: ignore[operator]
