"""The classes of jobs, as options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from refold.model import JobClass

CLASSES: tuple[JobClass, ...] = ("guaranteed", "best-effort")


def _classes_beginning(incomplete: str) -> list[str]:
    return [name for name in CLASSES if name.startswith(incomplete)]


ClassName = Annotated[
    str | None,
    typer.Option("--class", metavar="CLASS", help="guaranteed or best-effort.", autocompletion=_classes_beginning),
]
OtherClass = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="CLASS", help="Also as guaranteed, or as best-effort.", autocompletion=_classes_beginning
    ),
]


def class_from(text: str) -> JobClass:
    """A class of jobs, by its name."""
    from refold.errors import UnknownName

    for name in CLASSES:
        if name == text:
            return name
    raise UnknownName("class", text, CLASSES)
