"""Short forms for journals in tests."""

from __future__ import annotations

from refold.core import Entry
from refold.core.events import Event, JobSubmitted
from refold.core.orders import Order, StartRun, StopRun
from refold.model import Allocation, Job, Share


def submitted(job: Job) -> JobSubmitted:
    return JobSubmitted(job)


def start(job: str, run: int = 1, *, node: int = 0, gpus: tuple[int, ...] = (0,), milli: int = 1000) -> StartRun:
    return StartRun(job, run, Allocation((Share(node, gpus, milli),)))


def step(now: float, *items: Event | Order) -> Entry:
    orders = tuple(one for one in items if isinstance(one, StartRun | StopRun))
    events = tuple(one for one in items if not isinstance(one, StartRun | StopRun))
    return Entry(now, events, orders)
