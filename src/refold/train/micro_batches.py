"""One training step of a rank: forward and backward passes of its micro-batches, by plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from refold.model import Plan
from refold.train.layout import PIPELINE
from refold.train.local_model import LocalModel

Batch = Any
"""Samples of a step: a tensor, or a tuple, list or dict of tensors whose first dimension counts samples."""

Loss = Callable[[Any, Batch], Tensor]
"""Returns the mean loss of a micro-batch, given the output of the model."""

Context = Callable[[], AbstractContextManager[Any]]


class TrainingStep:
    """Computes loss and gradients of the local share of a batch."""

    def __init__(
        self, model: LocalModel, plan: Plan, loss: Loss, inputs: Callable[[Batch], Tensor], context: Context
    ) -> None:
        """`inputs`: returns what the model gets of a batch. `context`: of every forward pass, such as autocast."""
        self._model = model
        self._plan = plan
        self._loss = loss
        self._inputs = inputs
        self._context = context
        self._pipeline = self._make_pipeline() if plan.pipeline > 1 else None
        self._batch: Batch = None

    def run(self, batch: Batch) -> Tensor:
        """Return the mean loss of the local share of the batch; 0 on ranks without the last pipeline stage.

        Gradients are in the parameters, averaged over all samples of the global batch.
        """
        loss = self._run_pipeline(batch) if self._pipeline else self._run_accumulated(batch)
        self._model.add_gradients()
        return loss

    def _run_accumulated(self, batch: Batch) -> Tensor:
        (chunk,) = self._model.chunks
        count = self._plan.accumulation
        size = batch_size(batch) // count
        total: Tensor | None = None
        for number in range(count):
            last = number == count - 1
            chunk.set_gradient_sync(last or self._plan.zero >= 2)
            micro_batch = take(batch, slice(number * size, (number + 1) * size))
            with self._context():
                loss = self._loss(chunk.model(self._inputs(micro_batch)), micro_batch) / count
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _make_pipeline(self) -> Any:
        layout = self._model.layout
        group = layout.group(PIPELINE)
        stages = [
            PipelineStage(chunk.model, chunk.stage, chunk.stages, layout.device, group=group)
            for chunk in self._model.chunks
        ]
        if len(stages) > 1:
            return ScheduleInterleaved1F1B(stages, self._plan.accumulation, self._loss_of_rows)
        return Schedule1F1B(stages[0], self._plan.accumulation, self._loss_of_rows)

    def _run_pipeline(self, batch: Batch) -> Tensor:
        assert self._pipeline is not None
        device = self._model.layout.device
        first = self._model.layout.position.stage == 0
        self._batch = batch
        rows = torch.arange(batch_size(batch), device=device)
        losses: list[Tensor] = []
        with self._context():
            self._pipeline.step(
                *([self._inputs(batch)] if first else []),
                target=rows if self._model.has_last_stage else None,
                losses=losses,
                return_outputs=False,
            )
        self._batch = None
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=device)

    def _loss_of_rows(self, output: Tensor, rows: Tensor) -> Tensor:
        first = int(rows[0])
        return self._loss(output, take(self._batch, slice(first, first + len(rows))))


def take(batch: Batch, rows: slice) -> Batch:
    """Return some samples of a batch."""
    if isinstance(batch, Tensor):
        return batch[rows]
    if isinstance(batch, dict):
        return {name: take(part, rows) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(take(part, rows) for part in batch))
    if isinstance(batch, Sequence):
        return type(batch)(take(part, rows) for part in batch)  # type: ignore[call-arg]
    return batch


def batch_size(batch: Batch) -> int:
    """Return the number of samples of a batch."""
    part = batch
    while not isinstance(part, Tensor):
        part = next(iter(part.values() if isinstance(part, dict) else part))
    return int(part.shape[0])
