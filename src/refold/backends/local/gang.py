"""The gang of one run: its instances start together and end together."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from refold.backends import Report
from refold.backends.local.environment import LOOPBACK_ADDRESS, RunEnvironment, output_path
from refold.backends.local.instance import Instance
from refold.backends.local.process_tree import ProcessTree
from refold.backends.local.run_files import RunEnd, RunFiles, StartRecord
from refold.backends.local.safe_files import SHORTAGE_ERRNOS, ResourceShortage, retry_on_shortage
from refold.backends.local.shim import OutputCopy, find_start_problem
from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.model import Job, Seconds


class Gang:
    """One run, started by this daemon or adopted from an earlier one."""

    def __init__(
        self, job: Job, order: StartRun, files: RunFiles, tree: ProcessTree, grace: Seconds, folder: Path
    ) -> None:
        self.job = job
        self.run = order.run
        self.files = files
        self.instances = len(order.allocation.placement)
        self.stop_requested = asyncio.Event()
        self._order = order
        self._tree = tree
        self._grace = grace if job.launch.grace is None else job.launch.grace
        self._folder = folder
        self._instances: list[Instance] = []

    def kill(self) -> None:
        """End the run without a grace period."""
        self._tree.skip_grace()
        self.stop_requested.set()

    async def supervise(self, report: Report, environment: RunEnvironment) -> RunEnd:
        """Start or adopt the run, wait for its end, end all of its processes, and return how it ended."""
        end = await retry_on_shortage(self.files.read_end)
        if record := await retry_on_shortage(self.files.read_start):
            self._tree.mark = record.mark
        start_failure = None if end else self._start(environment)
        if end:
            self._adopt_claimed()
        exits = {asyncio.create_task(instance.wait()) for instance in self._instances}
        try:
            if end is None:
                if start_failure is None:
                    report(RunStarted(self.job.id, self.run))
                    await self._wait_for_end_or_stop(exits)
                end = self._record_end(start_failure)
            await self._tree.end(self._grace, self._first_signal())
            await asyncio.gather(*exits)
        finally:
            for task in exits:
                task.cancel()
        return end

    def _start(self, environment: RunEnvironment) -> RunFailed | None:
        """Start every instance that is not running yet, and return the failure, if there is one."""
        if not self.job.command:
            return self._start_failure("the job has no command")
        program = self.job.command[0]
        try:
            record = self.files.record_start(StartRecord(self._tree.mark, *_find_ports(self.instances)))
            self._tree.mark = record.mark
            environments = environment.build(self.job, self._order, self.files, record, self._grace)
            copies = [self._copies(number) for number in range(self.instances)]
            if problem := find_start_problem(program, self._folder, environments[0], sum(copies, ())):
                return self._start_failure(problem)
            for number, variables in enumerate(environments):
                instance = Instance(self.files, number, self._tree)
                instance.start(self._folder, self.job.command, variables, copies[number])
                self._instances.append(instance)
        except Exception as error:  # including errors of `secrets`: instances that have started must be ended
            problem = f"cannot start {program!r}: {getattr(error, 'strerror', None) or error}"
            shortage = isinstance(error, ResourceShortage) or getattr(error, "errno", None) in SHORTAGE_ERRNOS
            return self._start_failure(problem, retry=shortage)
        return None

    def _copies(self, instance: int) -> tuple[OutputCopy, ...]:
        """Return the files that receive a copy of an instance's output. The first run replaces their content."""
        patterns = {"output": self.job.launch.output, "error": self.job.launch.error}
        copies: list[OutputCopy] = []
        for stream, pattern in patterns.items():
            path = output_path(pattern, self.job, self._folder, instance)
            is_first = instance == 0 or path != output_path(pattern, self.job, self._folder, 0)
            copies.append(OutputCopy(stream, path, replace=self.run == 1 and is_first))
        return tuple(copies)

    def _start_failure(self, why: str, retry: bool = False) -> RunFailed:
        return RunFailed(self.job.id, self.run, why, retry=retry)

    def _adopt_claimed(self) -> None:
        """Adopt the started instances of a run whose end is recorded, in order to end them."""
        instances = [Instance(self.files, number, self._tree) for number in range(self.instances)]
        self._instances = [instance for instance in instances if instance.is_claimed()]

    async def _wait_for_end_or_stop(self, exits: set[asyncio.Task[None]]) -> None:
        """Wait until all instances have succeeded, one has failed, or a stop is requested."""
        stop = asyncio.create_task(self.stop_requested.wait())
        pending = set(exits)
        try:
            while pending and not stop.done() and self._first_failed() is None:
                await asyncio.wait({stop, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in pending if not task.done()}
        finally:
            stop.cancel()

    def _record_end(self, start_failure: RunFailed | None) -> RunEnd:
        """Determine how the run ends, and write it to disk before its processes are signalled."""
        end = start_failure or self._end()
        with suppress(OSError):  # without the file, the next daemon derives the end from the instances' exit statuses
            self.files.record_end(end)
        return end

    def _end(self) -> RunEnd:
        failed = self._first_failed()
        if failed is not None:
            lost = any(instance.lost for instance in self._instances)
            return RunFailed(self.job.id, self.run, self._failure_text(failed), retry=lost, exit_code=failed.exit_code)
        if all(instance.failure == "" for instance in self._instances):
            return RunFinished(self.job.id, self.run)
        return RunStopped(self.job.id, self.run)

    def _first_failed(self) -> Instance | None:
        return next((instance for instance in self._instances if instance.failure), None)

    def _failure_text(self, failed: Instance) -> str:
        prefix = f"instance {self._instances.index(failed)}: " if self.instances > 1 else ""
        return prefix + (failed.failure or "")

    def _first_signal(self) -> signal.Signals:
        """Return the job's stop signal for a requested stop; SIGTERM for processes that outlive their instance."""
        return signal.Signals[f"SIG{self.job.launch.stop_signal}"] if self.stop_requested.is_set() else signal.SIGTERM


def _find_ports(instances: int) -> tuple[int, tuple[int, ...]]:
    """Return free ports for the rendezvous of a gang and for each of its instances; none for a single process."""
    if instances == 1:
        return 0, ()
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(instances + 1)]
        for probe in probes:
            probe.bind((LOOPBACK_ADDRESS, 0))
        port, *worker_ports = (probe.getsockname()[1] for probe in probes)
        return port, tuple(worker_ports)
