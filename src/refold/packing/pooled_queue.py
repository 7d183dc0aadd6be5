"""Rough start estimates: simulate a queue as if all GPUs of the cluster were one machine."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from refold.jit import compiled
from refold.packing.layout import Floats


@compiled
def estimate_fifo_starts(
    now: float, free: float, ends: Floats, gpus_in_use: Floats, gpus_requested: Floats, durations: Floats
) -> Floats:
    """Return the start time of each queued job if jobs start strictly in order when enough GPUs are free; inf: never.

    `ends` and `gpus_in_use` describe the running jobs, `gpus_requested` and `durations` (seconds) the queued ones.
    """
    starts = np.full(len(gpus_requested), np.inf)
    running = [(ends[run], gpus_in_use[run]) for run in range(len(ends))]
    heapify(running)
    for position in range(len(gpus_requested)):
        while free < gpus_requested[position]:
            if len(running) == 0:
                return starts
            end, gpus = heappop(running)
            now = max(now, end)
            free += gpus
        free -= gpus_requested[position]
        starts[position] = now
        heappush(running, (now + durations[position], gpus_requested[position]))
    return starts
