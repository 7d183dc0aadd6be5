"""Event loops over arrivals and departures without scheduling decisions: the minimum cost of event handling.

Jobs are two columns, submission time and duration. A job departs as soon as its duration has passed after submission.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import simpy


def merged(submitted: Sequence[float], work: Sequence[float]) -> int:
    """Merge the sorted arrivals with a heap of departures: the fastest `heapq` loop. Return the number of events."""
    departures: list[tuple[float, int]] = []
    arrived = events = 0
    count = len(submitted)
    while arrived < count or departures:
        if departures and (arrived == count or departures[0][0] <= submitted[arrived]):
            heappop(departures)
        else:
            heappush(departures, (submitted[arrived] + work[arrived], arrived))
            arrived += 1
        events += 1
    return events


def all_in_heap(submitted: Sequence[float], work: Sequence[float]) -> int:
    """Push every event through one heap, as a general event loop does. Return the number of events."""
    count = len(submitted)
    heap = [(at, job) for job, at in enumerate(submitted)]
    heapify(heap)
    events = 0
    while heap:
        now, event = heappop(heap)
        if event < count:
            heappush(heap, (now + work[event], count + event))
        events += 1
    return events


def in_simpy(submitted: Sequence[float], work: Sequence[float]) -> int:
    """Run SimPy with one process for arrivals and one for each job. Return the number of events."""
    environment = simpy.Environment(submitted[0] if submitted else 0.0)
    events = 0

    def job(duration: float) -> Generator[simpy.Event, Any, None]:
        nonlocal events
        yield environment.timeout(duration)
        events += 1

    def arrivals() -> Generator[simpy.Event, Any, None]:
        nonlocal events
        for at, duration in zip(submitted, work, strict=True):
            yield environment.timeout(at - environment.now)
            events += 1
            environment.process(job(duration))

    environment.process(arrivals())
    environment.run()
    return events
