"""State of learning-rate schedulers and groups of parameters as values that JSON can express, and back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


def plain(value: Any) -> Any:
    """Return a value without tensors and scalars of NumPy: numbers instead."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def restored(value: Any, like: Any) -> Any:
    """Return a value that was JSON with the types of a similar one. JSON has no tensors, tuples or numbers as keys."""
    if isinstance(value, dict) and isinstance(like, dict):
        numbers = any(isinstance(key, int) for key in like)
        parts = {int(key) if numbers else key: part for key, part in value.items()}
        result = copy.copy(like)  # a Counter, for example
        result.clear()
        result.update({key: restored(part, like.get(key)) for key, part in parts.items()})
        return result
    if isinstance(value, list) and isinstance(like, list | tuple):
        parts_like = [*like, *[None] * len(value)]
        return type(like)(restored(part, part_like) for part, part_like in zip(value, parts_like, strict=False))
    return torch.full_like(like, value) if isinstance(like, Tensor) else value
