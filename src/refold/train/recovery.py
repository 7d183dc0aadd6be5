"""How a rank hears that others are lost, and stops waiting for them."""

from __future__ import annotations

import logging
import os

import torch

from refold.model import Seconds
from refold.train import process_group
from refold.train.channel import RankChannel
from refold.train.messages import Change
from refold.train.reshaper import Reshaper

log = logging.getLogger("refold.train")

LOSS_SECONDS: Seconds = 30.0
"""How long a rank that has lost others waits until its agent says what to do."""


class Recovery:
    """Interrupts a rank whose group has lost members, and finds out what is to be done. Only for runs on several hosts.

    On GPUs, ranks are not interrupted but replaced: after an abort of NCCL, a step may end with wrong numbers.
    """

    def __init__(self, channel: RankChannel | None, reshaper: Reshaper) -> None:
        self.is_regrouping = False
        """Whether this rank is between two groups, so that it cannot go on if ranks are lost."""
        self._channel = channel
        self._reshaper = reshaper
        self._is_used = False

    def begin(self) -> None:
        """Watch for lost ranks from now on."""
        if self._channel is not None and not torch.cuda.is_available():
            self._is_used = True
            self._channel.listen(self._on_loss)

    def change_after(self, error: Exception) -> Change | None:
        """Return what to do after an error; None if it is not that of a lost rank."""
        channel = self._channel
        if channel is None or not self._is_used or self.is_regrouping:
            return None
        if not (channel.has_loss or process_group.is_of_lost_rank(error)):
            return None
        self._reshaper.interrupt()  # others may wait for this one
        change = channel.take_loss(LOSS_SECONDS)
        if change is None:
            log.warning("other ranks are lost, and the agent says nothing for %g s", LOSS_SECONDS)
        return change

    def _on_loss(self) -> None:
        """Let the thread that trains stop waiting for ranks that are lost."""
        if self.is_regrouping:
            log.warning("ranks were lost while the others formed a new group")
            os._exit(1)
        self._reshaper.interrupt()
