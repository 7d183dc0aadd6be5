"""What belongs to the state of a session besides tensors, and what of it is in order when a step is interrupted."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refold.train.batches import Batches
from refold.train.host_tensors import plain, restored
from refold.train.local_model import LocalModel
from refold.train.training_options import TrainingOptions
from refold.train.training_state import USER_BYTES, Facts, TrainingState
from refold.train.user_state import UserState
from refold.train.weight_update import WeightUpdate

LOSS = "loss"
"""The fact that ranks get which were interrupted in a step that others have finished: its loss."""


class SessionState:
    """Settings of the optimizer, learning rates, the position in the data, and the objects of the user."""

    def __init__(
        self, state: TrainingState, options: TrainingOptions, batches: Batches | None, update: WeightUpdate
    ) -> None:
        self.user = UserState(batches.state if batches else lambda _: None)
        self._state = state
        self._options = options
        self._batches = batches
        self._update = update
        self._buffers: list[Tensor] = []
        self._versions: list[int] = []
        self._is_updating = False

    def facts(self, step: int) -> Facts:
        """Return the facts, and make the state of the user's objects part of the state. Collective."""
        user = self._state.user_state = self.user.encode(step)
        return {**self._own_facts(step), USER_BYTES: 0 if user is None else len(user)}

    def facts_of_interrupted(self, step: int, loss: Tensor | None) -> Facts | None:
        """Return the facts, if no step was interrupted while it changed the state. Each rank keeps the user's objects.

        `loss`: that of the last step.
        """
        self._state.user_state = None
        if self._is_updating or self._versions != [buffer._version for buffer in self._buffers]:
            return None
        return {**self._own_facts(step), LOSS: None if loss is None else float(loss)}

    def restore(self, facts: Facts) -> None:
        """Set what the facts say, and the user's objects."""
        self._state.optimizer.restore_settings(facts["groups"])
        self._update.restore(facts.get("scaler"))
        position = self.user.decode(self._state.user_state)
        if self._batches is not None and position is not None:
            self._batches.restore(position)
        scheduler = self._options.scheduler
        if scheduler is not None and facts["scheduler"] is not None:
            scheduler.load_state_dict(restored(facts["scheduler"], scheduler.state_dict()))

    def rewind(self, step: int) -> None:
        """Let the batch of a step be read again."""
        if self._batches is not None and (position := self._batches.state(step)) is not None:
            self._batches.close()
            self._batches.restore(position)

    def watch(self, model: LocalModel) -> None:
        """Note changes of buffers, such as running means, within steps."""
        self._buffers = [buffer for _, buffer in model.named_buffers()]
        self.end_step()

    def begin_update(self) -> None:
        """Note that the state is about to change."""
        self._is_updating = True

    def end_step(self) -> None:
        """Note that the state is that of a step."""
        self._is_updating = False
        self._versions = [buffer._version for buffer in self._buffers]

    def _own_facts(self, step: int) -> dict[str, Any]:
        scheduler = self._options.scheduler
        return {
            "step": step,
            "groups": self._state.optimizer.settings(),
            "scheduler": None if scheduler is None else plain(scheduler.state_dict()),
            "scaler": self._update.facts(),
        }
