"""Rules for idle runs and faulty GPUs. Pure: readings and times are arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import msgspec

from refold.model import Seconds, format_duration
from refold.server.config import BadGpuRule, IdleRule
from refold.server.monitor.machine import GpuPosition
from refold.server.monitor.nvidia import GpuProblem


class RunGpus(msgspec.Struct, frozen=True):
    job: str
    run: int
    gpus: tuple[GpuPosition, ...]


class IdleRun(msgspec.Struct, frozen=True):
    """A run whose GPUs are all idle, and the text to report."""

    job: str
    run: int
    text: str


class IdleWatch:
    """Detects runs whose GPUs have been idle for the configured time. Each run is reported once."""

    def __init__(self, rule: IdleRule) -> None:
        self._rule = rule
        self._since: dict[tuple[str, int], Seconds] = {}
        self._reported: set[tuple[str, int]] = set()

    def check(
        self, now: Seconds, runs: Iterable[RunGpus], utilisation: Mapping[GpuPosition, float | None]
    ) -> list[IdleRun]:
        """Return runs whose idle time has just reached the threshold. A GPU of unknown utilisation is not idle."""
        present: set[tuple[str, int]] = set()
        idle_runs: list[IdleRun] = []
        for run in runs:
            key = (run.job, run.run)
            present.add(key)
            if not self._is_idle(run, utilisation):
                self._since.pop(key, None)
                continue
            idle_for = now - self._since.setdefault(key, now)
            if idle_for >= self._rule.seconds and key not in self._reported:
                self._reported.add(key)
                idle_runs.append(IdleRun(run.job, run.run, self._text(run, idle_for)))
        self._forget_ended(present)
        return idle_runs

    def _is_idle(self, run: RunGpus, utilisation: Mapping[GpuPosition, float | None]) -> bool:
        readings = [utilisation.get(gpu) for gpu in run.gpus]
        return bool(readings) and all(
            (inf if value is None else value) < self._rule.utilisation_below for value in readings
        )

    def _text(self, run: RunGpus, idle_for: Seconds) -> str:
        subject = "GPU utilisation" if len(run.gpus) == 1 else f"utilisation of all {len(run.gpus)} GPUs"
        return f"{subject} below {self._rule.utilisation_below:g} % for {format_duration(idle_for)}"

    def _forget_ended(self, present: set[tuple[str, int]]) -> None:
        for key in self._since.keys() - present:
            del self._since[key]
        self._reported &= present


class BadGpu(msgspec.Struct, frozen=True):
    """A GPU with a problem. `drain`: no more work may run on it."""

    gpu_index: int
    why: str
    drain: bool


class BadGpuWatch:
    """Remembers faulty GPUs. Each is reported once until it is marked healthy."""

    def __init__(self, rule: BadGpuRule) -> None:
        self._rule = rule
        self._bad: set[int] = set()

    def check(self, problems: Sequence[GpuProblem]) -> list[BadGpu]:
        """Return what to do about new problems: drain faulty GPUs, report the others."""
        if self._rule == "off":
            return []
        bad_gpus: list[BadGpu] = []
        for problem in problems:
            if problem.gpu_index in self._bad:
                continue
            if problem.bad:
                self._bad.add(problem.gpu_index)
            bad_gpus.append(BadGpu(problem.gpu_index, problem.text, problem.bad and self._rule == "drain"))
        return bad_gpus

    def mark_healthy(self, gpu_index: int) -> None:
        """Forget that this GPU is faulty, so that its next problem is reported."""
        self._bad.discard(gpu_index)
