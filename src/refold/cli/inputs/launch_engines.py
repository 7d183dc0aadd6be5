"""The option that names the training framework of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from refold.model import LaunchEngine


def _complete(incomplete: str) -> list[str]:
    from refold.model import LAUNCH_ENGINES

    return [name for name in LAUNCH_ENGINES if name.startswith(incomplete)]


LaunchEngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Training framework of the command, which gets the plan as its arguments: megatron, deepspeed, fsdp, "
        "accelerate or trainer.",
        autocompletion=_complete,
    ),
]

LaunchTargetName = Annotated[
    str | None,
    typer.Option(
        "--launch",
        metavar="NAME",
        help="Only plans that this framework can run, and how to start the best: megatron, deepspeed, fsdp (or "
        "torchrun), accelerate or trainer.",
        autocompletion=_complete,
    ),
]


def parse_launch_engine(text: str) -> LaunchEngine:
    """Parse the name of a training framework that can be told a plan; torchrun starts PyTorch's own, FSDP."""
    from refold.errors import UnknownName
    from refold.model import LAUNCH_ENGINES

    if text.lower() == "torchrun":
        return "fsdp"
    for name in LAUNCH_ENGINES:
        if name == text.lower():
            return name
    raise UnknownName("launch engine", text, LAUNCH_ENGINES)
