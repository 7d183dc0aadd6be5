"""What a rank reports: to the agent of the run, or without one to the back end."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from refold.model import Plan, Seconds
from refold.train import progress
from refold.train.channel import RankChannel
from refold.train.messages import Change, Entered, Finished, Left, NotEntered, Progress, Saved, ToAgent
from refold.train.process_group import group_rank, own_rank
from refold.train.slow_ranks import RankTimes

if TYPE_CHECKING:
    from torch import Tensor

REPORT_EVERY: Seconds = 1.0
"""Time between two reports of progress."""


class Reports:
    """Reports what a session does. Of all ranks, rank 0 does; each rank reports that it leaves."""

    def __init__(self, channel: RankChannel | None, batch: int) -> None:
        self._channel = channel
        self._batch = batch
        self._reported_at, self._reported_step = monotonic(), 0

    def begin(self, step: int) -> None:
        """Measure the speed from this step on."""
        self._reported_at, self._reported_step = monotonic(), step

    def progressed(self, step: int, loss: Tensor | float | None, times: RankTimes | None = None) -> None:
        """Report progress from time to time, and what this rank has measured of its own work."""
        if times is not None and self._channel is not None:
            self._channel.send(times)
        seconds = monotonic() - self._reported_at
        if seconds < REPORT_EVERY or group_rank():
            return
        speed = (step - self._reported_step) * self._batch / seconds
        self.begin(step)
        value = None if loss is None else float(loss)
        if self._channel is None:
            progress.report(step, value, speed)
        else:
            self._channel.send(Progress(step, value, speed))

    def entered(self, change: Change, plan: Plan, step: int, phases: dict[str, Seconds], why: str) -> None:
        """Report that the ranks train together; `why`: why not with the requested plan."""
        self._send(Entered(change.generation, plan, step, phases, why))

    def not_entered(self, change: Change, error: Exception) -> None:
        """Report that the ranks train as before, because of an error."""
        self._send(NotEntered(change.generation, str(error)))

    def saved(self, step: int) -> None:
        """Report a complete checkpoint."""
        self._send(Saved(step))

    def finished(self, step: int) -> None:
        """Report that all steps are done."""
        self._send(Finished(step))
        if self._channel is None and group_rank() == 0:
            progress.report(step)

    def left(self, step: int, phases: dict[str, Seconds], *, restart: bool = False) -> None:
        """Report that this rank leaves, after phases of a change; `restart`: to be started again with the new plan."""
        if self._channel is not None:
            self._channel.send(Left(own_rank(), step, restart, phases))

    def _send(self, message: ToAgent) -> None:
        if self._channel is not None and group_rank() == 0:
            self._channel.send(message)
