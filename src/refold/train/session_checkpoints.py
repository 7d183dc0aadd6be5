"""The checkpoints of a session. Training continues if one cannot be written."""

from __future__ import annotations

import logging

import torch.distributed as dist

from refold.errors import BadInput, CheckpointNotWritten
from refold.train.checkpoints import Checkpoints
from refold.train.reports import Reports
from refold.train.training_state import Facts, TrainingState

log = logging.getLogger("refold.train")


class SessionCheckpoints:
    """Writes checkpoints, if the session has a folder for them, and reports complete ones. Collective."""

    def __init__(self, checkpoints: Checkpoints | None, state: TrainingState, reports: Reports) -> None:
        self.checkpoints = checkpoints
        self._state = state
        self._reports = reports

    def save(self, facts: Facts, *, wait: bool) -> None:
        """Write a checkpoint; without `wait`, in the background. Raises `CheckpointNotWritten`."""
        if self.checkpoints is None:
            raise BadInput("the session has no folder for checkpoints; pass checkpoint=… to refold.train.start")
        self._state.save(self.checkpoints, facts, wait=wait)
        if wait:
            self._reports.saved(facts["step"])

    def try_to_save(self, facts: Facts, *, wait: bool) -> None:
        """Write a checkpoint if there is a folder; if that fails, print why."""
        if self.checkpoints is not None:
            try:
                self.save(facts, wait=wait)
            except CheckpointNotWritten as error:
                _warn(error)

    def abandon(self) -> None:
        """Forget the checkpoint in the background: ranks that have to write a part of it are lost."""
        if self.checkpoints is not None:
            self.checkpoints.abandon()

    def finish(self, *, wait: bool) -> None:
        """Report a checkpoint that was written in the background; print why if it was not. `wait`: until then."""
        if self.checkpoints is not None:
            try:
                step = self.checkpoints.finish(wait=wait)
            except CheckpointNotWritten as error:
                _warn(error)
            else:
                if step is not None:
                    self._reports.saved(step)


def _warn(error: Exception) -> None:
    if dist.get_rank() == 0:
        log.warning("%s; training continues", error)
