"""Copies of tensors of a GPU on their way to the memory of its host, while the training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from refold.train.host_tensors import host_tensors


class DeviceStage:
    """Page-locked memory, filled on a stream of its own, and emptied by a thread.

    Tensors may be read by forward and backward passes meanwhile, but changed only after `before_update`.
    """

    def __init__(self) -> None:
        self._staged: list[Tensor] = []
        self._stream = torch.cuda.Stream()
        self._copied = torch.cuda.Event()
        self._thread = ThreadPoolExecutor(1, "refold-copy")
        self._work: Future[None] | None = None

    def prepare(self, sources: Sequence[Tensor], *, wait: bool) -> bool:
        """Allocate memory for tensors in the background, which takes 0.6 s per GiB; return whether it is there."""
        if wait or not self._is_busy():
            self.finish()
            if [tensor.shape for tensor in self._staged] != [tensor.shape for tensor in sources]:
                self._work = self._thread.submit(self._allocate, sources)
        if wait:
            self.finish()
        return not self._is_busy()

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], done: Callable[[], None]) -> None:
        """Begin to copy the tensors for which memory was prepared to others, and call `done` when that is complete."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for staged, (source, _) in zip(self._staged, pairs, strict=True):
                staged.copy_(source, non_blocking=True)
            self._copied.record()
        self._work = self._thread.submit(self._deliver, [target for _, target in pairs], done)

    def before_update(self) -> None:
        """Let what is computed from now on wait until the tensors have been read."""
        torch.cuda.current_stream().wait_event(self._copied)

    def finish(self) -> None:
        """Wait for what was begun; raise its error."""
        if self._work is not None:
            self._work.result()

    def _is_busy(self) -> bool:
        return self._work is not None and not self._work.done()

    def _allocate(self, sources: Sequence[Tensor]) -> None:
        self._staged = host_tensors(sources, pinned=True)

    def _deliver(self, targets: Sequence[Tensor], done: Callable[[], None]) -> None:
        self._copied.synchronize()
        for staged, target in zip(self._staged, targets, strict=True):
            target.copy_(staged)
        done()
