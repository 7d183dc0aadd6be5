"""Short forms for journals in tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from refold.core import Entry, Header
from refold.core.events import Event, JobSubmitted
from refold.core.orders import Order, StartRun, StopRun
from refold.journal.files import JournalFile
from refold.model import Allocation, Job, Share


def submitted(job: Job) -> JobSubmitted:
    return JobSubmitted(job)


def start(job: str, run: int = 1, *, node: int = 0, gpus: tuple[int, ...] = (0,), milli: int = 1000) -> StartRun:
    return StartRun(job, run, Allocation((Share(node, gpus, milli),)))


def step(now: float, *items: Event | Order) -> Entry:
    orders = tuple(one for one in items if isinstance(one, StartRun | StopRun))
    events = tuple(one for one in items if not isinstance(one, StartRun | StopRun))
    return Entry(now, events, orders)


def write_entries(path: Path, header: Header, entries: Iterable[Entry]) -> str:
    """Write a journal file; return its path, as the argument of a command."""
    with JournalFile(path, header) as file:
        for entry in entries:
            file.write(entry)
    return str(path)
