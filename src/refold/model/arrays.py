"""Arrays as kernels take them."""

from __future__ import annotations

from math import prod
from mmap import mmap
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

Array = TypeVar("Array")


def view(array: Array) -> Array:
    """Return a view of an array whose elements are Python's numbers: kernels that are not compiled rely on these."""
    return cast(Array, memoryview(array))  # type: ignore[arg-type]


def zeros_on_demand(shape: tuple[int, ...], kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return an array of zeros that takes memory only as it is used.

    `numpy.zeros` does so, too, unless it gets memory that was used before, which it sets to zero at once.
    """
    return np.frombuffer(mmap(-1, prod(shape) * np.dtype(kind).itemsize), kind).reshape(shape)
