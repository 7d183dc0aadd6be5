"""The loss of a step: a mean, or a sum and a count that are added up over all micro-batches and ranks.

A mean over tokens whose number differs between samples is not the mean of the means of the micro-batches: it would
depend on the plan. With a sum and a count, the loss is the sum of all sums divided by the sum of all counts.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from refold.errors import BadInput
from refold.model import Plan

log = logging.getLogger("refold.train")

Batch = Any
"""Samples of a step: a tensor, or a tuple, list or dict of tensors whose first dimension counts samples."""

Loss = Callable[[Any, Batch], Tensor | tuple[Tensor, Tensor | float]]
"""Given the output of the model, returns the mean loss of a micro-batch, or the sum of losses and their number."""

LABELS = "labels"
"""The part of a batch for which models of Hugging Face compute their loss."""

IGNORED_LABEL = -100
"""The label of tokens without a loss, as in PyTorch and Transformers."""


class StepLoss(NamedTuple):
    """The loss of a share of a batch: a mean, or a sum and its count. `is_sum` is 1 for sums, 0 for means."""

    value: Tensor
    count: Tensor
    is_sum: Tensor


class LossRecorder:
    """Computes the losses of the micro-batches of a step, and adds them up."""

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self._loss = loss
        self._device = device
        self._values: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        self._is_sum: bool | None = None

    def compute(self, output: Any, batch: Batch, number: int = 0) -> Tensor:
        """Return the loss of a micro-batch: what the backward pass begins with.

        Of several calls for the same `number`, the last one counts: pipelines try their first micro-batch twice.
        """
        result = self._loss(output, batch)
        is_sum = isinstance(result, tuple)
        if self._is_sum not in (None, is_sum):
            kinds = ("a mean", "a sum and a count") if is_sum else ("a sum and a count", "a mean")
            raise BadInput("the loss returned {} before, and now {}: return the same at all times".format(*kinds))
        self._is_sum = is_sum
        if isinstance(result, tuple):
            value, count = result
            self._counts[number] = torch.as_tensor(count, dtype=torch.float64, device=self._device)
        else:
            value = result
        self._values[number] = value.detach()
        return value

    def take(self) -> StepLoss:
        """Return the loss of all micro-batches since the last call; 0 if there were none."""
        values, counts = self._values, self._counts
        self._values, self._counts = {}, {}
        nothing = torch.zeros((), dtype=torch.float64, device=self._device)
        if not values:
            return StepLoss(nothing, nothing, nothing)
        losses = torch.stack(list(values.values())).double()
        if not counts:
            return StepLoss(losses.mean(), nothing, nothing)
        return StepLoss(losses.sum(), torch.stack(list(counts.values())).sum(), torch.ones_like(nothing))


class LossReducer:
    """Turns the losses of all ranks into the loss of the global batch."""

    def __init__(self) -> None:
        self._plan = Plan()
        self._is_sum: bool | None = None
        self._has_warned = False

    def begin(self, plan: Plan) -> None:
        """Note the plan of the next steps."""
        self._plan, self._is_sum = plan, None

    def reduce(self, part: StepLoss, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the mean loss of the global batch, and by what to multiply the gradients so that they are its own.

        They are the mean over micro-batches and data-parallel ranks; None: nothing is to be done. Collective.
        """
        totals = torch.stack(part)
        if dist.get_world_size() > 1:
            dist.all_reduce(totals)
        value, count, sums = totals
        if self._is_sum is None:  # once per plan, since it waits for the device
            self._is_sum = bool(sums)
            self._warn_of_mean(batch)
        copies = self._plan.data * self._plan.tensor
        if not self._is_sum:
            return value / copies, None
        count = count.clamp(min=1)
        return value / count, copies * self._plan.accumulation / count

    def _warn_of_mean(self, batch: Batch) -> None:
        if self._is_sum or self._has_warned or not has_uneven_labels(batch):
            return
        self._has_warned = True
        log.warning(
            "the samples have different numbers of labels, but the loss is a mean: it depends on the plan; let it "
            "return the sum and the number of labels that are not ignored"
        )


def model_loss(*, is_shifted: bool) -> Loss:
    """Return the loss that a model computes itself: the mean over its labels that are not ignored.

    `is_shifted`: the model predicts the next token, so that the first label of each sample has no loss.
    """

    def loss(output: Any, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        mean, labels = _loss_in(output), batch.get(LABELS) if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor):
            return mean
        used = labels[..., 1:] if is_shifted and labels.dim() > 1 else labels
        count = (used != IGNORED_LABEL).sum()
        return torch.where(count > 0, mean, torch.zeros_like(mean)) * count, count

    return loss


def _loss_in(output: Any) -> Tensor:
    """Return the loss that a model has computed: its output, or a part of that."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{type(found).__name__}"
        raise BadInput(
            f"the model returned {what} instead of a loss; pass loss=… to refold.train.start, or data with labels for"
            " which the model computes it"
        )
    return found.reshape(())


def has_uneven_labels(batch: Batch) -> bool:
    """Whether the samples of a batch have different numbers of labels that are not ignored."""
    labels = batch.get(LABELS) if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return False
    counts = (labels != IGNORED_LABEL).flatten(1).sum(1)
    return bool((counts != counts[0]).any())


# What a model gets of a batch: its main input, which pipeline stages replace by hidden values, and others by name.

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ModelInputs(NamedTuple):
    """Inputs of a model: the main one, and others by name."""

    main: Tensor
    named: dict[str, Any]


def parameters_of(model: nn.Module) -> list[str]:
    """Return the names of the inputs of a model; a wrapper that passes on whatever it gets has none, unless of PEFT."""
    if hasattr(model, "get_base_model"):
        return parameters_of(model.get_base_model())
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
