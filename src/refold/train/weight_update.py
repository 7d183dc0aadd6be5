"""The end of a step: from gradients to new weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refold.train.training_state import TrainingState

FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000


class LossScaler:
    """Multiplies the loss, so that gradients in float16 are not rounded to zero (Micikevicius et al. 2018).

    The scale is halved when gradients overflow, and doubled after many steps in which none did.
    """

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self.good_steps = 0

    def note(self, *, is_finite: bool) -> None:
        """Note whether the gradients of a step were finite."""
        self.good_steps = self.good_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(self.scale / 2, 1.0)
        elif self.good_steps == GROWTH_STEPS:
            self.scale, self.good_steps = 2 * self.scale, 0


class WeightUpdate:
    """Scales and clips the gradients, and lets the optimizer and what follows it make a step. Collective."""

    def __init__(
        self, state: TrainingState, *, clip: float | None, scheduler: Any, ema: float | None, is_scaled: bool
    ) -> None:
        self._state = state
        self._clip = clip
        self._scheduler = scheduler
        self._ema = ema
        self._scaler = LossScaler() if is_scaled else None

    @property
    def loss_scale(self) -> float:
        """By what the loss is multiplied before the backward pass."""
        return self._scaler.scale if self._scaler else 1.0

    def run(self, factor: Tensor | None, begin: Callable[[], None]) -> None:
        """Update the weights, unless gradients are not finite. `factor`: by what gradients are multiplied first.

        `begin` is called when the state is about to change: what follows is not collective.
        """
        if self._scaler:
            factor = (1.0 if factor is None else factor) / torch.tensor(self._scaler.scale)
        if factor is not None:
            self._state.scale_gradients(factor)
        norm = self._state.gradient_norm() if self._clip is not None or self._scaler else None
        is_finite = self._scaler is None or norm is None or bool(norm.isfinite())
        begin()
        if is_finite:
            if self._clip is not None and norm is not None:
                self._state.scale_gradients((self._clip / (norm + 1e-6)).clamp(max=1.0))
            self._state.optimizer.step()
            if self._ema is not None:
                self._state.optimizer.update_averages(self._ema)
        else:
            self._state.optimizer.drop_gradients()
        if self._scaler:
            self._scaler.note(is_finite=is_finite)
        if self._scheduler is not None:
            self._scheduler.step()

    def facts(self) -> Any:
        """Return the state of the scaling, as JSON."""
        return [self._scaler.scale, self._scaler.good_steps] if self._scaler else None

    def restore(self, facts: Any) -> None:
        """Restore the state of the scaling."""
        if self._scaler and facts:
            self._scaler.scale, self._scaler.good_steps = facts
