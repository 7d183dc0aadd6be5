"""The job class options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from refold.model import JobClass

CLASSES: tuple[JobClass, ...] = ("guaranteed", "best-effort")


def _complete_classes(incomplete: str) -> list[str]:
    return [name for name in CLASSES if name.startswith(incomplete)]


ClassName = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="CLASS", help="Job class: guaranteed or best-effort.", autocompletion=_complete_classes
    ),
]
OtherClass = Annotated[
    str | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="Also estimate with this job class: guaranteed or best-effort.",
        autocompletion=_complete_classes,
    ),
]


def parse_job_class(text: str) -> JobClass:
    """Parse the name of a job class."""
    from refold.errors import UnknownName

    for name in CLASSES:
        if name == text:
            return name
    raise UnknownName("job class", text, CLASSES)
