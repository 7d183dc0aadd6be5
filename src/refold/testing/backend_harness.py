"""A back end under test, with its reports. The contract suite and tests of single back ends use it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from refold.core import Event, Order, RunFailed, RunFinished, RunStarted, RunStopped, StartRun, StopRun
from refold.model import Allocation, Demand, Job, RunUsage, Share
from refold.server import Backend, Report

LONG_GRACE = 600.0
"""Grace period that is longer than the time limit: a test that waits for it to expire fails."""

Ending = RunFinished | RunFailed | RunStopped


class BackendHarness:
    """A back end under test, its reports, and shortcuts for orders."""

    def __init__(self, make: Callable[[Report], Backend], folder: Path) -> None:
        self.reports: list[Event] = []
        """All reports. What runs have used is in `usage`."""
        self.usage: dict[tuple[str, int], RunUsage] = {}
        self.folder = folder
        self._reported = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[str, Job] = {}
        self._make = make
        self.backend = make(self._report)

    def _report(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._add_report, event)

    def _add_report(self, event: Event) -> None:
        if isinstance(event, RunFinished | RunFailed | RunStopped) and event.usage is not None:
            self.usage[event.job, event.run] = event.usage
            event = replace(event, usage=None)
        self.reports.append(event)
        self._reported.set()

    async def start(self, job: str, shell: str, run: int = 1, instances: int = 1) -> None:
        """Start a run of a shell script, with one GPU per instance."""
        await self.start_command(job, ("sh", "-c", f"cd '{self.folder}'\n{shell}"), run, instances)

    async def start_command(self, job: str, command: Sequence[str], run: int = 1, instances: int = 1) -> None:
        """Start a run of a command given as a list of arguments."""
        self.add_job(Job(job, demand=Demand(instances), command=tuple(command)))
        await self.order(StartRun(job, run, Allocation(tuple(Share(0, (gpu,)) for gpu in range(instances)))))

    def add_job(self, job: Job) -> None:
        """Add a job, whose runs are started by `order`."""
        self._jobs[job.id] = job

    async def replace_backend(self) -> None:
        """Detach the back end and create another one that only knows the contents of the folder."""
        await self.backend.detach()
        await asyncio.sleep(0)
        self.reports.clear()
        self.backend = self._make(self._report)

    async def stop(self, job: str, run: int = 1) -> None:
        """Order a run to stop."""
        await self.order(StopRun(job, run))

    async def order(self, *orders: Order) -> None:
        """Let the back end carry out orders."""
        await self.backend.carry_out(orders, self._jobs)

    async def ending(self, job: str, run: int = 1) -> Ending:
        """Wait until the end of a run is reported, and return the report."""
        while not (endings := self.endings(job, run)):
            await self._next_report()
        return endings[0]

    async def started(self, job: str, run: int = 1) -> None:
        """Wait until the start of a run is reported."""
        while RunStarted(job, run) not in self.reports:
            await self._next_report()

    async def content(self, name: str) -> str:
        """Wait until a process has written a line to a file of the folder, and return it."""
        path = self.folder / name
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.02)
        return path.read_text().strip()

    def endings(self, job: str, run: int = 1) -> list[Ending]:
        """Return all reported ends of a run."""
        return [
            event
            for event in self.reports
            if isinstance(event, RunFinished | RunFailed | RunStopped) and (event.job, event.run) == (job, run)
        ]

    async def wait_for_file(self, name: str) -> None:
        """Wait until a file of the folder exists."""
        while not (self.folder / name).exists():
            await asyncio.sleep(0.02)

    async def _next_report(self) -> None:
        self._reported.clear()
        await self._reported.wait()


Check = Callable[[Any, BackendHarness], Coroutine[Any, Any, None]]


def on_backend(grace: float = LONG_GRACE) -> Callable[[Check], Callable[[Any, Path], None]]:
    """Make a test of a contract suite of a function that is called with a new back end."""

    def make_test(check: Check) -> Callable[[Any, Path], None]:
        def test(self: Any, tmp_path: Path) -> None:
            self.run_test(tmp_path, partial(check, self), grace)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return make_test


def is_running(pid: int) -> bool:
    """Return whether a process of this machine is running; zombies are not."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
