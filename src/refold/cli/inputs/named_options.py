"""Options with names as values, and options that describe the size of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import option
from refold.errors import BadFile, UnknownName

if TYPE_CHECKING:
    from refold.model import JobClass, LaunchEngine
    from refold.planning.perf import ModelShape

CLASSES: tuple[JobClass, ...] = ("guaranteed", "best-effort")


def _complete(incomplete: str) -> list[str]:
    from refold.model import LAUNCH_ENGINES

    return [name for name in LAUNCH_ENGINES if name.startswith(incomplete)]


LaunchEngineName = Annotated[
    str | None,
    option(
        "NAME",
        "Training framework of the command, which gets the plan as its arguments: megatron, "
        "deepspeed, fsdp, accelerate or trainer.",
        "--engine",
        complete=_complete,
    ),
]

LaunchTargetName = Annotated[
    str | None,
    option(
        "NAME",
        "Only plans that this framework can run, and how to start the best: megatron, deepspeed, fsdp"
        " (or torchrun), accelerate or trainer.",
        "--launch",
        complete=_complete,
    ),
]


GpuTotal = Annotated[
    str | None, option("N", "Total GPUs: a number, a share (0.5) or a range (2..8) (default: 1).", "--gpus")
]

InstanceCount = Annotated[
    int | None, option("N", "Number of processes, started as a gang (default: 1).", "--instances", min=1)
]

RequiredLevel = Annotated[
    str | None, option("LEVEL", "Place all instances in one domain of this level.", "--required-level")
]

PreferredLevel = Annotated[
    str | None, option("LEVEL", "Place all instances in one domain of it if they fit.", "--preferred-level")
]

Segment = Annotated[
    str | None, option("N[:LEVEL]", "Place every N instances in one domain (default: innermost).", "--segment")
]

Switches = Annotated[
    str | None, option("N[@TIME]", "Wait for N innermost domains, for so long (default: 5m).", "--switches")
]


def parse_launch_engine(text: str) -> LaunchEngine:
    """Parse the name of a training framework that can be told a plan; torchrun starts PyTorch's own, FSDP."""
    from refold.model import LAUNCH_ENGINES

    if text.lower() == "torchrun":
        return "fsdp"
    for name in LAUNCH_ENGINES:
        if name == text.lower():
            return name
    raise UnknownName("launch engine", text, LAUNCH_ENGINES)


def read_or_trace_model(text: str) -> ModelShape:
    """Return a model; 'model.py' is traced with its function build(), 'model.py:other' with other()."""
    from refold.planning.catalogue import read_model

    file, _, function = text.partition(":")
    if Path(file).suffix != ".py":
        return read_model(text)
    from refold.train import require_torch

    if not Path(file).is_file():
        raise BadFile(file, "does not exist")
    require_torch(f"tracing {file}")
    from refold.train import trace_file

    return trace_file(Path(file), function or "build")


def _complete_classes(incomplete: str) -> list[str]:
    return [name for name in CLASSES if name.startswith(incomplete)]


ClassName = Annotated[
    str | None, option("CLASS", "Job class: guaranteed or best-effort.", "--class", complete=_complete_classes)
]
OtherClass = Annotated[
    str | None,
    option(
        "CLASS", "Also estimate with this job class: guaranteed or best-effort.", "--class", complete=_complete_classes
    ),
]


def parse_job_class(text: str) -> JobClass:
    for name in CLASSES:
        if name == text:
            return name
    raise UnknownName("job class", text, CLASSES)
