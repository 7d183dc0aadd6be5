"""The interface of back ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from refold.core import Event, Order
from refold.model import Job, MiB, Seconds

Report = Callable[[Event], None]
"""The callback that receives a back end's events. It may be called from any thread."""


ExportedOf = Callable[[Job], Mapping[str, str] | None]
"""Returns the environment of a job's submitter; None: runs inherit the environment of the back end."""

SecretsOf = Callable[[str], Mapping[str, str]]
"""Returns the secret environment variables of a job, which are not in the journal."""


class RunLimits(msgspec.Struct, frozen=True):
    """Limits of a run: its grace period, and the stored output of each instance. None: no limit of its own."""

    grace: Seconds | None = None
    output_bytes: int | None = None


LimitsOf = Callable[[Job], RunLimits]


class MachineUse(NamedTuple):
    """What the processes of a job use at present: CPUs, and resident memory."""

    cpus: float
    memory_mib: MiB


class Backend(Protocol):
    """Starts and stops runs on real resources; constructed with a `Report`.

    Every started run is answered with RunStarted once it is running, and with exactly one of RunFinished, RunFailed and
    RunStopped when all of its processes have ended and its GPUs are free. A run that was lost together with its machine
    is reported as failed with `retry`: the job is not at fault, so it may be retried even if it allows no retries.
    """

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Accept orders and return; results are reported later. `jobs`: the jobs of the runs to start.

        Starting a run that was started before, possibly by a previous back end, adopts it: it is watched if it is
        running, its end is reported if it has ended, and it is never started twice. Stopping a run that has ended or
        never existed does nothing.
        """

    async def close(self) -> None:
        """Kill all runs, and return when they have ended."""

    async def detach(self) -> None:
        """Stop reporting and leave the runs running: another back end will adopt them."""

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        """Kill all runs except these, including runs of previous back ends, and wait for their end.

        Runs are given as (job id, run number).
        """


# Logs that are copies of output that is elsewhere, and are brought up to date before they are read.

RefreshLog = Callable[[str, int, int], Awaitable[None]]
"""Brings the log of an instance up to date, given its job, run and number. Raises Refused if there is no output."""


async def is_up_to_date(job: str, run: int, instance: int) -> None:
    """Do nothing: processes of this machine write to their logs themselves."""
