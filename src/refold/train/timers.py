"""Timers and peak memory of devices."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

GIB = 2**30


class TimerEvent(Protocol):
    """A point in the work queue of a device. Its time is known once the device has reached it."""

    def wait(self) -> None:
        """Wait until the device has reached this point."""

    def seconds_until(self, later: TimerEvent) -> float:
        """Return the seconds from this event to a later one."""


class DeviceTimer(Protocol):
    """Measures time and memory on one kind of device."""

    def record(self) -> TimerEvent:
        """Record an event after all work submitted to the device so far."""

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""

    def reset_peak_memory(self) -> None:
        """Release unused memory and reset the peak."""

    def peak_memory_gib(self) -> tuple[float, float | None]:
        """Return the peak memory of tensors, and the peak of reserved memory if known."""


def make_timer(device: str) -> DeviceTimer:
    """Return the timer of a device."""
    return CudaTimer() if device.startswith("cuda") else HostTimer()


class HostTimer:
    """Timer of the CPU, which works synchronously. The memory of the process is sampled at each event."""

    def __init__(self) -> None:
        self._peak = _resident_gib()

    def record(self) -> HostEvent:
        self._peak = max(self._peak, _resident_gib())
        return HostEvent(perf_counter())

    def synchronize(self) -> None:
        pass

    def reset_peak_memory(self) -> None:
        self._peak = _resident_gib()

    def peak_memory_gib(self) -> tuple[float, float | None]:
        return self._peak, None


class HostEvent:
    """An event of the CPU: the time at which it was recorded."""

    def __init__(self, time: float) -> None:
        self.time = time

    def wait(self) -> None:
        pass

    def seconds_until(self, later: TimerEvent) -> float:
        assert isinstance(later, HostEvent)
        return later.time - self.time


class CudaTimer:
    """Timer of an NVIDIA GPU (or an AMD GPU, which PyTorch also calls cuda), which works asynchronously."""

    def record(self) -> CudaEvent:
        return CudaEvent()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def reset_peak_memory(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak_memory_gib(self) -> tuple[float, float | None]:
        return torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB


class CudaEvent:
    """A CUDA event on the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_until(self, later: TimerEvent) -> float:
        assert isinstance(later, CudaEvent)
        milliseconds: float = self.event.elapsed_time(later.event)
        return milliseconds / 1000


def _resident_gib() -> float:
    """Return the resident memory of the process; without /proc, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB  # in bytes on macOS, which has no /proc
    import os

    return pages * os.sysconf("SC_PAGESIZE") / GIB
