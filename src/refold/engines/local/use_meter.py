"""How many CPUs and how much memory jobs use at present, by their processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from time import monotonic

from refold.engines.local.process import ProcessInfo
from refold.model import Seconds
from refold.server import MachineUse

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGES_PER_MIB = 2**20 // os.sysconf("SC_PAGE_SIZE")


class UseMeter:
    """Compares the CPU time of processes with that of the measurement before.

    What a process uses after the last measurement before its end is not counted. Memory that processes share, as those
    of one training do that are forked, counts for each.
    """

    def __init__(self) -> None:
        self._measured_at: Seconds = monotonic()
        self._ticks: dict[tuple[int, int], int] = {}

    def measure(self, processes: Mapping[str, Iterable[ProcessInfo]]) -> dict[str, MachineUse]:
        now, before = monotonic(), self._ticks
        seconds = max(now - self._measured_at, 1 / TICKS_PER_SECOND)
        self._measured_at, self._ticks = now, {}
        return {job: self._use_of(infos, before, seconds) for job, infos in processes.items()}

    def _use_of(
        self, processes: Iterable[ProcessInfo], before: Mapping[tuple[int, int], int], seconds: Seconds
    ) -> MachineUse:
        used = pages = 0
        for info in processes:
            identity = info.pid, info.started
            self._ticks[identity] = info.cpu_ticks
            used += info.cpu_ticks - before.get(identity, 0)
            pages += info.memory_pages
        return MachineUse(round(used / TICKS_PER_SECOND / seconds, 2), pages // PAGES_PER_MIB)
