"""How a session trains, besides model, optimizer, loss and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch

from refold.errors import BadInput
from refold.model import Seconds
from refold.train.batches import Batches, make_batches
from refold.train.losses import Batch, ModelInputs, first_input
from refold.train.training_state import TrainingState
from refold.train.weight_update import WeightUpdate

SAVE_EVERY: Seconds = 600.0
"""Default time between checkpoints."""


class LearningRateScheduler(Protocol):
    """A scheduler of `torch.optim.lr_scheduler`."""

    def step(self) -> None:
        """Adjust the learning rate after a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore the state."""


class TrainingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session trains, besides model, optimizer, loss and data. See `start`."""

    batch: int
    steps: int
    inputs: Callable[[Batch], ModelInputs] = first_input
    seed: int = 0
    shuffle: bool = True
    autocast: Any = None
    clip: float | None = None
    save_every: Seconds = SAVE_EVERY
    scheduler: Any = None
    ema: float | None = None

    def __post_init__(self) -> None:
        if self.ema is not None and not 0 < self.ema < 1:
            raise BadInput(f"ema is {self.ema}, expected a number between 0 and 1, such as 0.999")

    def batches_of(self, data: Any) -> Batches:
        """Return the batches of a data set, a loader, or an iterable of batches."""
        return make_batches(data, self.batch, self.seed, shuffle=self.shuffle)

    def weight_update(self, state: TrainingState) -> WeightUpdate:
        """Return what turns gradients into new weights."""
        is_scaled = self.autocast == torch.float16
        return WeightUpdate(state, clip=self.clip, scheduler=self.scheduler, ema=self.ema, is_scaled=is_scaled)
