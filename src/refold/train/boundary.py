"""What to do at the boundary between two steps: rank 0 asks, and all ranks agree."""

from __future__ import annotations

from concurrent.futures import Future
from enum import IntEnum
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from refold.model import Seconds
from refold.train import progress
from refold.train.channel import RankChannel
from refold.train.messages import Change, CopySecured, StopTraining
from refold.train.process_group import group_rank

ASK_EVERY: Seconds = 0.1
"""Time between two questions, so that short steps are not slowed down."""

_MAX_STEPS_BETWEEN = 1000

COPY_SHARE = 0.03
"""The share of time that copies of the state may take."""

COPY_SHARE_OF_REPLICAS = 0.003

MIN_COPY_SECONDS: Seconds = 0.5
"""Least time between two copies."""


class BoundaryRequest(IntEnum):
    """What was requested."""

    NOTHING = 0
    SAVE = 1
    STOP = 2
    CHANGE = 3
    PREPARE = 4
    COPY = 5


class Boundary:
    """Asks the agent, or looks for a stop signal, and tells all ranks the answer at the same step."""

    def __init__(
        self, channel: RankChannel | None, save_every: Seconds, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group`: where the ranks agree (default: the default group, if there is one)."""
        self._channel = channel
        self._group = group
        self._save_every = save_every
        if channel is None:
            progress.checkpoint_requested()  # the signal reaches all ranks, and must not end those that do not ask
        self._saved_at = self._asked_at = monotonic()
        self._asked_step = self._next_step = 0
        self._step = 0
        self._copy_after: int | None = None
        self._copy_at = 0.0
        self._is_secured = True
        self.change: Change | None = None
        """The requested change, after `ask` has returned PREPARE or CHANGE."""
        self.preparation: Future[Any] | None = None
        """What must be done on this rank before the requested change, set after `ask` has returned PREPARE."""

    def begin_copies(self, step: int) -> None:
        """Request copies of the state from the step after this one on."""
        self._copy_after, self._copy_at, self._is_secured = step, monotonic(), True

    def note_copied(self, seconds: Seconds | None, *, has_replicas: bool) -> None:
        """Note that a copy was written, which took so long: the next is due when it is secured, and costs little.

        None: it was put off. `has_replicas`: ranks on other hosts have the same, so that copies are rarely needed.
        """
        share = COPY_SHARE_OF_REPLICAS if has_replicas else COPY_SHARE
        self._copy_at = monotonic() + max(MIN_COPY_SECONDS, (seconds or 0.0) / share)
        self._is_secured = seconds is None

    def note_saved(self) -> None:
        """Note that a checkpoint has just been started."""
        self._saved_at = monotonic()

    def reset(self, step: int) -> None:
        """Ask at this step: after ranks have joined, all of them must begin at the same one."""
        self._asked_step = self._next_step = step

    def ask(self, step: int) -> BoundaryRequest:
        """Return what is requested at this step. Collective from time to time."""
        if step < self._next_step:
            return BoundaryRequest.NOTHING
        if self.preparation is not None:
            return self._await_preparation(step, self.preparation)
        self._step = step
        answer = torch.zeros(2, dtype=torch.int64)
        if group_rank() == 0:
            answer[0] = self._request()
            answer[1] = step + self._interval(step)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.broadcast(answer, 0, self._group)
        request, self._next_step = BoundaryRequest(int(answer[0])), int(answer[1])
        if request in (BoundaryRequest.PREPARE, BoundaryRequest.CHANGE) and self.change is None:
            self._await_change()
        return request

    def take_change(self) -> Change:
        """Return the requested change, which is then no longer requested."""
        assert self.change is not None
        change, self.change, self.preparation = self.change, None, None
        return change

    def _await_preparation(self, step: int, preparation: Future[Any]) -> BoundaryRequest:
        """Return CHANGE when the requested change is prepared on all ranks."""
        prepared = torch.tensor(int(preparation.done()))
        dist.all_reduce(prepared, dist.ReduceOp.MIN)
        self._next_step = step + 1
        return BoundaryRequest.CHANGE if prepared.item() else BoundaryRequest.NOTHING

    def _request(self) -> BoundaryRequest:
        message = None if self._channel is None else self._channel.poll()
        match message:
            case Change():
                self.change = message
                return BoundaryRequest.PREPARE
            case StopTraining():
                return BoundaryRequest.STOP
            case CopySecured():
                self._is_secured = True
        if self._channel is None and progress.checkpoint_requested():
            return BoundaryRequest.STOP
        if monotonic() - self._saved_at >= self._save_every:
            return BoundaryRequest.SAVE
        return BoundaryRequest.COPY if self._copy_is_due() else BoundaryRequest.NOTHING

    def _copy_is_due(self) -> bool:
        is_later = self._copy_after is not None and self._step > self._copy_after
        return is_later and self._is_secured and monotonic() >= self._copy_at

    def _await_change(self) -> None:
        assert self._channel is not None
        message = self._channel.wait()
        while not isinstance(message, Change):
            message = self._channel.wait()
        self.change = message

    def _interval(self, step: int) -> int:
        """Return the number of steps until the next question."""
        now = monotonic()
        seconds, steps = now - self._asked_at, step - self._asked_step
        self._asked_at, self._asked_step = now, step
        if steps <= 0 or seconds <= 0:
            return 1
        return min(max(int(ASK_EVERY * steps / seconds), 1), _MAX_STEPS_BETWEEN)
