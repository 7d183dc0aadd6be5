"""Descriptions of tensors as JSON: type and shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

Description = list[Any]
"""The name of a type, followed by a shape."""


def describe(dtype: torch.dtype, shape: Iterable[int]) -> Description:
    """Return the description of a tensor."""
    return [str(dtype).removeprefix("torch."), *shape]


def empty_tensor(description: Description, device: torch.device | None = None) -> Tensor:
    """Return an uninitialised tensor by its description."""
    dtype, *shape = description
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
