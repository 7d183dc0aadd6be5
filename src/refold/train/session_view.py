"""What a script can see of a session, and do with its model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from refold.errors import BadInput
from refold.model import Plan, Seconds
from refold.train.batches import Batches, Data
from refold.train.evaluation import ModelEvaluation
from refold.train.losses import Loss, without_labels
from refold.train.reshaper import Reshaper
from refold.train.session_state import SessionState
from refold.train.step_clock import StepClock
from refold.train.training_options import TrainingOptions


class SessionView:
    """The model of a session in its present shape."""

    _clock: StepClock

    def __init__(self, reshaper: Reshaper, loss: Loss, batches: Batches | None, options: TrainingOptions) -> None:
        self.steps_done = 0
        self._reshaper = reshaper
        self._loss = loss
        self._options = options
        self._batches = batches
        self._update = options.weight_update(reshaper.state)
        self._state = SessionState(reshaper.state, options, batches, self._update)

    @property
    def plan(self) -> Plan:
        """The plan that is used now."""
        return self._reshaper.plan

    @property
    def phases(self) -> dict[str, Seconds]:
        """Seconds without training of the last change of the plan, by phase."""
        return self._reshaper.phases

    @property
    def rank(self) -> int:
        """The number of this rank. Let rank 0 print and log."""
        return dist.get_rank()

    @property
    def data_rank(self) -> int:
        """The number of this rank among the `plan.data` parts of a batch. Ranks of one part get the same samples."""
        return self._reshaper.model.layout.position.data

    @property
    def model(self) -> nn.Module:
        """The part of the model on this rank: in pipelines, a stage."""
        return self._reshaper.model.chunks[0].model

    def evaluate(self, data: Data, metric: Loss | None = None, *, batch: int | None = None) -> float:
        """Return the mean of a metric over a data set, with every sample counted once. Collective.

        `metric(output, batch)` returns a mean, or a sum and a count (default: the loss). `batch` is the global batch
        size (default: that of training).
        """
        inputs = self._options.inputs if metric is None else without_labels(self._options.inputs)
        evaluation = ModelEvaluation(self._reshaper.model, metric or self._loss, inputs, self._context())
        return evaluation.run(data, batch or self._options.batch)

    def register(self, name: str, item: Any) -> None:
        """Let the state of an object be part of checkpoints and changes; if training continues, set it. On all ranks.

        It has `state_dict` and `load_state_dict`, or is a generator of random numbers. The state is that of rank 0.
        """
        self._state.user.register(name, item)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Let the model have the averages of its weights within the context (`ema=…`). Call it on all ranks."""
        if self._options.ema is None:
            raise BadInput("pass ema=0.999, for example, to refold.train.start")
        return self._reshaper.state.optimizer.averaged()

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the whole model, on the host. Collective."""
        return self._reshaper.state.full_state_dict()

    def _context(self) -> Callable[[], AbstractContextManager[Any]]:
        device, autocast = self._reshaper.model.layout.device.type, self._options.autocast
        return self._clock.timed(nullcontext if autocast is None else partial(torch.autocast, device, autocast))

    def _step_seed(self) -> int:
        """Return the random seed of this step: equal for tensor-parallel ranks, and for a repeated step."""
        position = self._reshaper.model.layout.position
        part = position.data * self.plan.pipeline + position.stage
        return hash((self._options.seed, self.steps_done, part)) & 0x7FFF_FFFF_FFFF_FFFF

    def _close_data(self) -> None:
        if self._batches is not None:
            self._batches.close()
