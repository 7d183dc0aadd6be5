"""Runs as processes of this machine, on numbered slots: GPUs, or whatever else there are so many of."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from refold.backends import Report
from refold.backends.process_tree import MARK, ProcessTree
from refold.core.events import Event, RunFailed, RunFinished, RunStarted, RunStopped
from refold.core.orders import Order, StartRun, StopRun
from refold.model import Cluster, Job, Node, Share
from refold.model.units import Seconds

GRACE: Seconds = 10.0
"""How long a run that is told to stop may take to save what it has."""

SLOT = "slot"
LONGEST_FOLDER_NAME = 200

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def local_cluster(slots: int) -> Cluster:
    """This machine as a cluster of one node. Its CPUs and memory are not shared out."""
    return Cluster((Node("localhost", slots, SLOT),), name="localhost", cpus_known=False, memory_known=False)


def log_path(out: Path, job: str, run: int, instance: int) -> Path:
    """Where an instance's output goes. A job's id is not trusted to be a name for a folder."""
    return out / _folder_name(job) / f"run-{run}.{instance}.log"


def _folder_name(job: str) -> str:
    name = quote(job, safe=" ", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > LONGEST_FOLDER_NAME:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()}"
    return name


class LocalBackend:
    """Each instance of a run is a process with everything that it starts; they end together."""

    def __init__(
        self,
        report: Report,
        out: Path,
        grace: Seconds = GRACE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._report = report
        self._out = out
        self._grace = grace
        self._environment = dict(os.environ if environment is None else environment)
        self._gangs: dict[tuple[str, int], _Gang] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Start processes, or ask them to end; then return."""
        for order in orders:
            match order:
                case StartRun(job_id):
                    self._start(_Gang(jobs[job_id], order, self._out, self._environment))
                case StopRun(job_id, number):
                    if gang := self._gangs.get((job_id, number)):
                        gang.told_to_stop.set()

    async def close(self) -> None:
        """Kill whatever runs, and wait until it has ended."""
        for gang in self._gangs.values():
            gang.tree.hurry()
            gang.told_to_stop.set()
        await asyncio.gather(*self._tasks)

    def _start(self, gang: _Gang) -> None:
        self._gangs[gang.job.id, gang.run] = gang
        task = asyncio.create_task(self._see_through(gang))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, gang: _Gang) -> None:
        """The one place that reports a run's end, once."""
        ending = await gang.see_through(self._report, self._grace)
        del self._gangs[gang.job.id, gang.run]
        self._report(ending)


class _Gang:
    """The processes of one run."""

    def __init__(self, job: Job, order: StartRun, out: Path, environment: Mapping[str, str]) -> None:
        self.job = job
        self.run = order.run
        self.tree = ProcessTree()
        self.told_to_stop = asyncio.Event()
        self._placement = order.allocation.placement
        self._out = out
        self._environment = environment
        self._processes: list[asyncio.subprocess.Process] = []

    async def see_through(self, report: Report, grace: Seconds) -> Event:
        """Start, wait, and end all of it whatever happens; then say how it went."""
        cannot_start = await self._start()
        if not cannot_start:
            report(RunStarted(self.job.id, self.run))
            await self._over_or_told_to_stop()
        ending = self._ending(cannot_start)
        await self.tree.end(grace)
        await asyncio.gather(*(process.wait() for process in self._processes))
        return ending

    async def _start(self) -> str:
        """Start every instance; what went wrong, if something did."""
        if not self.job.command:
            return "it has no command"
        try:
            port = _free_port()
            for instance, share in enumerate(self._placement):
                await self._start_instance(instance, share, port)
        except (OSError, ValueError) as error:
            return f"cannot start {self.job.command[0]!r}: {getattr(error, 'strerror', None) or error}"
        return ""

    async def _start_instance(self, instance: int, share: Share, port: int) -> None:
        path = log_path(self._out, self.job.id, self.run, instance)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self.job.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._environment_of(instance, share, port),
            )
        self.tree.leaders.add(process.pid)
        self._processes.append(process)

    def _environment_of(self, instance: int, share: Share, port: int) -> dict[str, str]:
        inherited = {name: value for name, value in self._environment.items() if name not in _LAUNCHER_VARIABLES}
        own = {
            "CUDA_VISIBLE_DEVICES": ",".join(self._device(slot) for slot in share.gpus),
            "REFOLD_SLOTS": ",".join(map(str, share.gpus)),
            "REFOLD_JOB": self.job.id,
            "REFOLD_RUN": str(self.run),
            "REFOLD_INSTANCE": str(instance),
            "REFOLD_INSTANCES": str(len(self._placement)),
            MARK: self.tree.mark,
        }
        return inherited | own | self._launcher_variables(instance, port)

    def _device(self, slot: int) -> str:
        """The slot's GPU: if we were given a choice of GPUs ourselves, the slots count through those."""
        given = [device for device in self._environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
        return given[slot] if slot < len(given) else str(slot)

    def _launcher_variables(self, instance: int, port: int) -> dict[str, str]:
        """What torch.distributed reads: the gang has one process per instance, and each sees only its own GPUs.

        A single process gets none of them: it would be taken for one of a gang.
        """
        if len(self._placement) == 1:
            return {}
        values = (str(instance), str(len(self._placement)), "0", "127.0.0.1", str(port))
        return dict(zip(_LAUNCHER_VARIABLES, values, strict=True))

    async def _over_or_told_to_stop(self) -> None:
        """Until all have ended well, one has not, or the run is told to stop."""
        told = asyncio.create_task(self.told_to_stop.wait())
        waiting: set[asyncio.Task[int]] = {asyncio.create_task(process.wait()) for process in self._processes}
        try:
            while waiting and not told.done() and not self._failure():
                await asyncio.wait({told, *waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting = {task for task in waiting if not task.done()}
        finally:
            for task in (told, *waiting):
                task.cancel()

    def _ending(self, cannot_start: str) -> Event:
        if failure := cannot_start or self._failure():
            return RunFailed(self.job.id, self.run, failure)
        if all(process.returncode == 0 for process in self._processes):
            return RunFinished(self.job.id, self.run)
        return RunStopped(self.job.id, self.run)

    def _failure(self) -> str:
        """How the first instance to do so has ended badly."""
        for instance, process in enumerate(self._processes):
            if process.returncode:
                which = f"instance {instance}: " if len(self._processes) > 1 else ""
                return which + _text_of_exit(process.returncode)
        return ""


def _text_of_exit(code: int) -> str:
    if code > 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
