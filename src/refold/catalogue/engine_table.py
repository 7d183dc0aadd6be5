"""The training frameworks that come with the package, found by name."""

from __future__ import annotations

from functools import cache

import msgspec

from refold.catalogue.builtin import document, model_key
from refold.documents import as_struct
from refold.errors import UnknownName
from refold.perf import Engine

USUAL = "megatron"
"""The engine that commands assume."""


class _EngineTable(msgspec.Struct, forbid_unknown_fields=True):
    """The file of engines."""

    engines: tuple[Engine, ...]


@cache
def engines() -> tuple[Engine, ...]:
    """Every engine of the catalogue, the usual ones first."""
    return as_struct("engines.yaml", document("engines.yaml"), _EngineTable).engines


def find_engine(name: str) -> Engine:
    """The engine of that name."""
    by_key = {model_key(engine.name): engine for engine in engines()}
    found = by_key.get(model_key(name))
    if found is None:
        raise UnknownName("engine", name, [engine.name for engine in engines()])
    return found
