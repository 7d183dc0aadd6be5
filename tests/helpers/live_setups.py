"""Driving lists of commands in tests: on real processes, or on a back end and a clock that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from refold.backends.backend import Backend, Report
from refold.backends.local.backend import LocalBackend, local_cluster
from refold.core import Entry, Header, Journal, Scheduler, View
from refold.core.events import Event, RunFinished, RunStarted, RunStopped
from refold.core.orders import Order, StartRun, StopRun
from refold.journal.files import JournalFile, read_journal
from refold.model import Demand, Job
from refold.registry import make_policy
from refold.server.clock import WallClock
from refold.server.driver import LiveDriver, nobody_watches
from refold.server.outcomes import JobOutcomes

PATIENCE = 30.0
SHORT_GRACE = 0.5

Wrap = Callable[[Callable[[Report], Backend], Report], Backend]


def shell_job(name: str, command: str, *, at: float = 0.0, gpus: int = 1, instances: int = 1, **more: Any) -> Job:
    """A job that runs a shell command."""
    return Job(name, at, Demand(instances, gpus), command=("sh", "-c", command), **more)


def unwrapped(make: Callable[[Report], Backend], report: Report) -> Backend:
    """The back end as it is."""
    return make(report)


def drive(
    jobs: Sequence[Job],
    folder: Path,
    *,
    slots: int = 1,
    policy: str = "fifo",
    settings: dict[str, Any] | None = None,
    wrap: Wrap = unwrapped,
) -> JobOutcomes:
    """Run jobs as real processes, with a journal in the folder; what became of them."""
    outcomes = JobOutcomes(jobs)
    header = Header(local_cluster(slots), policy, settings or {})

    async def bounded(journal: Journal) -> None:
        scheduler = Scheduler(header.cluster, make_policy(header.policy, header.settings), journal)
        driver = LiveDriver(scheduler, jobs, WallClock(), lambda entry, view: _ignore(outcomes.note(entry, view)))
        async with asyncio.timeout(PATIENCE):
            await driver.drive(wrap(lambda report: LocalBackend(report, folder / "logs", SHORT_GRACE), driver.report))

    with JournalFile(folder / "journal.jsonl", header, safe=True) as journal:
        asyncio.run(bounded(journal))
    return outcomes


def _ignore(news: list[Event]) -> None:
    """Tests look at the outcomes."""


def entries_of(folder: Path) -> list[Entry]:
    """What the journal has."""
    return list(read_journal(folder / "journal.jsonl")[1])


def starts(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Which runs were ordered to start, in order."""
    return [(order.job, order.run) for entry in entries for order in entry.orders if isinstance(order, StartRun)]


def stops(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Which runs were ordered to stop, in order."""
    return [(order.job, order.run) for entry in entries for order in entry.orders if isinstance(order, StopRun)]


class JumpingClock:
    """Time that passes when it is waited for, and only if nothing else has come."""

    def __init__(self) -> None:
        self._now = 0.0
        self.asked_for: list[float | None] = []

    def now(self) -> float:
        return self._now

    async def wait(self, something: asyncio.Event, until: float | None) -> None:
        await asyncio.sleep(0)
        self.asked_for.append(until)
        if until is None:
            await something.wait()
        elif not something.is_set():
            self._now = max(self._now, until)


class ScriptedBackend:
    """Runs nothing. Runs finish at once, but for those of jobs that `go_on`: these end when they are told to."""

    def __init__(self, report: Report, go_on: Sequence[str] = ()) -> None:
        self._report = report
        self._go_on = go_on
        self.carried_out: list[Order] = []
        self.closed = False
        self.left = False
        self.kept: set[tuple[str, int]] | None = None

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        for order in orders:
            self.carried_out.append(order)
            match order:
                case StartRun(job_id, number):
                    assert job_id in jobs
                    self._report(RunStarted(job_id, number))
                    if job_id not in self._go_on:
                        self._report(RunFinished(job_id, number))
                case StopRun(job_id, number):
                    self._report(RunStopped(job_id, number))

    async def close(self) -> None:
        self.closed = True

    async def leave(self) -> None:
        self.left = True

    async def keep_only(self, runs: Collection[tuple[str, int]]) -> None:
        self.kept = set(runs)


async def pretend(
    scheduler: Scheduler,
    jobs: Sequence[Job],
    *,
    go_on: Sequence[str] = (),
    after_step: Callable[[LiveDriver, Entry], None] = lambda _, __: None,
) -> tuple[ScriptedBackend, JumpingClock]:
    """Drive jobs where nothing takes time."""
    clock = JumpingClock()

    def watch(entry: Entry, view: View) -> None:
        nobody_watches(entry, view)
        after_step(driver, entry)

    driver = LiveDriver(scheduler, jobs, clock, watch)
    backend = ScriptedBackend(driver.report, go_on)
    async with asyncio.timeout(PATIENCE):
        await driver.drive(backend)
    return backend, clock
