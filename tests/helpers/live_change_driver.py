"""A daemon reduced to one job that is changed live for ever. It stores its state before it acts, as a journal does."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from refold.core import Event, RunStopped, StartRun, StopRun
from refold.engines.local import LocalBackend
from refold.model import Allocation, Job, Plan, Share

ALLOCATIONS = (Allocation((Share(0, (0, 1)),), Plan(data=2)), Allocation((Share(0, (0,)),), Plan()))
"""The allocations of runs with even and odd numbers."""


class Driver:
    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._state = folder / "state"
        self._jobs = {"job": Job("job", command=tuple(command))}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._backend = LocalBackend(self._events.put_nowait, folder / "logs")

    async def run(self) -> None:
        """Repeat the orders of the stored state, then change the run again and again."""
        run, stopping = self._load()
        print("ready", flush=True)
        await self._backend.stop_all_except({("job", run)})
        await self._order(StartRun("job", run, ALLOCATIONS[run % 2]))
        while not list(self._state.parent.glob("logs/job/run-*.change.agent")):
            await asyncio.sleep(0.01)
        while True:
            if not stopping:
                await asyncio.sleep(0.05)
            self._save(run, stopping=True)
            await self._order(StopRun("job", run, "", ALLOCATIONS[(run + 1) % 2]))
            while not isinstance(event := await self._events.get(), RunStopped) or event.run != run:
                pass
            run, stopping = run + 1, False
            self._save(run, stopping=False)
            await self._order(StartRun("job", run, ALLOCATIONS[run % 2]))

    def _load(self) -> tuple[int, bool]:
        if not self._state.exists():
            return 1, False
        number, state = self._state.read_text().split()
        return int(number), state == "stopping"

    def _save(self, run: int, stopping: bool) -> None:
        temporary = self._state.with_suffix(".new")
        temporary.write_text(f"{run} {'stopping' if stopping else 'running'}\n")
        temporary.replace(self._state)

    async def _order(self, order: StartRun | StopRun) -> None:
        await self._backend.carry_out([order], self._jobs)


async def drive(folder: Path, command: Sequence[str]) -> None:
    """Run until the process is killed."""
    await Driver(folder, command).run()
