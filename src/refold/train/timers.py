"""When something was reached on a device, and how much memory it took until then."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

GIB = 2**30


class Mark(Protocol):
    """A point in the work of a device, from which time is told once the device has passed it."""

    def wait(self) -> None:
        """Until the device is here."""

    def seconds_until(self, later: Mark) -> float:
        """From here to there."""


class DeviceTimer(Protocol):
    """What tells time and memory on one kind of device."""

    def mark(self) -> Mark:
        """Here, in the work handed to the device so far."""

    def finish(self) -> None:
        """Wait until the device has done all its work."""

    def forget(self) -> None:
        """Give back memory that nobody uses, and begin to look for a new peak."""

    def peak_gib(self) -> tuple[float, float | None]:
        """The most that tensors took, and the most that was held for them, where that is known."""


def clock_of(device: str) -> DeviceTimer:
    """The one for this device."""
    return CudaTimer() if device.startswith("cuda") else HostTimer()


class HostTimer:
    """The CPU, which has done its work when it says so. Its memory is that of the process, looked at in each mark."""

    def __init__(self) -> None:
        self._peak = _resident_gib()

    def mark(self) -> HostMark:
        self._peak = max(self._peak, _resident_gib())
        return HostMark(perf_counter())

    def finish(self) -> None:
        pass

    def forget(self) -> None:
        self._peak = _resident_gib()

    def peak_gib(self) -> tuple[float, float | None]:
        return self._peak, None


class HostMark:
    def __init__(self, at: float) -> None:
        self.at = at

    def wait(self) -> None:
        pass

    def seconds_until(self, later: Mark) -> float:
        assert isinstance(later, HostMark)
        return later.at - self.at


class CudaTimer:
    """A GPU of NVIDIA's (or AMD's, under the same name), which works while the program goes on."""

    def mark(self) -> CudaMark:
        return CudaMark()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def forget(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> tuple[float, float | None]:
        return torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB


class CudaMark:
    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_until(self, later: Mark) -> float:
        assert isinstance(later, CudaMark)
        milliseconds: float = self.event.elapsed_time(later.event)
        return milliseconds / 1000


def _resident_gib() -> float:
    """What the process has in memory now; where that is not to be had, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB  # bytes, where there is no /proc: macOS
    import os

    return pages * os.sysconf("SC_PAGESIZE") / GIB
