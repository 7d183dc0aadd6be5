"""Rounds over the GPUs: how each is doing, for those who ask; what is wrong, for those whom it concerns."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from refold.api import GpuStatus
from refold.backends.local import GpuReading
from refold.model import WHOLE, Seconds
from refold.server import Loop, Notice, drained_gpus
from refold.server.config import WatchChoice
from refold.server.monitor.gpu_rules import BadGpu, BadGpuWatch, IdleWatch, Occupied
from refold.server.monitor.machine import Layout, Machine, Place
from refold.server.notify import JobMessages

ROUND_EVERY: Seconds = 10.0
PATIENCE: Seconds = 2.0
"""How long somebody who asks waits for the driver, which takes its time when a GPU is sick."""

FRESH_FOR: Seconds = 0.5
"""How long a reading is good enough for the next who asks."""

log = logging.getLogger("refold")


class GpuPoller:
    """What is read from a machine's GPUs, and what is done about it."""

    def __init__(self, loop: Loop, machine: Machine, layout: Layout, choice: WatchChoice, telling: JobMessages) -> None:
        self._loop, self._machine, self._layout, self._telling = loop, machine, layout, telling
        self._idle = IdleWatch(choice.idle) if choice.idle is not None else None
        self._bad = BadGpuWatch(choice.bad_gpus)
        self._readings: dict[int, GpuReading] = {}
        self._read_at = float("-inf")
        self._under_way: asyncio.Task[None] | None = None

    async def watch(self, every: Seconds = ROUND_EVERY) -> None:
        """Round after round, until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.go_round()
            except Exception:  # a driver may fail in any way: that is no reason not to look again
                log.exception("the GPUs could not be read")

    async def go_round(self) -> None:
        """One round."""
        await self._read()
        problems = await asyncio.to_thread(self._machine.problems)
        for bad in self._bad.look(problems):
            self._deal_with(bad)
        if self._idle is not None:
            for idle in self._idle.look(self._loop.now(), self._occupied(), self._loads()):
                self._loop.tell(Notice("idle", self._loop.view.active[idle.job], idle.run, idle.text))

    def is_well(self, node: int, gpu: int | None) -> None:
        """Work is given again to a GPU, or to a node: what goes wrong with it from now on is news."""
        drained = drained_gpus.drained_gpus(self._loop.view)
        name = self._layout.cluster.nodes[node].name
        for index, place in enumerate(self._layout.places):
            if place is not None and place[0] == node and gpu in (None, place[1]) and (name, place[1]) not in drained:
                self._bad.is_well(index)

    async def _read(self) -> None:
        """Wait for a reading; whoever comes while one is under way waits for that one."""
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._read_in_a_thread())
        await asyncio.shield(self._under_way)

    async def _read_in_a_thread(self) -> None:
        try:
            readings = await asyncio.to_thread(self._machine.read)
        except Exception:  # a driver may fail in any way: what it said before is not so any more
            log.exception("the GPUs could not be read")
            readings = []
        self._readings = {reading.index: reading for reading in readings}
        self._read_at = monotonic()
        self._under_way = None

    def _loads(self) -> dict[Place, float | None]:
        return {
            place: self._readings[index].load
            for index, place in enumerate(self._layout.places)
            if place is not None and index in self._readings
        }

    def _occupied(self) -> list[Occupied]:
        view = self._loop.view
        return [
            Occupied(
                run.job,
                run.number,
                tuple((share.node, gpu) for share in run.allocation.placement for gpu in share.gpus),
            )
            for run in view.runs.values()
            if not drained_gpus.is_drain_placeholder(view.active[run.job])
        ]

    def _deal_with(self, bad: BadGpu) -> None:
        place = self._layout.places[bad.gpu_index]
        if place is None:
            return
        node, gpu = place
        name = self._layout.cluster.nodes[node].name
        self._loop.tell(Notice("gpu drained" if bad.drain else "gpu warned", text=f"GPU {gpu} of {name}: {bad.why}"))
        for run in self._occupied():
            if (node, gpu) in run.places:
                self._telling.tell("gpu_bad", self._loop.view.active[run.job], f"a GPU of {run.job} is bad", bad.why)
        if bad.drain and (name, gpu) not in drained_gpus.drained_gpus(self._loop.view):
            for event in drained_gpus.drain(self._loop.view, (name, gpu), bad.why):
                self._loop.report(event)

    # For those who ask.

    async def statuses(self) -> list[GpuStatus]:
        """Every GPU as it is now; if the driver keeps us waiting, with what it said last."""
        if monotonic() - self._read_at > FRESH_FOR:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._read(), PATIENCE)
        view, cluster = self._loop.view, self._layout.cluster
        jobs: dict[Place, list[str]] = {}
        taken: dict[Place, int] = {}
        for run in view.runs.values():
            for share in run.allocation.placement:
                for gpu in share.gpus:
                    taken[share.node, gpu] = taken.get((share.node, gpu), 0) + share.gpu_milli
                    if not drained_gpus.is_drain_placeholder(view.active[run.job]):
                        jobs.setdefault((share.node, gpu), []).append(run.job)
        drained = drained_gpus.drained_gpus(view)
        index_of = {place: index for index, place in enumerate(self._layout.places) if place is not None}
        return [
            self._status((node, gpu), jobs, taken, drained, self._readings.get(index_of.get((node, gpu), -1)))
            for node in range(len(cluster.nodes))
            for gpu in range(cluster.nodes[node].gpus)
        ]

    def _status(
        self,
        place: Place,
        jobs: dict[Place, list[str]],
        taken: dict[Place, int],
        drained: dict[drained_gpus.Gpu, str],
        reading: GpuReading | None,
    ) -> GpuStatus:
        node = self._layout.cluster.nodes[place[0]]
        seen = reading or GpuReading(-1)
        return GpuStatus(
            node.name,
            place[1],
            node.gpu_type,
            jobs.get(place, []),
            1.0 - taken.get(place, 0) / WHOLE,
            drained.get((node.name, place[1]), ""),
            seen.memory_used_mib,
            seen.memory_mib,
            seen.load,
            seen.celsius,
            seen.watts,
        )
