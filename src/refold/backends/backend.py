"""Back ends: one file each, each the only importer of its library. They carry out orders and report, never decide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from refold.core import Event, Order
from refold.model import Job

Report = Callable[[Event], None]
"""Where a back end's reports go. It may be called from any thread."""


class Backend(Protocol):
    """A world that runs can run in; it is made with a `Report`.

    A run that is started is answered with RunStarted once it computes, and with exactly one of RunFinished,
    RunFailed and RunStopped when the last of it has ended: nothing of it uses its GPUs any more. A run that was
    lost, with its machine, has failed with `retry`: its job may be tried again, whatever it says of that.
    """

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Take on orders and return; what comes of them is reported. `jobs` has those that are to be started.

        To start a run that was started before, perhaps by a back end that is no more, is to take it up: it is watched
        if it runs, its end is reported if it has ended, and it is never started twice. To stop a run that has ended,
        or never was, is to do nothing.
        """
        ...

    async def close(self) -> None:
        """End at once whatever still runs, and return when it has ended."""
        ...

    async def leave(self) -> None:
        """Report no more, and let whatever runs go on: another back end will take it up."""
        ...

    async def keep_only(self, runs: Collection[tuple[str, int]]) -> None:
        """End what else was ever started here and still runs; return when it has ended. Runs are jobs and numbers."""
        ...
