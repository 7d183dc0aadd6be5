"""Objects that a script registers with its session: their state is part of checkpoints and of changes of the plan."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from refold.errors import BadInput

_DATA = "refold.data"
"""The name under which the position in the training data is stored."""


class _Access(NamedTuple):
    """How the state of an object is read and set."""

    read: Callable[[], Any]
    set: Callable[[Any], Any]


class UserState:
    """The registered objects. State is that of rank 0; ranks that keep their processes keep their objects."""

    def __init__(self, data_state: Callable[[int], Any]) -> None:
        """`data_state`: returns what is needed to read the batch of a step, besides its number."""
        self._data_state = data_state
        self._objects: dict[str, _Access] = {}
        self._waiting: dict[str, Any] = {}
        self._checked: set[str] = set()

    def register(self, name: str, item: Any) -> None:
        """Register an object; set its state if there is some of this name."""
        if name in self._objects:
            raise BadInput(f"{name!r} is registered already")
        access = self._objects[name] = _access(name, item)
        if name in self._waiting:
            access.set(self._waiting.pop(name))

    def encode(self, step: int) -> Tensor | None:
        """Return the state of all objects on rank 0 as bytes, on all ranks; None if there is none. Collective."""
        shared: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                shared[0] = self._encoded(step)
            except BadInput as error:
                shared[0] = str(error)
        if dist.get_world_size() > 1:
            dist.broadcast_object_list(shared, 0)
        if isinstance(shared[0], str):
            raise BadInput(shared[0])
        return torch.frombuffer(bytearray(shared[0]), dtype=torch.uint8) if shared[0] else None

    def decode(self, state: Tensor | None) -> Any:
        """Take the state of objects, which gets each of them when it is registered; return that of the data."""
        if state is not None:
            self._waiting = torch.load(io.BytesIO(state.numpy().tobytes()), map_location="cpu", weights_only=True)
            for name in self._waiting.keys() & self._objects.keys():
                self._objects[name].set(self._waiting.pop(name))
        return self._waiting.pop(_DATA, None)

    def _encoded(self, step: int) -> bytes:
        states = {**self._waiting, **{name: access.read() for name, access in self._objects.items()}}
        if (position := self._data_state(step)) is not None:
            states[_DATA] = position
        for name in states.keys() - self._checked:
            _check(name, states[name])
            self._checked.add(name)
        return _dumped(states) if states else b""


def _dumped(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _check(name: str, state: Any) -> None:
    """Raise an error if a state could be written, but not be read again."""
    try:
        torch.load(io.BytesIO(_dumped(state)), weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise BadInput(
            f"the state of {name!r} cannot be part of a checkpoint: {reason}; expected tensors, numbers, text, and "
            "lists and dictionaries of these"
        ) from None


def _access(name: str, item: Any) -> _Access:
    """Return how the state of an object is read and set, also of generators of random numbers."""
    match item:
        case torch.Generator():
            return _Access(item.get_state, item.set_state)
        case random.Random():
            return _Access(item.getstate, item.setstate)
        case np.random.Generator():
            return _Access(lambda: item.bit_generator.state, lambda state: _set_numpy_state(item, state))
    if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
        raise BadInput(
            f"{name!r} is a {type(item).__name__}, expected an object with state_dict and load_state_dict, or a "
            "generator of random numbers"
        )
    return _Access(item.state_dict, item.load_state_dict)


def _set_numpy_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state
