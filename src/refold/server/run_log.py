"""The runs of the recent past, read from the journal in the store: what ran where, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from refold.client.api import Caller, Timeline, TimelineRun
from refold.core import Entry, JobSubmitted, RunAdopted, RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.model import Allocation, Seconds
from refold.server.live_state import LiveState
from refold.server.status import wire_placement
from refold.server.store import StoreReader

MAX_ENTRIES = 20_000
"""Entries of the journal that are read at most, from its end."""

MAX_RUNS = 20_000
"""Ended runs that are kept."""


MAX_OWNERS = 100_000
"""Jobs whose tenant and user are kept; those of others are looked up."""


class LoggedRun(msgspec.Struct):
    """A run. Times are seconds since the start of the journal; `end` is None while it runs.

    `computing`: when it had started up; `stopping`: when it was ordered to stop.
    """

    job: str
    number: int
    tenant: str
    user: str
    start: Seconds
    allocation: Allocation
    end: Seconds | None = None
    ending: str = ""
    computing: Seconds | None = None
    stopping: Seconds | None = None

    @property
    def overhead(self) -> Seconds:
        """How long the run has held its GPUs while it was starting or stopping."""
        starting = 0.0 if self.computing is None else self.computing - self.start
        return starting + (self.end - self.stopping if self.end is not None and self.stopping is not None else 0.0)


class RunLog:
    """The latest runs of the current epoch of the journal, as far as its last entries reach."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._next = 0
        self._epoch = -1
        self._owners: dict[str, tuple[str, str]] = {}
        self._open: dict[str, LoggedRun] = {}
        self._ended: list[LoggedRun] = []
        self._lock = asyncio.Lock()

    async def ended_since(self, since: Seconds) -> list[LoggedRun]:
        """Return the runs that have ended since a time, in the order of their end."""
        async with self._lock:
            await asyncio.to_thread(self._read)
            return [run for run in self._ended if run.end is not None and run.end >= since]

    def _read(self) -> None:
        journal = self._reader.journal
        epoch = journal.last_epoch()
        if epoch is None:
            return
        if epoch.number != self._epoch:  # nodes may have other numbers from now on
            self._epoch = epoch.number
            self._open, self._ended = {}, []
            self._next = max(epoch.first_entry, journal.last_entry() - MAX_ENTRIES + 1)
        last = journal.last_entry()
        if last >= self._next:
            self._fold(journal.entries(self._next))
            self._next = last + 1
        del self._ended[:-MAX_RUNS]

    def _fold(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            for event in entry.events:
                match event:
                    case JobSubmitted(job):
                        self._owners[job.id] = job.tenant, job.user
                        if len(self._owners) > MAX_OWNERS:
                            del self._owners[next(iter(self._owners))]
                    case RunAdopted():
                        self._begin(event.job, event.run, event.since, event.allocation)
                    case RunStarted(job_id, number):
                        if (run := self._open.get(job_id)) is not None and run.number == number:
                            run.computing = entry.now
                    case RunFinished():
                        self._end(event.job, event.run, entry.now, "finished")
                    case RunStopped():
                        self._end(event.job, event.run, entry.now, "stopped")
                    case RunFailed():
                        self._end(event.job, event.run, entry.now, "failed")
                    case _:
                        pass
            for order in entry.orders:
                if isinstance(order, StartRun):
                    self._begin(order.job, order.run, entry.now, order.allocation)
                elif (run := self._open.get(order.job)) is not None and run.number == order.run:
                    run.stopping = entry.now

    def _begin(self, job: str, number: int, start: Seconds, allocation: Allocation) -> None:
        tenant, user = self._owners.get(job) or self._read_owner(job)
        self._open[job] = LoggedRun(job, number, tenant, user, start, allocation)

    def _end(self, job: str, number: int, now: Seconds, ending: str) -> None:
        run = self._open.get(job)
        if run is not None and run.number == number:
            del self._open[job]
            run.end, run.ending = now, ending
            self._ended.append(run)

    def _read_owner(self, job: str) -> tuple[str, str]:
        """Return tenant and user of a job that was submitted before the entries that are read."""
        ended = self._reader.ended_job(job)
        return ("", "") if ended is None else (ended.tenant, ended.user)


# The timeline as the API reports it: runs of the recent past, and how busy the GPUs were.

MAX_SENT_RUNS = 5_000
MAX_SENT_READINGS = 400


async def make_timeline(
    caller: Caller, state: LiveState, run_log: RunLog, seconds: Seconds, busy: Sequence[tuple[float, float]]
) -> Timeline:
    """Return the runs of the last seconds. `busy`: readings, by Unix time."""
    now = state.now()
    since = now - seconds
    runs = [*await run_log.ended_since(since), *_open_runs(state)]
    sent = runs[-MAX_SENT_RUNS:]
    first = state.wall_time(since)
    return Timeline(
        state.wall_time(now),
        first,
        [_wire_run(caller, state, run) for run in sent],
        _thin_out([reading for reading in busy if reading[0] >= first]),
        len(sent) == len(runs),
    )


def _open_runs(state: LiveState) -> list[LoggedRun]:
    """Return the runs of now, also those that are older than the entries of the journal that were read."""
    return [
        LoggedRun(job.id, run.number, job.tenant, job.user, run.start, run.allocation)
        for job, run in ((record.job, record.current) for record in state.job_table.records.values())
        if run is not None
    ]


def _wire_run(caller: Caller, state: LiveState, run: LoggedRun) -> TimelineRun:
    return TimelineRun(
        run.job,
        run.number,
        run.tenant,
        run.user if caller.can_read(run.tenant, run.user) else "",
        state.wall_time(run.start),
        None if run.end is None else state.wall_time(run.end),
        run.ending,
        wire_placement(run.allocation, state.view.cluster),
        run.overhead,
    )


def _thin_out(readings: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of as many groups of readings as are sent at most."""
    size = -(-len(readings) // MAX_SENT_READINGS) or 1
    groups = (readings[first : first + size] for first in range(0, len(readings), size))
    return [(group[0][0], sum(value for _, value in group) / len(group)) for group in groups]
