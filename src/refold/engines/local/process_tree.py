"""The process tree of a run: its processes and all descendants, also daemonised ones; what jobs use by their processes.

Where there are cgroups, descendants cannot leave that of their run. Every process that the back end starts also leads
its own session and carries a mark in its environment, which descendants inherit, and is recognised by either. Without
cgroups, a process that leaves the session and also clears its environment is not found.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from refold.engines.local import process
from refold.engines.local.process import Process, ProcessInfo
from refold.engines.local.process_host import NO_SUCH_GROUP, OwnProcesses, ProcessHost
from refold.engines.local.run_groups import InstanceUsage, group_name
from refold.model import Seconds
from refold.server import MachineUse, is_job_uid
from refold.server.output import RETRY_SECONDS, ResourceShortage, retry_on_shortage

NO_MARK = "\0"
"""How the mark of a tree begins that has none: no process can have that in its environment."""

MAX_POLL_SECONDS: Seconds = 0.05
MIN_POLL_SECONDS: Seconds = 0.005


class ProcessScanner:
    """Lists all processes of the machine, in a thread; concurrent requests share one scan."""

    def __init__(self, host: ProcessHost | None = None) -> None:
        self.host = host or OwnProcesses()
        self._next: asyncio.Task[list[ProcessInfo]] | None = None
        self._lock = asyncio.Lock()

    async def scan(self) -> list[ProcessInfo]:
        """Return every process, as of some moment after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._scan())
        return await asyncio.shield(self._next)

    async def _scan(self) -> list[ProcessInfo]:
        async with self._lock:
            self._next = None  # later requests need a later scan
            while True:
                try:
                    return await asyncio.to_thread(self.host.list_processes)
                except ResourceShortage:  # a process missing from the scan would count as ended
                    await asyncio.sleep(RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class Alive:
    """What of a tree is alive: the process groups, and the pids in its cgroups."""

    groups: Collection[int]
    members: Collection[int] = ()

    def __bool__(self) -> bool:
        return bool(self.groups or self.members)


class ProcessTree:
    """The processes that carry a mark or belong to the sessions of its leaders."""

    def __init__(self, mark: str, scanner: ProcessScanner, group: str = "", uid: int | None = None) -> None:
        """`group`: the name of its cgroups, if that is all that is known of it. `uid`: that of its processes."""
        self.mark = mark
        self._uid = uid
        self._scanner = scanner
        self._group = group
        self._leaders: dict[int, Process] = {}
        self._skip_grace = False

    @property
    def group(self) -> str:
        return self._group or group_name(self.mark)

    @property
    def host(self) -> ProcessHost:
        """What starts and signals the processes."""
        return self._scanner.host

    def with_mark(self, mark: str) -> ProcessTree:
        return ProcessTree(mark, self._scanner, uid=self._uid)

    def add_leader(self, leader: Process) -> None:
        self._leaders[leader.pid] = leader

    async def owns(self, process: Process) -> bool:
        """Whether a process that a file in a job's folder names is of this run: the job's user may have written it."""
        if self._uid is None:
            return True
        named = (process.pid, process.started, self._uid, self.mark)
        return any((info.pid, info.started, info.uid, info.mark) == named for info in await self._scanner.scan())

    def skip_grace(self) -> None:
        """Kill the processes without a (further) grace period."""
        self._skip_grace = True

    async def end(self, grace: Seconds, first: signal.Signals = signal.SIGTERM) -> None:
        """Send signal `first` to all processes, SIGKILL after `grace` seconds, and return when none is alive."""
        alive = await self._alive()
        await self._signal(alive, first)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + grace, MIN_POLL_SECONDS
        while alive and loop.time() < deadline and not self._skip_grace:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
            alive = await self._alive()
        while alive:
            await asyncio.to_thread(self.host.groups.kill, self.group)
            await self._signal(alive, signal.SIGKILL)
            await asyncio.sleep(MIN_POLL_SECONDS)
            alive = await self._alive()

    async def _signal(self, alive: Alive, number: signal.Signals) -> None:
        """Signal what is alive, as soon as the machine can start the process that does so as the job's user."""
        await retry_on_shortage(lambda: self.host.signal(self._uid, alive.groups, number))

    async def usage(self) -> Sequence[InstanceUsage]:
        """Return what the instances have used until now, as far as it is measured."""
        return await retry_on_shortage(lambda: self.host.groups.usage(self.group))

    async def release(self) -> None:
        """Remove the cgroups of a tree that has ended."""
        if self.host.groups.usable:
            await asyncio.to_thread(self.host.groups.remove, self.group)

    async def _alive(self) -> Alive:
        if not process.has_proc():
            return Alive({leader for leader in self._leaders if _group_exists(leader)})
        before = await self._members()
        processes = await self._scanner.scan()
        after = await self._members()  # a pid that is there twice was not reused meanwhile
        return Alive(self.groups_among(processes, before & after), after)

    async def _members(self) -> set[int]:
        return set(await retry_on_shortage(lambda: self.host.groups.members(self.group)))

    async def processes(self) -> list[ProcessInfo]:
        members = await self._members()
        return self._among(await self._scanner.scan(), members)

    def groups_among(self, processes: Iterable[ProcessInfo], members: Collection[int] = ()) -> set[int]:
        """Return the process groups with living processes of the tree. `members`: the pids in its cgroups."""
        return {info.group for info in self._among(processes, members)}

    def _among(self, processes: Iterable[ProcessInfo], members: Collection[int]) -> list[ProcessInfo]:
        """Return the living processes of the tree.

        A session belongs to the tree if its leader has ended or is still the process that was started: a pid is not
        reused while a session of that id exists. A process of another user belongs to it only in its cgroups: the
        leader may have been named by the job's user.
        """
        processes = list(processes)
        reused = {
            info.pid
            for info in processes
            if info.pid in self._leaders and self._leaders[info.pid].started not in (None, info.started)
        }
        sessions, pids = self._leaders.keys() - reused, set(members)
        return [
            info
            for info in processes
            if info.alive
            and (
                info.pid in pids
                or (self._uid in (None, info.uid) and (info.session in sessions or info.mark == self.mark))
            )
        ]


def find_strays(
    processes: Iterable[ProcessInfo],
    prefix: str,
    known_marks: set[str],
    scanner: ProcessScanner,
    groups: Iterable[str] = (),
) -> list[ProcessTree]:
    """Return the process trees whose mark has this prefix and is not known.

    `groups`: the names of all cgroups of runs; those of unknown runs are trees as well, without a mark.
    """
    known_groups = {group_name(mark) for mark in known_marks}
    named = [ProcessTree(f"{NO_MARK}{name}", scanner, name) for name in groups if name not in known_groups]
    trees: dict[tuple[str, int | None], ProcessTree] = {}
    for info in processes:
        is_stray = info.alive and info.mark.startswith(prefix) and info.mark not in known_marks
        if is_stray and (info.uid is None or is_job_uid(info.uid, os.geteuid())):
            tree = trees.setdefault((info.mark, info.uid), ProcessTree(info.mark, scanner, uid=info.uid))
            if info.pid == info.session:
                tree.add_leader(Process(info.pid, info.started))
    return [*named, *trees.values()]


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except NO_SUCH_GROUP:
        return False
    return True


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGES_PER_MIB = 2**20 // os.sysconf("SC_PAGE_SIZE")


class UseMeter:
    """Compares the CPU time of processes with that of the measurement before.

    What a process uses after the last measurement before its end is not counted. Memory that processes share, as those
    of one training do that are forked, counts for each.
    """

    def __init__(self) -> None:
        self._measured_at: Seconds = monotonic()
        self._ticks: dict[tuple[int, int], int] = {}

    def measure(self, processes: Mapping[str, Iterable[ProcessInfo]]) -> dict[str, MachineUse]:
        now, before = monotonic(), self._ticks
        seconds = max(now - self._measured_at, 1 / TICKS_PER_SECOND)
        self._measured_at, self._ticks = now, {}
        return {job: self._use_of(infos, before, seconds) for job, infos in processes.items()}

    def _use_of(
        self, processes: Iterable[ProcessInfo], before: Mapping[tuple[int, int], int], seconds: Seconds
    ) -> MachineUse:
        used = pages = 0
        for info in processes:
            identity = info.pid, info.started
            self._ticks[identity] = info.cpu_ticks
            used += info.cpu_ticks - before.get(identity, 0)
            pages += info.memory_pages
        return MachineUse(round(used / TICKS_PER_SECOND / seconds, 2), pages // PAGES_PER_MIB)
