"""The model of a command: of the catalogue, from a file of shapes, or a PyTorch module that a Python file builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.planning.perf import ModelShape


def read_or_trace_model(text: str) -> ModelShape:
    """Return a model; 'model.py' is traced with its function build(), 'model.py:other' with other()."""
    from refold.planning.catalogue import read_model

    file, _, function = text.partition(":")
    if Path(file).suffix != ".py":
        return read_model(text)
    from refold.errors import BadFile
    from refold.train import require_torch

    if not Path(file).is_file():
        raise BadFile(file, "does not exist")
    require_torch(f"tracing {file}")
    from refold.train import trace_file

    return trace_file(Path(file), function or "build")
