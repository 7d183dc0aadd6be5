"""Runs as processes of this machine, on numbered slots: GPUs, or whatever else there are so many of.

They outlive the daemon: what is needed to take them up again is in files beside their output (see `run_files`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from refold.backends import Report
from refold.backends.local.environment import Devices, MoreEnvironment, RunEnvironment, nothing_more
from refold.backends.local.gang import Gang
from refold.backends.local.log_files import MOST_OUTPUT, Rotation
from refold.backends.local.process import has_proc
from refold.backends.local.process_tree import Census, ProcessTree, strays
from refold.backends.local.run_files import RunFiles, mark_prefix, new_mark
from refold.backends.local.safe_files import patiently
from refold.core import Order, StartRun, StopRun
from refold.model import Cluster, Job, MiB, Node, Seconds

GRACE: Seconds = 10.0
"""How long a run that is told to stop may take to save what it has."""

NO_GRACE: Seconds = 0.0
"""Of runs that nobody knows: nobody would find what they save, and everybody waits until their GPUs are free."""

SLOT = "slot"


def local_cluster(slots: int) -> Cluster:
    """This machine as a cluster of one node. Its CPUs and memory are not shared out."""
    return Cluster((Node("localhost", slots, SLOT),), name="localhost", cpus_known=False, memory_known=False)


class LocalBackend:
    """Each instance of a run is a process with everything that it starts; they end together.

    `more_environment`: secrets of a job. `devices`: per node, the GPU of each slot; None: slots count through the GPUs
    that we see. `device_memory_mib`: per node, the memory of a GPU. `gpus`: whether slots are GPUs at all.
    `in_own_folder`: a job that names no folder runs in one of its own, not in ours. `most_output`: bytes per instance.
    """

    def __init__(
        self,
        report: Report,
        out: Path,
        grace: Seconds = GRACE,
        environment: Mapping[str, str] | None = None,
        *,
        more_environment: MoreEnvironment = nothing_more,
        devices: Sequence[Sequence[str]] | None = None,
        device_memory_mib: Sequence[MiB] = (),
        gpus: bool = True,
        in_own_folder: bool = False,
        most_output: int = MOST_OUTPUT,
    ) -> None:
        inherited = os.environ if environment is None else environment
        self._report = report
        self._out = out.absolute()
        self._grace = grace
        self._here = None if in_own_folder else Path.cwd()
        self._devices = Devices(inherited, devices, device_memory_mib, gpus)
        self._environment = RunEnvironment(inherited, self._devices, more_environment)
        self._rotation = Rotation(most_output)
        self._census = Census()
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def enforcement(self) -> str:
        """What keeps a run to its part of a GPU here, and what does not."""
        return self._devices.enforcement()

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Start processes or take them up, or ask them to end; then return."""
        for order in orders:
            match order:
                case StartRun(job_id, number):
                    if (job_id, number) not in self._gangs:
                        self._start(jobs[job_id], order)
                case StopRun(job_id, number):
                    if gang := self._gangs.get((job_id, number)):
                        gang.told_to_stop.set()

    async def close(self) -> None:
        """Kill whatever runs, and wait until it has ended."""
        for gang in self._gangs.values():
            gang.hurry()
        await asyncio.gather(*self._tasks.values())

    async def leave(self) -> None:
        """Watch no longer; what runs goes on, to be taken up by another back end over the same folder."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def keep_only(self, runs: Collection[tuple[str, int]]) -> None:
        """End whatever else was started over this folder, by whomever. (Where there is no /proc it is not found.)"""
        kept = set(runs)
        dropped = [run for run in self._gangs if run not in kept]
        notes = [await patiently(RunFiles(self._out, *run).start_note) for run in (*kept, *dropped)]
        known = {note.mark for note in notes if note}
        for run in dropped:
            self._gangs[run].told_to_stop.set()
        everybody = await self._census.everybody() if has_proc() else []
        others = strays(everybody, mark_prefix(self._out), known, self._census)
        await asyncio.gather(*(tree.end(NO_GRACE) for tree in others), *(self._tasks[run] for run in dropped))

    def _start(self, job: Job, order: StartRun) -> None:
        run = (job.id, order.run)
        files = RunFiles(self._out, *run)
        tree = ProcessTree(new_mark(self._out), self._census)
        gang = Gang(job, order, files, tree, self._grace, self._folder_of(job, files))
        self._gangs[run] = gang
        self._tasks[run] = asyncio.create_task(self._see_through(gang))

    def _folder_of(self, job: Job, files: RunFiles) -> Path:
        return (self._here or files.kept) / job.launch.folder

    async def _see_through(self, gang: Gang) -> None:
        """The one place that reports a run's end, once."""
        run = (gang.job.id, gang.run)
        logs = [gang.files.log(instance) for instance in range(gang.instances)]
        try:
            async with self._rotation.of(logs):
                ending = await gang.see_through(self._report, self._environment)
        finally:
            del self._gangs[run], self._tasks[run]
        self._report(ending)
