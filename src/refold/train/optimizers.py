"""AdamW beside the weights, or on the host (ZeRO-Offload). Weights are kept in flat buckets, as large frameworks do.

Bytes per parameter: weights in bfloat16 2, their gradients 2, and 12 for what AdamW keeps in float32 (weights and two
moments); 16 in all, of which a GPU has 2 under offload (4 while gradients are accumulated). Weights in float32 need
no second copy: 4 + 4 + 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from refold.train.timers import DeviceTimer, Mark

BUCKET = 2**25
"""Parameters after which a bucket is full: large enough for whole-speed copies, small enough to overlap them."""

ALIGNED = 128
"""Every parameter begins at a multiple of so many: kernels are slower where it does not."""

LEARNING_RATE = 1e-4


class Bucket:
    """Some parameters, whose weights lie one after the other in one tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        ends = [0]
        for parameter in parameters:
            ends.append(ends[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        self.slots = [
            slice(start, start + parameter.numel())
            for parameter, (start, _) in zip(parameters, pairwise(ends), strict=True)
        ]
        self.weights = torch.zeros(ends[-1], dtype=parameters[0].dtype, device=parameters[0].device)
        for parameter, slot in zip(parameters, self.slots, strict=True):
            self.weights[slot] = parameter.detach().flatten()
            parameter.data = self.weights[slot].view_as(parameter)

    def slots_by_parameter(self) -> Iterable[tuple[nn.Parameter, slice]]:
        return zip(self.parameters, self.slots, strict=True)


def buckets_of(model: nn.Module) -> list[Bucket]:
    """The parameters of a model, last ones first: this is the order in which gradients come."""
    buckets: list[Bucket] = []
    waiting: list[nn.Parameter] = []
    for parameter in reversed([*model.parameters()]):
        waiting.append(parameter)
        if sum(one.numel() for one in waiting) >= BUCKET:
            buckets.append(Bucket(waiting))
            waiting = []
    return [*buckets, Bucket(waiting)] if waiting else buckets


class Optimizer(Protocol):
    """Who turns gradients into weights."""

    def expect_last(self) -> None:
        """The next backward pass is the last of this step."""

    def step(self) -> float:
        """Use the gradients and forget them; seconds of copying between host and device, if there was any."""

    def forget(self) -> None:
        """There will be no such step: forget its gradients."""

    def close(self) -> None:
        """Leave the model as if there had been no optimiser."""


class OnDevice:
    """AdamW where the weights are. Gradients have their place for as long as it lives."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self._buckets = buckets
        self._gradients = [torch.zeros_like(bucket.weights) for bucket in buckets]
        self._masters = [nn.Parameter(bucket.weights.float()) for bucket in buckets]
        exact = buckets[0].weights.dtype == torch.float32  # float() has then copied nothing
        self._scratch = None if exact else _scratch_for(buckets, buckets[0].weights.device)
        self._adams = [_adam(master) for master in self._masters]
        for bucket, gradient in zip(buckets, self._gradients, strict=True):
            for parameter, slot in bucket.slots_by_parameter():
                parameter.grad = gradient[slot].view_as(parameter)

    def expect_last(self) -> None:
        pass

    @torch.no_grad()
    def step(self) -> float:
        for bucket, gradient, master, adam in zip(
            self._buckets, self._gradients, self._masters, self._adams, strict=True
        ):
            master.grad = gradient if self._scratch is None else self._scratch[: len(gradient)].copy_(gradient)
            adam.step()
            if self._scratch is not None:
                bucket.weights.copy_(master)
        self.forget()
        return 0.0

    def forget(self) -> None:
        for gradient in self._gradients:
            gradient.zero_()

    def close(self) -> None:
        _drop_gradients(self._buckets)


class OnHost:
    """AdamW on the CPU, for weights on a device (Ren et al. 2021, ZeRO-Offload).

    Gradients leave the device during the last backward pass, a bucket at a time, and new weights return while the
    next bucket is updated. Until then gradients are accumulated on the device. Both ways go through one pinned
    buffer per bucket, in the weights' precision.
    """

    def __init__(self, buckets: list[Bucket], clock: DeviceTimer, threads: int = 1) -> None:
        self.threads = threads
        self._buckets, self._clock = buckets, clock
        device = buckets[0].weights.device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._masters = [nn.Parameter(bucket.weights.float().to("cpu", copy=True)) for bucket in buckets]
        self._adams = [_adam(master) for master in self._masters]
        self._staging = [
            torch.zeros(len(bucket.weights), dtype=bucket.weights.dtype, pin_memory=self._stream is not None)
            for bucket in buckets
        ]
        self._scratch = _scratch_for(buckets, torch.device("cpu"))
        self._begin()
        self._hooks = list(self._hooked())

    def _begin(self) -> None:
        self._last = False
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._arrived: list[Mark | None] = [None] * len(self._buckets)
        self._copies: list[tuple[Mark, Mark]] = []

    def _hooked(self) -> Iterator[RemovableHandle]:
        for place, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                arrived = partial(self._gradient_is_there, place)
                yield parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def expect_last(self) -> None:
        self._last = True

    def _gradient_is_there(self, place: int, _: Tensor) -> None:
        if not self._last:
            return
        self._missing[place] -= 1
        if not self._missing[place]:
            self._fetch_gradients(place)

    @torch.no_grad()
    def _fetch_gradients(self, place: int) -> None:
        staging = self._staging[place]
        with self._aside():
            begin = self._clock.mark()
            for parameter, slot in self._buckets[place].slots_by_parameter():
                assert parameter.grad is not None
                staging[slot].copy_(parameter.grad.flatten(), non_blocking=True)
                if self._stream is not None:
                    parameter.grad.record_stream(self._stream)
                parameter.grad = None
            end = self._clock.mark()
        self._arrived[place] = end
        self._copies.append((begin, end))

    @torch.no_grad()
    def step(self) -> float:
        with _threads(self.threads):
            for place in range(len(self._buckets)):
                self._update(place)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._clock.finish()
        seconds = sum(begin.seconds_until(end) for begin, end in self._copies)
        self._begin()
        return seconds

    def forget(self) -> None:
        self._begin()
        _drop_gradients(self._buckets)

    def _update(self, place: int) -> None:
        master, staging, arrived = self._masters[place], self._staging[place], self._arrived[place]
        assert arrived is not None
        arrived.wait()
        master.grad = self._scratch[: len(staging)].copy_(staging)
        self._adams[place].step()
        staging.copy_(master)
        with self._aside():
            begin = self._clock.mark()
            self._buckets[place].weights.copy_(staging, non_blocking=True)
            self._copies.append((begin, self._clock.mark()))

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On a stream of its own, after what is on the usual one now."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        _drop_gradients(self._buckets)


def _drop_gradients(buckets: list[Bucket]) -> None:
    for bucket in buckets:
        for parameter in bucket.parameters:
            parameter.grad = None


def _scratch_for(buckets: list[Bucket], device: torch.device) -> Tensor:
    """Where the gradients of any one bucket fit, in float32."""
    return torch.zeros(max(len(bucket.weights) for bucket in buckets), dtype=torch.float32, device=device)


def _adam(master: nn.Parameter) -> torch.optim.AdamW:
    return torch.optim.AdamW([master], lr=LEARNING_RATE, fused=True)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of the CPU, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
