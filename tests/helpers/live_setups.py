"""Drive jobs in tests: as real processes, or on a scripted backend without delays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from refold.core import Entry, Header, Journal, ListJournal, Policy, Scheduler, View
from refold.core.events import RunFinished, RunStarted, RunStopped
from refold.core.orders import Order, StartRun, StopRun
from refold.core.scheduler import raise_rejection
from refold.engines.local.backend import LocalBackend, local_cluster
from refold.errors import BadDecision
from refold.journal.files import JournalFile, read_journal
from refold.model import Demand, Job
from refold.server.backend import Backend, Report
from refold.server.batch import BatchRun, JobOutcome
from refold.server.clock import WallClock
from refold.server.subscribers import LoopStep
from refold.simulator.registry import make_policy

TIMEOUT_SECONDS = 30.0
SHORT_GRACE = 0.5

Wrap = Callable[[Callable[[Report], Backend], Report], Backend]


def shell_job(name: str, command: str, *, at: float = 0.0, gpus: int = 1, instances: int = 1, **more: Any) -> Job:
    """Return a job that runs a shell command."""
    return Job(name, at, Demand(instances, gpus), command=("sh", "-c", command), **more)


def unwrapped(make: Callable[[Report], Backend], report: Report) -> Backend:
    """Return the backend unchanged."""
    return make(report)


def drive(
    jobs: Sequence[Job],
    folder: Path,
    *,
    slots: int = 1,
    policy: str = "fifo",
    settings: dict[str, Any] | None = None,
    wrap: Wrap = unwrapped,
) -> dict[str, JobOutcome]:
    """Run jobs as real processes with a journal in the folder; return their outcomes."""
    header = Header(local_cluster(slots), policy, settings or {})

    async def bounded(journal: Journal) -> dict[str, JobOutcome]:
        scheduler = Scheduler(header.cluster, make_policy(header.policy, header.settings))
        batch = BatchRun(jobs, scheduler, header, journal, WallClock(), ignore_step)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await batch.run(wrap(lambda report: LocalBackend(report, folder / "logs", SHORT_GRACE), batch.report))
        return batch.outcomes()

    with JournalFile(folder / "journal.jsonl", header, durable=True) as journal:
        return asyncio.run(bounded(journal))


def ignore_step(step: LoopStep) -> None:
    """Do nothing."""


def all_finished(outcomes: Mapping[str, JobOutcome]) -> bool:
    """Whether every job has finished."""
    return all(outcome.state == "finished" for outcome in outcomes.values())


def entries_of(folder: Path) -> list[Entry]:
    """Return the entries of the journal."""
    return list(read_journal(folder / "journal.jsonl")[1])


def starts(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Return the runs that were ordered to start, in order."""
    return [(order.job, order.run) for entry in entries for order in entry.orders if isinstance(order, StartRun)]


def stops(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Return the runs that were ordered to stop, in order."""
    return [(order.job, order.run) for entry in entries for order in entry.orders if isinstance(order, StopRun)]


class JumpingClock:
    """A clock that jumps to the requested time unless an event is set."""

    def __init__(self) -> None:
        self._now = 0.0
        self.deadlines: list[float | None] = []

    def now(self) -> float:
        return self._now

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        await asyncio.sleep(0)
        self.deadlines.append(until)
        if until is None:
            await event.wait()
        elif not event.is_set():
            self._now = max(self._now, until)


class ScriptedBackend:
    """Runs nothing. Runs finish at once, except those of jobs in `keep_running`, which end when ordered to stop."""

    def __init__(self, report: Report, keep_running: Sequence[str] = ()) -> None:
        self._report = report
        self._keep_running = keep_running
        self.carried_out: list[Order] = []
        self.closed = False
        self.left = False
        self.kept_runs: set[tuple[str, int]] | None = None

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        for order in orders:
            self.carried_out.append(order)
            match order:
                case StartRun(job_id, number):
                    assert job_id in jobs
                    self._report(RunStarted(job_id, number))
                    if job_id not in self._keep_running:
                        self._report(RunFinished(job_id, number))
                case StopRun(job_id, number):
                    self._report(RunStopped(job_id, number))

    async def close(self) -> None:
        self.closed = True

    async def detach(self) -> None:
        self.left = True

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        self.kept_runs = set(runs)


async def run_instantly(
    policy: Policy,
    jobs: Sequence[Job],
    *,
    on_rejection: Callable[[BadDecision], None] = raise_rejection,
    keep_running: Sequence[str] = (),
    after_step: Callable[[BatchRun, Entry], None] = lambda _, __: None,
) -> tuple[list[Entry], View, ScriptedBackend]:
    """Run jobs on one slot without real delays; return the journal, the final view and the backend."""
    journal, cluster = ListJournal(), local_cluster(1)
    scheduler = Scheduler(cluster, policy, on_rejection=on_rejection)

    def on_step(step: LoopStep) -> None:
        after_step(batch, step.entry)

    batch = BatchRun(jobs, scheduler, Header(cluster, policy.name, {}), journal, JumpingClock(), on_step)
    backend = ScriptedBackend(batch.report, keep_running)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await batch.run(backend)
    return journal.entries, scheduler.view, backend
