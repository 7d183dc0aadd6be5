"""The processes of one run: they start together, whoever starts them, and end together."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

from refold.backends import Report
from refold.backends.local.environment import RunEnvironment
from refold.backends.local.instance import Instance
from refold.backends.local.process_tree import ProcessTree
from refold.backends.local.run_files import Ending, RunFiles, StartNote
from refold.backends.local.safe_files import OUT_OF_SOMETHING, OutOfFileHandles, patiently
from refold.backends.local.shim import why_cannot_start
from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.model import Job, Seconds


class Gang:
    """One run, from its start or from where an earlier daemon has left it."""

    def __init__(
        self, job: Job, order: StartRun, files: RunFiles, tree: ProcessTree, grace: Seconds, folder: Path
    ) -> None:
        self.job = job
        self.run = order.run
        self.files = files
        self.instances = len(order.allocation.placement)
        self.told_to_stop = asyncio.Event()
        self._order = order
        self._tree = tree
        self._grace = grace if job.launch.grace is None else job.launch.grace
        self._folder = folder
        self._processes: list[Instance] = []

    def hurry(self) -> None:
        """End it without grace."""
        self._tree.hurry()
        self.told_to_stop.set()

    async def see_through(self, report: Report, environment: RunEnvironment) -> Ending:
        """Start it, wait, and end all of it whatever happens; then say how it went."""
        ending = await patiently(self.files.decided)
        if note := await patiently(self.files.start_note):
            self._tree.mark = note.mark
        cannot_start = None if ending else self._start(environment)
        if ending:
            self._take_up_what_is_left()
        waiting = {asyncio.create_task(instance.over()) for instance in self._processes}
        try:
            if ending is None:
                if cannot_start is None:
                    report(RunStarted(self.job.id, self.run))
                    await self._over_or_told_to_stop(waiting)
                ending = self._decide(cannot_start)
            await self._tree.end(self._grace, self._first_signal())
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
        return ending

    def _start(self, environment: RunEnvironment) -> RunFailed | None:
        """Start every instance that nobody has started; what went wrong, if something did."""
        if not self.job.command:
            return self._not_started("it has no command")
        word = self.job.command[0]
        try:
            note = self.files.note_start(StartNote(self._tree.mark, _free_port() if self.instances > 1 else 0))
            self._tree.mark = note.mark
            environments = environment.of_run(self.job, self._order, self.files, note, self._grace)
            if why := why_cannot_start(word, self._folder, environments[0]):
                return self._not_started(why)
            for number, variables in enumerate(environments):
                instance = Instance(self.files, number, self._tree)
                instance.start(self._folder, self.job.command, variables)
                self._processes.append(instance)
        except Exception as error:  # also of those who bring secrets: nothing is left running and unaccounted for
            why = f"cannot start {word!r}: {getattr(error, 'strerror', None) or error}"
            lacks = isinstance(error, OutOfFileHandles) or getattr(error, "errno", None) in OUT_OF_SOMETHING
            return self._not_started(why, retry=lacks)
        return None

    def _not_started(self, why: str, retry: bool = False) -> RunFailed:
        return RunFailed(self.job.id, self.run, why, retry=retry)

    def _take_up_what_is_left(self) -> None:
        """Of a run whose end is decided: what it takes to end it."""
        every = [Instance(self.files, number, self._tree) for number in range(self.instances)]
        self._processes = [instance for instance in every if instance.was_claimed()]

    async def _over_or_told_to_stop(self, waiting: set[asyncio.Task[None]]) -> None:
        """Until all have ended well, one has not, or the run is told to stop."""
        told = asyncio.create_task(self.told_to_stop.wait())
        left = set(waiting)
        try:
            while left and not told.done() and self._first_that_failed() is None:
                await asyncio.wait({told, *left}, return_when=asyncio.FIRST_COMPLETED)
                left = {task for task in left if not task.done()}
        finally:
            told.cancel()

    def _decide(self, cannot_start: RunFailed | None) -> Ending:
        """How it ends; on disk before anything is done about it, if there is room on the disk."""
        ending = cannot_start or self._ending()
        with suppress(OSError):  # who takes the run up after us looks at how its instances have ended, then
            self.files.decide(ending)
        return ending

    def _ending(self) -> Ending:
        bad = self._first_that_failed()
        if bad is not None:
            lost = any(instance.lost for instance in self._processes)
            return RunFailed(self.job.id, self.run, self._failure(bad), retry=lost, exit_code=bad.exit_code)
        if all(instance.failure == "" for instance in self._processes):
            return RunFinished(self.job.id, self.run)
        return RunStopped(self.job.id, self.run)

    def _first_that_failed(self) -> Instance | None:
        return next((instance for instance in self._processes if instance.failure), None)

    def _failure(self, bad: Instance) -> str:
        """How the first instance to do so has ended badly."""
        which = f"instance {self._processes.index(bad)}: " if self.instances > 1 else ""
        return which + (bad.failure or "")

    def _first_signal(self) -> signal.Signals:
        """What asks it to save what it has; what it leaves behind has nothing to save."""
        return signal.Signals[f"SIG{self.job.launch.stop_signal}"] if self.told_to_stop.is_set() else signal.SIGTERM


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
