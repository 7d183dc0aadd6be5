"""Runs as processes of this machine, on numbered slots: its GPUs, or any number of slots without GPUs.

Runs outlive the daemon. Everything needed to adopt them again is in files next to their output (see `run_files`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from refold.core import Order, StartRun, StopRun
from refold.engines.local.environment import (
    Devices,
    RunEnvironment,
    no_exported_environment,
    no_secrets,
)
from refold.engines.local.gang import Gang
from refold.engines.local.process import has_proc
from refold.engines.local.process_host import ProcessHost
from refold.engines.local.process_tree import ProcessScanner, ProcessTree, UseMeter, find_strays
from refold.model import SLOT, Allocation, Cluster, Job, MiB, Node, Seconds
from refold.server import ExportedOf, LimitsOf, MachineUse, Report, RunLimits, SecretsOf
from refold.server.output import (
    DEFAULT_MAX_OUTPUT_BYTES,
    RunFiles,
    mark_prefix,
    new_mark,
    retry_on_shortage,
)

DEFAULT_GRACE: Seconds = 10.0
"""Seconds between the stop signal and SIGKILL, for saving a checkpoint."""

NO_GRACE: Seconds = 0.0
"""Grace period of runs that the scheduler does not know: their checkpoints would not be used."""


def no_limits(_: Job) -> RunLimits:
    return RunLimits()


def local_cluster(slots: int) -> Cluster:
    """Return this machine as a cluster of one node. Its CPUs and memory are not scheduled."""
    return Cluster((Node("localhost", slots, SLOT),), name="localhost", cpus_known=False, memory_known=False)


class LocalBackend:
    """Runs each instance as a process with its descendants; the instances of a run end together.

    `exported`: the environment of a job's submitter. `secrets`: secret environment variables by job.
    `devices`: the GPU of each slot per node; None: slots are indices
    into the GPUs that are visible to the daemon. `device_memory_mib`: memory of a GPU per node. `gpus`: whether slots
    are GPUs. `private_folders`: a job without a folder runs in one of its own instead of the daemon's.
    `max_output_bytes`: stored output per instance. `limits_of`: further limits of a job's runs.
    `host`: what starts processes; None: this process.
    """

    def __init__(
        self,
        report: Report,
        out: Path,
        grace: Seconds = DEFAULT_GRACE,
        environment: Mapping[str, str] | None = None,
        *,
        exported: ExportedOf = no_exported_environment,
        secrets: SecretsOf = no_secrets,
        devices: Sequence[Sequence[str]] | None = None,
        device_memory_mib: Sequence[MiB] = (),
        gpus: bool = True,
        private_folders: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        limits_of: LimitsOf = no_limits,
        host: ProcessHost | None = None,
    ) -> None:
        inherited = os.environ if environment is None else environment
        self._report = report
        self._out = out.absolute()
        self._grace = grace
        self._limits_of = limits_of
        self._default_folder = None if private_folders else Path.cwd()
        self._devices = Devices(inherited, devices, device_memory_mib, gpus)
        self._environment = RunEnvironment(inherited, self._devices, exported, secrets)
        self._max_output_bytes = max_output_bytes
        self._scanner = ProcessScanner(host)
        self._meter = UseMeter()
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._prepared: dict[tuple[str, int], Gang] = {}
        """Runs whose processes are prepared by a live change of the previous run, which is stored, but not started."""
        self._discards: dict[asyncio.Task[None], frozenset[tuple[int, int]]] = {}
        """Tasks that end the processes of prepared runs, with the GPUs that they use."""

    def enforcement(self) -> str:
        """Describe which limits on GPUs and GPU shares are enforced."""
        return self._devices.enforcement()

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Start or adopt processes, or request their stop; then return."""
        for order in orders:
            match order:
                case StartRun(job_id, number):
                    if (job_id, number) not in self._gangs:
                        self._start(jobs[job_id], order)
                case StopRun(job_id, number, _, next_allocation):
                    if gang := self._gangs.get((job_id, number)):
                        gang.stop(next_allocation)
                    elif next_allocation is None and (job_id, number + 1) in self._prepared:
                        self._discard(job_id, number + 1)

    async def close(self) -> None:
        """Kill all runs, and wait until they have ended."""
        for gang in self._gangs.values():
            gang.kill()
        for job_id, number in list(self._prepared):
            self._discard(job_id, number, NO_GRACE)
        await asyncio.gather(*self._tasks.values(), *self._discards)
        self._scanner.host.groups.close()

    async def use(self) -> Mapping[str, MachineUse]:
        """Return how many CPUs and how much memory each job uses at present."""
        if not self._gangs or not has_proc():
            return {}
        return self._meter.measure({job: await gang.processes() for (job, _), gang in list(self._gangs.items())})

    def kill(self, job_id: str) -> None:
        """Kill the run of a job without a grace period, if there is one."""
        for (job, _), gang in self._gangs.items():
            if job == job_id:
                gang.kill()

    async def detach(self) -> None:
        """Stop watching; runs continue until another back end with the same folder adopts them."""
        tasks = [*self._tasks.values(), *self._discards]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._scanner.host.groups.close()

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        """Kill all other runs started with this folder. Without /proc, runs of earlier daemons are not found."""
        wanted = set(runs)
        unwanted = [run for run in self._gangs if run not in wanted]
        records = [await retry_on_shortage(RunFiles(self._out, *run).read_start) for run in (*wanted, *unwanted)]
        known_marks = {record.mark for record in records if record}
        for run in unwanted:
            self._gangs[run].stop()
        processes = await self._scanner.scan() if has_proc() else []
        groups = await retry_on_shortage(self._scanner.host.groups.runs)
        strays = find_strays(processes, mark_prefix(self._out), known_marks, self._scanner, groups)
        await asyncio.gather(*(_end_stray(tree) for tree in strays), *(self._tasks[run] for run in unwanted))

    def _start(self, job: Job, order: StartRun) -> None:
        run = (job.id, order.run)
        files = RunFiles(self._out, *run)
        tree = ProcessTree(new_mark(self._out), self._scanner, uid=self._scanner.host.uid_of(job.user))
        grace, folder = self._grace_of(job), self._folder_of(job, files)
        gang = Gang(job, order, files, tree, grace, folder, self._max_output_of(job))
        self._gangs[run] = gang
        prepared = self._prepared.get(run)
        if prepared is not None and prepared.next_allocation != order.allocation:
            self._discard(*run)
        self._prepared.pop(run, None)
        gpus = _gpus(order.allocation)
        discards = [task for task, used in self._discards.items() if used & gpus or task.get_name() == str(run)]
        self._tasks[run] = asyncio.create_task(self._supervise(gang, discards))

    def _discard(self, job_id: str, number: int, grace: Seconds | None = None) -> None:
        """End the processes that are prepared for a run."""
        gang = self._prepared.pop((job_id, number))
        task = asyncio.create_task(gang.discard_next(grace), name=str((job_id, number)))
        self._discards[task] = _gpus(gang.next_allocation)
        task.add_done_callback(self._discards.pop)

    def _grace_of(self, job: Job) -> Seconds:
        grace, limit = job.launch.grace, self._limits_of(job).grace
        grace = self._grace if grace is None else grace
        return grace if limit is None else min(grace, limit)

    def _max_output_of(self, job: Job) -> int:
        """Return the size of the log of an instance of a job in bytes."""
        limit = self._limits_of(job).output_bytes
        return self._max_output_bytes if limit is None else min(limit, self._max_output_bytes)

    def _folder_of(self, job: Job, files: RunFiles) -> Path:
        return (self._default_folder or files.checkpoint_folder) / job.launch.folder

    async def _supervise(self, gang: Gang, discards: Sequence[asyncio.Task[None]]) -> None:
        """Supervise a run and report its end, exactly once. It starts when processes that use its GPUs have ended."""
        run = (gang.job.id, gang.run)
        if discards:
            await asyncio.wait(discards)
        try:
            end = await gang.supervise(self._report, self._environment)
        finally:
            del self._gangs[run], self._tasks[run]
        if gang.next_allocation is not None:
            self._prepared[gang.job.id, gang.run + 1] = gang
        self._report(end)


async def _end_stray(tree: ProcessTree) -> None:
    await tree.end(NO_GRACE)
    await tree.release()


def _gpus(allocation: Allocation | None) -> frozenset[tuple[int, int]]:
    shares = allocation.placement if allocation is not None else ()
    return frozenset((share.node, gpu) for share in shares for gpu in share.gpus)
