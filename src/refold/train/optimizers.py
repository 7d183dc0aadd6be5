"""AdamW on the device of the weights, or on the host (ZeRO-Offload). Weights are stored in flat buckets.

Bytes per parameter: 2 for weights in bfloat16, 2 for their gradients, and 12 for the float32 state of AdamW (master
weights and two moments); 16 in total, of which 2 are on the GPU with offload (4 while gradients are accumulated).
Weights in float32 need no master copy: 4 + 4 + 8.
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

from refold.train.timers import DeviceTimer, TimerEvent

BUCKET_PARAMETERS = 2**25
"""Parameters per bucket: large enough for copies at full speed, small enough to overlap them."""

ALIGNMENT = 128
"""Parameters begin at multiples of this offset, in elements; kernels are slower on unaligned tensors."""

LEARNING_RATE = 1e-4


class Bucket:
    """Parameters whose weights are views of one flat tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        ends = [0]
        for parameter in parameters:
            ends.append(ends[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)
        self.slices = [
            slice(start, start + parameter.numel())
            for parameter, (start, _) in zip(parameters, pairwise(ends), strict=True)
        ]
        self.weights = torch.zeros(ends[-1], dtype=parameters[0].dtype, device=parameters[0].device)
        for parameter, slice_ in zip(parameters, self.slices, strict=True):
            self.weights[slice_] = parameter.detach().flatten()
            parameter.data = self.weights[slice_].view_as(parameter)

    def slices_by_parameter(self) -> Iterable[tuple[nn.Parameter, slice]]:
        return zip(self.parameters, self.slices, strict=True)


def make_buckets(model: nn.Module) -> list[Bucket]:
    """Group the parameters of a model into buckets, last ones first: the order in which gradients are computed."""
    buckets: list[Bucket] = []
    pending: list[nn.Parameter] = []
    for parameter in reversed([*model.parameters()]):
        pending.append(parameter)
        if sum(parameter.numel() for parameter in pending) >= BUCKET_PARAMETERS:
            buckets.append(Bucket(pending))
            pending = []
    return [*buckets, Bucket(pending)] if pending else buckets


class Optimizer(Protocol):
    """Updates weights from gradients."""

    def begin_last_backward(self) -> None:
        """Announce that the next backward pass is the last of this step."""

    def step(self) -> float:
        """Apply and discard the gradients; return the seconds of copies between host and device."""

    def discard_gradients(self) -> None:
        """Discard the gradients of an aborted step."""

    def close(self) -> None:
        """Remove hooks and gradients from the model."""


class DeviceOptimizer:
    """AdamW on the device of the weights. Gradient buffers are allocated once."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self._buckets = buckets
        self._gradients = [torch.zeros_like(bucket.weights) for bucket in buckets]
        self._masters = [nn.Parameter(bucket.weights.float()) for bucket in buckets]
        is_float32 = buckets[0].weights.dtype == torch.float32  # float() then returns the same tensor
        self._scratch = None if is_float32 else _make_scratch(buckets, buckets[0].weights.device)
        self._adams = [_make_adam(master) for master in self._masters]
        for bucket, gradient in zip(buckets, self._gradients, strict=True):
            for parameter, slice_ in bucket.slices_by_parameter():
                parameter.grad = gradient[slice_].view_as(parameter)

    def begin_last_backward(self) -> None:
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
        self.discard_gradients()
        return 0.0

    def discard_gradients(self) -> None:
        for gradient in self._gradients:
            gradient.zero_()

    def close(self) -> None:
        _drop_gradients(self._buckets)


class OffloadedOptimizer:
    """AdamW on the CPU for weights on a device (Ren et al. 2021, ZeRO-Offload).

    Gradients are accumulated on the device. During the last backward pass they are copied to the host bucket by bucket,
    and updated weights are copied back while the next bucket is updated. Both copies use one pinned buffer per bucket,
    in the precision of the weights.
    """

    def __init__(self, buckets: list[Bucket], timer: DeviceTimer, threads: int = 1) -> None:
        self.threads = threads
        self._buckets, self._timer = buckets, timer
        device = buckets[0].weights.device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._masters = [nn.Parameter(bucket.weights.float().to("cpu", copy=True)) for bucket in buckets]
        self._adams = [_make_adam(master) for master in self._masters]
        self._staging = [
            torch.zeros(len(bucket.weights), dtype=bucket.weights.dtype, pin_memory=self._stream is not None)
            for bucket in buckets
        ]
        self._scratch = _make_scratch(buckets, torch.device("cpu"))
        self._reset()
        self._hooks = list(self._register_hooks())

    def _reset(self) -> None:
        self._in_last_backward = False
        self._gradients_missing = [len(bucket.parameters) for bucket in self._buckets]
        self._copied: list[TimerEvent | None] = [None] * len(self._buckets)
        self._copies: list[tuple[TimerEvent, TimerEvent]] = []

    def _register_hooks(self) -> Iterator[RemovableHandle]:
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                hook = partial(self._on_gradient, index)
                yield parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin_last_backward(self) -> None:
        self._in_last_backward = True

    def _on_gradient(self, index: int, _: Tensor) -> None:
        if not self._in_last_backward:
            return
        self._gradients_missing[index] -= 1
        if not self._gradients_missing[index]:
            self._copy_gradients(index)

    @torch.no_grad()
    def _copy_gradients(self, index: int) -> None:
        staging = self._staging[index]
        with self._copy_stream():
            begin = self._timer.record()
            for parameter, slice_ in self._buckets[index].slices_by_parameter():
                assert parameter.grad is not None
                staging[slice_].copy_(parameter.grad.flatten(), non_blocking=True)
                if self._stream is not None:
                    parameter.grad.record_stream(self._stream)
                parameter.grad = None
            end = self._timer.record()
        self._copied[index] = end
        self._copies.append((begin, end))

    @torch.no_grad()
    def step(self) -> float:
        with _cpu_threads(self.threads):
            for index in range(len(self._buckets)):
                self._update(index)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._timer.synchronize()
        seconds = sum(begin.seconds_until(end) for begin, end in self._copies)
        self._reset()
        return seconds

    def discard_gradients(self) -> None:
        self._reset()
        _drop_gradients(self._buckets)

    def _update(self, index: int) -> None:
        master, staging, copied = self._masters[index], self._staging[index], self._copied[index]
        assert copied is not None
        copied.wait()
        master.grad = self._scratch[: len(staging)].copy_(staging)
        self._adams[index].step()
        staging.copy_(master)
        with self._copy_stream():
            begin = self._timer.record()
            self._buckets[index].weights.copy_(staging, non_blocking=True)
            self._copies.append((begin, self._timer.record()))

    @contextmanager
    def _copy_stream(self) -> Iterator[None]:
        """Use the copy stream, after all work that is on the current stream now."""
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


def _make_scratch(buckets: list[Bucket], device: torch.device) -> Tensor:
    """Allocate a float32 buffer for the gradients of the largest bucket."""
    return torch.zeros(max(len(bucket.weights) for bucket in buckets), dtype=torch.float32, device=device)


def _make_adam(master: nn.Parameter) -> torch.optim.AdamW:
    return torch.optim.AdamW([master], lr=LEARNING_RATE, fused=True)


@contextmanager
def _cpu_threads(count: int) -> Iterator[None]:
    """Use this number of CPU threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
