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
from refold.train.losses import Batch, Loss, LossRecorder, ModelInputs, StepLoss

Context = Callable[[], AbstractContextManager[Any]]


class TrainingStep:
    """Computes loss and gradients of the local share of a batch."""

    def __init__(
        self, model: LocalModel, plan: Plan, loss: Loss, inputs: Callable[[Batch], ModelInputs], context: Context
    ) -> None:
        """`inputs`: returns what the model gets of a batch. `context`: of every forward pass, such as autocast."""
        self._model = model
        self._plan = plan
        self._losses = LossRecorder(loss, model.layout.device)
        self._inputs = inputs
        self._context = context
        self._pipeline = make_schedule(model, self._loss_of_rows) if plan.pipeline > 1 else None
        self._batch: Batch = None
        self._scale = 1.0

    def run(self, batch: Batch, scale: float = 1.0) -> StepLoss:
        """Return the loss of the local share of the batch; 0 on ranks without the last pipeline stage.

        Gradients are in the parameters: the mean over all micro-batches of the global batch, times `scale`.
        """
        self._scale = scale
        if self._pipeline:
            self._run_pipeline(batch)
        else:
            self._run_accumulated(batch)
        self._model.add_gradients()
        return self._losses.take()

    def _run_accumulated(self, batch: Batch) -> None:
        (chunk,) = self._model.chunks
        count = self._plan.accumulation
        size = batch_size(batch) // count
        for number in range(count):
            last = number == count - 1
            chunk.set_gradient_sync(last or self._plan.zero >= 2)
            micro_batch = take(batch, slice(number * size, (number + 1) * size))
            inputs = self._inputs(micro_batch)
            with self._context():
                loss = self._losses.compute(chunk.model(inputs.main, **inputs.named), micro_batch, number)
            (loss * (self._scale / count)).backward()

    def _run_pipeline(self, batch: Batch) -> None:
        assert self._pipeline is not None
        first = self._model.layout.position.stage == 0
        self._batch = batch
        inputs = self._inputs(batch)
        rows = torch.arange(batch_size(batch), device=self._model.layout.device)
        with self._context(), self._model.pipeline_run():
            self._pipeline.step(
                *([inputs.main] if first else []),
                target=rows if self._model.has_last_stage else None,
                return_outputs=False,
                **inputs.named,
            )
        self._batch = None

    def _loss_of_rows(self, output: Tensor, rows: Tensor) -> Tensor:
        first = int(rows[0])
        return self._losses.compute(output, take(self._batch, slice(first, first + len(rows))), first) * self._scale


def make_schedule(model: LocalModel, loss_of_rows: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return the schedule of a pipeline. `loss_of_rows`: the loss of an output, and the numbers of its samples."""
    layout = model.layout
    group, count = layout.group(PIPELINE), layout.plan.accumulation
    stages = [
        PipelineStage(chunk.model, chunk.stage, chunk.stages, layout.device, group=group) for chunk in model.chunks
    ]
    if len(stages) > 1:
        return ScheduleInterleaved1F1B(stages, count, loss_of_rows)
    return Schedule1F1B(stages[0], count, loss_of_rows)


def take(batch: Batch, rows: slice) -> Batch:
    """Return some samples of a batch."""
    if isinstance(batch, Tensor):
        return batch[rows] if batch.dim() else batch
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
