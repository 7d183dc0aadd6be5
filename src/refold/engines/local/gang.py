"""The gang of one run: its instances start together and end together."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from refold.core import ChangeMeasured, RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.engines.local.environment import LOOPBACK_ADDRESS, RunEnvironment
from refold.engines.local.instance import Instance
from refold.engines.local.live_change import (
    change_live,
    discard,
    has_agent,
    has_same_nodes,
    read_answer,
    take_over,
    withdraw_request,
)
from refold.engines.local.process import ProcessInfo
from refold.engines.local.process_host import OutputCopy
from refold.engines.local.process_tree import ProcessTree
from refold.engines.local.run_groups import InstanceUsage, limits_of, out_of_memory_text, total_usage
from refold.engines.local.shim import output_copies
from refold.model import Allocation, ChangeRequest, InstanceGpus, Job, Seconds, run_plan
from refold.server import Report
from refold.server.output import (
    SHORTAGE_ERRNOS,
    ResourceShortage,
    RunEnd,
    RunFiles,
    StartRecord,
    is_regular,
    retry_on_shortage,
)

KILLED = 128 + signal.SIGKILL
"""Exit code of a process that was killed, as a shell reports it."""

RESTART_SECONDS: Seconds = 5.0
"""Pause before an instance is started again without which the others go on."""

MAX_RESTARTS = 3
"""How often each instance of a run is started again."""

log = logging.getLogger("refold")


class Gang:
    """One run, started by this daemon or adopted from an earlier one.

    `next_allocation`: that of the next run, if the processes have become that run by a live change.
    """

    def __init__(
        self,
        job: Job,
        order: StartRun,
        files: RunFiles,
        tree: ProcessTree,
        grace: Seconds,
        folder: Path,
        max_output: int,
    ) -> None:
        self.job = job
        self.run = order.run
        self.files = files
        self.instances = len(order.allocation.placement)
        self.next_allocation: Allocation | None = None
        self._stop_requested = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._change_requested: asyncio.Future[Allocation] = asyncio.get_running_loop().create_future()
        self._order = order
        self._tree = tree
        self._grace = grace
        self._folder = folder
        self._max_output = max_output
        self._instances: list[Instance] = []
        self._is_taken_over = False

    def stop(self, next_allocation: Allocation | None = None) -> None:
        """End the run. With a next allocation, its processes may continue there as the next run."""
        if next_allocation is None:
            self._stop_requested.set()
        elif not self._change_requested.done():
            self._change_requested.set_result(next_allocation)

    async def processes(self) -> list[ProcessInfo]:
        return await self._tree.processes()

    def kill(self) -> None:
        """End the run without a grace period."""
        self._tree.skip_grace()
        self.stop()

    async def supervise(self, report: Report, environment: RunEnvironment) -> RunEnd:
        """Start or adopt the run, wait for its end, end all of its processes, and return how it ended.

        After a live change the processes are not ended: they have become the next run.
        """
        end = await retry_on_shortage(self.files.read_end)
        if record := await self._read_start():
            self._tree.mark = record.mark
            next_record = await retry_on_shortage(self._next_files.read_start)
            if end is None and next_record is not None and next_record.mark == record.mark:
                return self._hand_over(next_record)
        start_failure = None if end else await self._start(environment)
        if end:
            self._adopt_claimed()
        for instance in self._instances if self._is_taken_over else ():
            with suppress(OSError):  # a process may have more memory than its new limit
                self._tree.host.groups.limit(instance.place)
        exits = {
            asyncio.create_task(instance.wait() if end else self._follow(number, environment))
            for number, instance in enumerate(self._instances)
        }
        try:
            if end is None:
                if start_failure is None:
                    report(RunStarted(self.job.id, self.run))
                    self._report_cost(report)
                    await self._wait_for_end_or_stop(exits)
                    if self._is_change_possible() and (next_record := await self._change(environment, exits)):
                        return self._hand_over(next_record)
                end = self._record_end(start_failure or self._end(await self._tree.usage()))
            self._has_ended.set()
            await self._tree.end(self._grace, self._first_signal())
            await asyncio.gather(*exits)
            end = self._with_usage(end, await self._tree.usage())
            await self._tree.release()
        finally:
            for task in exits:
                task.cancel()
        return end

    async def _start(self, environment: RunEnvironment) -> RunFailed | None:
        """Start every instance that is not running yet, and return the failure, if there is one."""
        if not self.job.command:
            return self._start_failure("the job has no command")
        program = self.job.command[0]
        try:
            self._tree.host.prepare(self.job.user, *self.files.place)
            environments = self._environments(environment)
            copies = [output_copies(self.job, self.run, self._folder, number) for number in range(self.instances)]
            problem = await self._tree.host.find_start_problem(
                self.job.user, program, self._folder, environments[0], sum(copies, ())
            )
            if problem:
                return self._start_failure(problem)
            for number, variables in enumerate(environments):
                instance = self._instance(number)
                instance.start(self.job, self._folder, variables, copies[number], self._max_output)
                self._instances.append(instance)
        except Exception as error:  # including errors of `secrets`: instances that have started must be ended
            problem = f"cannot start {program!r}: {getattr(error, 'strerror', None) or error}"
            shortage = isinstance(error, ResourceShortage) or getattr(error, "errno", None) in SHORTAGE_ERRNOS
            return self._start_failure(problem, retry=shortage)
        return None

    def _environments(self, environment: RunEnvironment) -> list[dict[str, str]]:
        record = self.files.record_start(StartRecord(self._tree.mark, *_find_ports(self.instances)))
        self._tree.mark = record.mark
        return environment.build(self.job, self._order, self.files, record, self._grace)

    async def _follow(self, number: int, environment: RunEnvironment) -> None:
        """Wait for the end of an instance. If the others go on without it, start it again after a while."""
        for _ in range(MAX_RESTARTS):
            await self._instances[number].wait()
            if not (self._instances[number].failure and self._goes_on()):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_ended.wait(), RESTART_SECONDS)
            if self._has_ended.is_set() or not any(each.failure is None for each in self._instances):
                return
            try:
                self._start_again(number, environment)
            except Exception as error:  # as in `_start`; the others go on
                log.warning("instance %d of %s cannot be started again: %s", number, self.job.id, error)
                return
        await self._instances[number].wait()

    def _start_again(self, number: int, environment: RunEnvironment) -> None:
        instance, variables = self._instance(number), self._environments(environment)[number]
        copies = output_copies(self.job, self.run, self._folder, number)
        kept = [OutputCopy(copy.stream, copy.path) for copy in copies]
        instance.forget()
        instance.start(self.job, self._folder, variables, kept, self._max_output)
        self._instances[number] = instance

    def _goes_on(self) -> bool:
        """Whether agents of other instances go on without those that have failed (see docs/failures.md)."""
        return self.instances > 1 and has_agent(self.files) and any(not each.failure for each in self._instances)

    def _instance(self, number: int) -> Instance:
        return Instance(self.files, number, self._tree, limits_of(self._order.allocation.placement[number]))

    def _start_failure(self, why: str, retry: bool = False) -> RunFailed:
        return RunFailed(self.job.id, self.run, why, retry=retry)

    def _adopt_claimed(self) -> None:
        """Adopt the started instances of a run whose end is recorded, in order to end them."""
        instances = [self._instance(number) for number in range(self.instances)]
        self._instances = [instance for instance in instances if instance.is_claimed()]

    async def _wait_for_end_or_stop(self, exits: set[asyncio.Task[None]]) -> None:
        """Wait until all instances have succeeded, one has failed, or a stop is requested."""
        stop = asyncio.create_task(self._stop_requested.wait())
        requests: set[asyncio.Future[Any]] = {stop, self._change_requested}
        pending = set(exits)
        try:
            while pending and not any(request.done() for request in requests) and self._first_failed() is None:
                await asyncio.wait({*requests, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in pending if not task.done()}
        finally:
            stop.cancel()

    # Live changes.

    async def _read_start(self) -> StartRecord | None:
        """Return the start record; None if the run is still to be started.

        If the run was prepared by a live change, its processes are taken over; or ended, if they are of no use.
        """
        record = await retry_on_shortage(self.files.read_start)
        if record is None or not record.origin or is_regular(self.files.claim(0)):
            return record
        if record.prepared == self._order.allocation and await retry_on_shortage(
            lambda: take_over(self.files, self.instances)
        ):
            self._is_taken_over = True
            return record
        await discard(self.files, self.instances, self._tree.with_mark(record.mark), self._grace, self._stop_signal)
        return None

    @property
    def _next_files(self) -> RunFiles:
        return self.files.of_run(self.run + 1)

    def _is_change_possible(self) -> bool:
        """Whether the run is to continue on another allocation, and may do so in its processes."""
        has_ended = any(instance.failure is not None for instance in self._instances)
        if not self._change_requested.done() or self._stop_requested.is_set() or has_ended:
            return False
        return has_agent(self.files) and has_same_nodes(self._order.allocation, self._change_requested.result())

    async def _change(self, environment: RunEnvironment, exits: set[asyncio.Task[None]]) -> StartRecord | None:
        """Change the run live, and return the start record of the next run; None: the run must be stopped."""
        allocation = self._change_requested.result()
        plan = run_plan(self.job, allocation)
        if plan is None:
            return None
        visible = [environment.devices.visible(share) for share in allocation.placement]
        gpus = [len(share.gpus) for share in allocation.placement]
        request = (
            ChangeRequest(self.run + 1, plan, visible[0])
            if self.instances == 1
            else ChangeRequest(self.run + 1, plan, instances=tuple(map(InstanceGpus, gpus, visible)))
        )
        answer = asyncio.create_task(change_live(self.files, request))
        stop = asyncio.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait({answer, stop, *exits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, stop):
                task.cancel()
        if self._stop_requested.is_set() or not answer.done() or answer.result() is None:
            withdraw_request(self.files)
            return None
        try:
            started = self.files.read_start() or StartRecord(self._tree.mark, 0)
            record = replace(started, origin=self.files.origin, prepared=allocation)
            self._next_files.replace_start(record)
        except (OSError, ResourceShortage):
            return None
        return record

    def _hand_over(self, next_record: StartRecord) -> RunStopped:
        """Return the end of a run whose processes have become the next one."""
        self.next_allocation = next_record.prepared
        answer = read_answer(self.files, self.run + 1)
        return RunStopped(self.job.id, self.run, steps=answer.step if answer else None)

    def _report_cost(self, report: Report) -> None:
        """Report what a change by the agent has cost, when the run has taken over its processes."""
        if self._is_taken_over and (answer := read_answer(self.files, self.run)) is not None:
            report(ChangeMeasured(self.job.id, self.run, sum(answer.phases.values()), answer.way))

    async def discard_next(self, grace: Seconds | None = None) -> None:
        """End the processes after a live change: the next run was not started on the allocation that they use."""
        allowed = self._grace if grace is None else grace
        await discard(self._next_files, self.instances, self._tree, allowed, self._stop_signal)

    def _record_end(self, end: RunEnd) -> RunEnd:
        """Write how the run ends to disk, before its processes are signalled."""
        with suppress(OSError):  # without the file, the next daemon derives the end from the instances' exit statuses
            self.files.record_end(end)
        return end

    def _end(self, usage: Sequence[InstanceUsage]) -> RunEnd:
        """Return how the run ended. A failure during a change is not one of the job: it continues as the next run."""
        failed = self._first_failed()
        if failed is not None and not self._change_requested.done():
            return self._failure(failed, usage)
        if failed is None and all(instance.failure is not None for instance in self._instances):
            return RunFinished(self.job.id, self.run)
        return RunStopped(self.job.id, self.run)

    def _failure(self, failed: Instance, usage: Sequence[InstanceUsage]) -> RunFailed:
        """Return the failure of the run. If an instance ran out of memory, that is the reason, whatever failed then."""
        for used in usage:
            if used.oom_kills and used.instance < self.instances:
                failed = self._instances[used.instance]
                why = self._failure_text(failed, out_of_memory_text(failed.limits))
                return RunFailed(self.job.id, self.run, why, exit_code=failed.exit_code or KILLED)
        why = self._failure_text(failed, failed.failure or "")
        lost = any(instance.lost for instance in self._instances)
        return RunFailed(self.job.id, self.run, why, retry=lost, exit_code=failed.exit_code)

    def _with_usage(self, end: RunEnd, usage: Sequence[InstanceUsage]) -> RunEnd:
        """Add what a run has used, and write it to disk: it is lost when the cgroups are removed."""
        if not usage or end.usage is not None:
            return end
        return self._record_end(replace(end, usage=total_usage(usage)))

    def _first_failed(self) -> Instance | None:
        """Return the instance whose failure ends the run."""
        failed = next((instance for instance in self._instances if instance.failure), None)
        return None if failed is not None and self._goes_on() else failed

    def _failure_text(self, failed: Instance, text: str) -> str:
        prefix = f"instance {self._instances.index(failed)}: " if self.instances > 1 else ""
        return prefix + text

    def _first_signal(self) -> signal.Signals:
        """Return the job's stop signal for a requested stop; SIGTERM for processes that outlive their instance."""
        is_stop = self._stop_requested.is_set() or self._change_requested.done()
        return self._stop_signal if is_stop else signal.SIGTERM

    @property
    def _stop_signal(self) -> signal.Signals:
        return signal.Signals[f"SIG{self.job.launch.stop_signal}"]


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
