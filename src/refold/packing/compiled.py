"""How hot loops are compiled: once per machine, kept on disk, typed for the checker as the function they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """Compile into every caller: for the few lines inside a scan, where a call would cost more than they do."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


def _trailing_zeros(_typing: Any, word: Any) -> Any:
    """The index of the lowest set bit of a uint64 that is not 0: one machine instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate if word == types.uint64 else None


trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_trailing_zeros))
