"""What a model gets of a batch: its main input, which pipeline stages replace by hidden values, and others by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from refold.errors import BadInput
from refold.train.losses import LABELS, Batch

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ModelInputs(NamedTuple):
    """Inputs of a model: the main one, and others by name."""

    main: Tensor
    named: dict[str, Any]


def parameters_of(model: nn.Module) -> list[str]:
    """Return the names of the inputs of a model; a wrapper that passes on whatever it gets has none."""
    parameters = inspect.signature(model.forward).parameters.items()
    return [name for name, parameter in parameters if parameter.kind not in _VARIADIC]


class InputReader:
    """Selects from a batch what a model gets.

    Of a batch with names, that is what the model's `forward` has parameters for; its first parameter gets the
    `input_ids`, or what comes first, if nothing has its name. Labels are for models that compute their loss.
    """

    def __init__(
        self, model: nn.Module, select: Callable[[Batch], Any] | None = None, *, with_labels: bool = False
    ) -> None:
        """`select`: returns what the model gets of a batch: a tensor, or tensors by parameter."""
        self._select = select
        self._ignored = set() if with_labels else {LABELS}
        self._parameters = parameters_of(model)

    def read(self, batch: Batch) -> ModelInputs:
        """Return the inputs of the model."""
        selected = batch if self._select is None else self._select(batch)
        if not isinstance(selected, Mapping):
            return first_input(selected)
        named = {name: selected[name] for name in self._parameters if name in selected and name not in self._ignored}
        main = named.pop(self._parameters[0], None) if self._parameters else None
        if main is None:
            main = first_tensor({name: part for name, part in selected.items() if name not in named})
        return ModelInputs(main, named)


def without_labels(inputs: Callable[[Batch], ModelInputs]) -> Callable[[Batch], ModelInputs]:
    """Return inputs for which a model returns its output instead of a loss."""

    def read(batch: Batch) -> ModelInputs:
        main, named = inputs(batch)
        return ModelInputs(main, {name: value for name, value in named.items() if name != LABELS})

    return read


def first_input(batch: Batch) -> ModelInputs:
    """Return the first part of a batch as the only input."""
    return ModelInputs(first_tensor(batch), {})


def first_tensor(batch: Batch) -> Tensor:
    """Return the batch itself, its `input_ids`, or its first part."""
    found = batch
    if isinstance(batch, Mapping):
        found = batch.get("input_ids", next(iter(batch.values()), None))
    elif not isinstance(batch, Tensor):
        found = batch[0]
    if not isinstance(found, Tensor):
        raise BadInput(
            f"the input of the model would be a {type(found).__name__}, expected a tensor; pass inputs=… to "
            "refold.train.start"
        )
    return found
