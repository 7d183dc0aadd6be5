"""Poll the GPUs: report their status, idle runs and faulty GPUs."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from time import monotonic, time

from refold.client.api import GpuStatus
from refold.core import GpuDrained
from refold.model import WHOLE, Seconds
from refold.server import Inbox, LiveState, Notice
from refold.server.config import WatchConfig
from refold.server.monitor.gpu_rules import BadGpu, BadGpuWatch, IdleWatch, RunGpus
from refold.server.monitor.gpu_use import GpuUseWatch
from refold.server.monitor.machine import GpuPosition, Layout, Machine
from refold.server.monitor.nvidia import GpuReading
from refold.server.notify import JobMessages

GPU_POLL_SECONDS: Seconds = 10.0
DRIVER_TIMEOUT_SECONDS: Seconds = 2.0
"""How long a client waits for the driver, which may be slow if a GPU is faulty."""

READING_MAX_AGE_SECONDS: Seconds = 0.5
"""A reading that is younger is returned again."""

MAX_BUSY_READINGS = 24 * 360
"""A day of readings."""

log = logging.getLogger("refold")


class GpuPoller:
    """Reads the machine's GPUs and acts on idle runs and faulty GPUs."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        machine: Machine,
        layout: Layout,
        config: WatchConfig,
        messages: JobMessages,
        use: GpuUseWatch | None = None,
    ) -> None:
        """`use`: finds out which GPUs others use; None: no GPU is used by others."""
        self._state, self._inbox, self._messages = state, inbox, messages
        self._machine, self._layout = machine, layout
        self._idle = IdleWatch(config.idle) if config.idle is not None else None
        self._bad = BadGpuWatch(config.bad_gpus)
        self._use = use
        self._readings: dict[int, GpuReading] = {}
        self._read_at = float("-inf")
        self._read_task: asyncio.Task[None] | None = None
        self.busy: deque[tuple[float, float]] = deque(maxlen=MAX_BUSY_READINGS)
        """Sum of the utilisation of all GPUs that report one, at Unix times."""

    async def run(self, every: Seconds = GPU_POLL_SECONDS) -> None:
        """Poll periodically until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.poll()
            except Exception:  # the driver may raise anything; keep polling
                log.exception("cannot read the GPUs")

    async def poll(self) -> None:
        """Read the GPUs once and handle problems, idle runs, and GPUs that others use."""
        await self._read()
        measured = [value for value in self._utilisation().values() if value is not None]
        if measured:
            self.busy.append((time(), sum(measured) / 100))
        await self._check_use()
        problems = await asyncio.to_thread(self._machine.problems)
        for bad in self._bad.check(problems):
            self._handle_bad_gpu(bad)
        if self._idle is not None:
            for idle in self._idle.check(self._state.now(), self._run_gpus(), self._utilisation()):
                self._inbox.add_notice(Notice("idle", self._state.view.active[idle.job], idle.run, idle.text))

    async def claim(self) -> None:
        """Lock the GPUs before the first run is started, and drain those of other daemons. Raises if none is free."""
        if self._use is not None:
            self._use.claim()
            await self._check_use()

    async def _check_use(self) -> None:
        if self._use is None:
            return
        busy = {gpu for run in self._run_gpus() for gpu in run.gpus}
        down = self._state.view.down_gpus
        for event in await asyncio.to_thread(self._use.check, self._readings, busy, down):
            self._inbox.report(event)

    def mark_healthy(self, node: int, gpu: int | None) -> None:
        """Forget the problems of a resumed GPU or node, so that new ones are handled again."""
        for index, position in enumerate(self._layout.positions):
            if (
                position is not None
                and position[0] == node
                and gpu in (None, position[1])
                and self._state.view.is_gpu_up(*position)
            ):
                self._bad.mark_healthy(index)

    async def _read(self) -> None:
        """Wait for a reading. Concurrent callers share one."""
        if self._read_task is None:
            self._read_task = asyncio.create_task(self._read_in_thread())
        await asyncio.shield(self._read_task)

    async def _read_in_thread(self) -> None:
        try:
            readings = await asyncio.to_thread(self._machine.read)
        except Exception:  # the driver may raise anything; old readings are no longer valid
            log.exception("cannot read the GPUs")
            readings = []
        self._readings = {reading.index: reading for reading in readings}
        self._read_at = monotonic()
        self._read_task = None

    def _utilisation(self) -> dict[GpuPosition, float | None]:
        return {
            position: self._readings[index].utilisation
            for index, position in enumerate(self._layout.positions)
            if position is not None and index in self._readings
        }

    def utilisation_of_jobs(self) -> dict[str, float]:
        """Return the mean utilisation of the GPUs of each running job, in percent, if it is measured."""
        readings, result = self._utilisation(), {}
        for run in self._run_gpus():
            values = [value for gpu in run.gpus if (value := readings.get(gpu)) is not None]
            if values:
                result[run.job] = sum(values) / len(values)
        return result

    def _run_gpus(self) -> list[RunGpus]:
        return [
            RunGpus(
                run.job,
                run.number,
                tuple((share.node, gpu) for share in run.allocation.placement for gpu in share.gpus),
            )
            for run in self._state.view.runs.values()
        ]

    def _handle_bad_gpu(self, bad: BadGpu) -> None:
        position = self._layout.positions[bad.gpu_index]
        if position is None:
            return
        node, gpu = position
        if not bad.drain:
            name = self._layout.cluster.nodes[node].name
            self._inbox.add_notice(Notice("gpu warning", text=f"GPU {gpu} of {name}: {bad.why}"))
        for run in self._run_gpus():
            if (node, gpu) in run.gpus:
                self._messages.notify(
                    "gpu_bad", self._state.view.active[run.job], f"{run.job} uses a faulty GPU", bad.why
                )
        if bad.drain and self._state.view.is_gpu_up(node, gpu):
            self._inbox.report(GpuDrained(node, gpu, bad.why))

    # For the API.

    async def statuses(self) -> list[GpuStatus]:
        """Return the status of every GPU; with the last readings if the driver does not answer in time."""
        if monotonic() - self._read_at > READING_MAX_AGE_SECONDS:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._read(), DRIVER_TIMEOUT_SECONDS)
        view, cluster = self._state.view, self._layout.cluster
        jobs: dict[GpuPosition, list[str]] = {}
        for run in view.runs.values():
            for share in run.allocation.placement:
                for gpu in share.gpus:
                    jobs.setdefault((share.node, gpu), []).append(run.job)
        index_of = {position: index for index, position in enumerate(self._layout.positions) if position is not None}
        return [
            self._status((node, gpu), jobs, self._readings.get(index_of.get((node, gpu), -1)))
            for node in range(len(cluster.nodes))
            for gpu in range(cluster.nodes[node].gpus)
        ]

    def _status(
        self, position: GpuPosition, jobs: dict[GpuPosition, list[str]], reading: GpuReading | None
    ) -> GpuStatus:
        view, node = self._state.view, self._layout.cluster.nodes[position[0]]
        values = reading or GpuReading(-1)
        return GpuStatus(
            node.name,
            position[1],
            node.gpu_type,
            jobs.get(position, []),
            view.free_gpu_milli(position[0])[position[1]] / WHOLE,
            view.down_reason(*position) or view.down_reason(position[0]),
            values.memory_used_mib,
            values.memory_mib,
            values.utilisation,
            values.celsius,
            values.watts,
            "" if self._use is None else self._use.reasons.get(position, ""),
        )
