"""How hot loops are compiled: once per machine, kept on disk, typed for the checker as the function they were.

Numba keeps a compiled function until the file that holds it changes, although it may have compiled others into
it. So here the sources of all kernels are part of what a kept function is known by: change one, and all are
compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from refold.model import units

F = TypeVar("F", bound=Callable[..., Any])

_FILES = [*sorted(Path(__file__).parent.glob("*.py")), Path(units.__file__)]
_SOURCES = sha256(b"".join(path.read_bytes() for path in _FILES)).hexdigest()


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk."""
    dispatcher: Any = numba.njit(cache=True, error_model="numpy")(function)
    with suppress(AttributeError):  # of a Numba that keeps its cache differently, or does not compile at all
        kept = dispatcher._cache._cache_file
        kept._source_stamp = (kept._source_stamp, _SOURCES)
        kept._load_index = _forgiving(kept._load_index)
    return cast(F, dispatcher)


def _forgiving(load_index: Callable[[], Any]) -> Callable[[], Any]:
    """What was kept by another version may name classes that are no more: then nothing was kept."""

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    return load


def inlined(function: F) -> F:
    """Compile into every caller: for the few lines inside a scan, where a call would cost more than they do."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


def _trailing_zeros(_typing: Any, word: Any) -> Any:
    """The index of the lowest set bit of a uint64 that is not 0: one machine instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate if word == types.uint64 else None


def _ones(_typing: Any, word: Any) -> Any:
    """How many bits of a uint64 are set: one machine instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate if word == types.uint64 else None


trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_trailing_zeros))
ones = cast(Callable[[np.uint64], int], intrinsic(_ones))
