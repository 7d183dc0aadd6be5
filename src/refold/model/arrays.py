"""Arrays as kernels take them."""

from __future__ import annotations

from typing import TypeVar, cast

Array = TypeVar("Array")


def view(array: Array) -> Array:
    """Return a view of an array whose elements are Python's numbers: kernels that are not compiled rely on these."""
    return cast(Array, memoryview(array))  # type: ignore[arg-type]
