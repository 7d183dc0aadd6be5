"""A queue played forward as if all GPUs were one machine: a rough answer to when somebody's turn will come."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from refold.packing.jit import compiled
from refold.packing.layout import Floats


@compiled
def starts_in_turn(now: float, free: float, ends: Floats, held: Floats, wanted: Floats, distribution: Floats) -> Floats:
    """When each of a queue starts, if everybody starts in order as soon as enough GPUs are free; inf: never.

    Runs hold GPUs until they end; those in the queue want some for so long.
    """
    starts = np.full(len(wanted), np.inf)
    running = [(ends[run], held[run]) for run in range(len(ends))]
    heapify(running)
    for place in range(len(wanted)):
        while free < wanted[place]:
            if len(running) == 0:
                return starts
            end, gpus = heappop(running)
            now = max(now, end)
            free += gpus
        free -= wanted[place]
        starts[place] = now
        heappush(running, (now + distribution[place], wanted[place]))
    return starts
