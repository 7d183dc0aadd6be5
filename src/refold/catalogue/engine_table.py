"""Built-in training frameworks, looked up by name."""

from __future__ import annotations

from functools import cache

import msgspec

from refold.catalogue.builtin import model_key, read_table
from refold.errors import UnknownName
from refold.perf import Engine

DEFAULT_ENGINE = "megatron"
"""The engine that commands use by default."""


class _EngineTable(msgspec.Struct, forbid_unknown_fields=True):
    """Contents of `engines.yaml`."""

    engines: tuple[Engine, ...]


@cache
def engines() -> tuple[Engine, ...]:
    """Return all engines of the catalogue, the current ones first."""
    return read_table("engines.yaml", _EngineTable).engines


def find_engine(name: str) -> Engine:
    """Return the engine of that name."""
    by_key = {model_key(engine.name): engine for engine in engines()}
    match = by_key.get(model_key(name))
    if match is None:
        raise UnknownName("engine", name, [engine.name for engine in engines()])
    return match
