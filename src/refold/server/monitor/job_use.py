"""What running jobs use over time: CPUs, memory and GPUs, speed and loss. In memory only, so bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import time

from refold.client.api import UseSample
from refold.model import Seconds
from refold.server import LiveState, MachineUse

USE_POLL_SECONDS: Seconds = 10.0
KEEP_SECONDS: Seconds = 600.0
"""How long the samples of a job are kept after the last one."""

MAX_SAMPLES = 400
"""Samples of a job. When there are more, every other one is dropped, and from then on half as many are taken."""


class SampleSeries:
    """Samples at about equal distances, from the first to the last."""

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most = most
        self._every = 1
        self._offered = 0
        self.samples: list[UseSample] = []

    def add(self, sample: UseSample) -> None:
        """Add a sample, unless those that are kept are further apart."""
        if self._offered % self._every == 0:
            self.samples.append(sample)
        self._offered += 1
        if len(self.samples) > self._most:
            self.samples = self.samples[::2]
            self._every *= 2


class JobUseHistory:
    """Takes samples of all running jobs. `machine_use` and `gpu_use`: what is measured, by job."""

    def __init__(
        self,
        state: LiveState,
        machine_use: Callable[[], Awaitable[Mapping[str, MachineUse]]],
        gpu_use: Callable[[], Mapping[str, float]],
    ) -> None:
        self._state = state
        self._machine_use = machine_use
        self._gpu_use = gpu_use
        self._series: dict[str, SampleSeries] = {}

    async def poll(self) -> None:
        """Take a sample of each running job; forget jobs that ended a while ago."""
        machine, gpus, view, now = await self._machine_use(), self._gpu_use(), self._state.view, time()
        for job in {run.job for run in view.runs.values()}:
            use = machine.get(job)
            sample = UseSample(
                now,
                None if use is None else use.cpus,
                None if use is None else use.memory_mib,
                gpus.get(job),
                view.samples_per_second(job),
                view.loss(job),
            )
            self._series.setdefault(job, SampleSeries()).add(sample)
        for job, series in list(self._series.items()):
            if now - series.samples[-1].at > KEEP_SECONDS and job not in view.active:
                del self._series[job]

    def of(self, job: str) -> list[UseSample]:
        series = self._series.get(job)
        return [] if series is None else list(series.samples)
