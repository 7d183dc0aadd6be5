"""Watching over GPUs: runs that leave theirs idle, and GPUs that have gone bad. Pure: readings and times come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import msgspec

from refold.backends.local import GpuProblem
from refold.model import Seconds, text_from_seconds
from refold.server.config import BadGpuRule, IdleRule
from refold.server.monitor.machine import Place


class Occupied(msgspec.Struct, frozen=True):
    """A run, and the GPUs that it has."""

    job: str
    run: int
    places: tuple[Place, ...]


class IdleRun(msgspec.Struct, frozen=True):
    """A run that leaves all of its GPUs idle, and what to say of it."""

    job: str
    run: int
    text: str


class IdleWatch:
    """Since when which run leaves its GPUs idle; each is told of once."""

    def __init__(self, rule: IdleRule) -> None:
        self._rule = rule
        self._since: dict[tuple[str, int], Seconds] = {}
        self._told: set[tuple[str, int]] = set()

    def look(self, now: Seconds, runs: Iterable[Occupied], loads: Mapping[Place, float | None]) -> list[IdleRun]:
        """Those that have become idle for long enough; a GPU whose load is not known is not called idle."""
        present: set[tuple[str, int]] = set()
        found: list[IdleRun] = []
        for run in runs:
            key = (run.job, run.run)
            present.add(key)
            if not self._is_idle(run, loads):
                self._since.pop(key, None)
                continue
            idle_for = now - self._since.setdefault(key, now)
            if idle_for >= self._rule.seconds and key not in self._told:
                self._told.add(key)
                found.append(IdleRun(run.job, run.run, self._text(run, idle_for)))
        self._forget_all_but(present)
        return found

    def _is_idle(self, run: Occupied, loads: Mapping[Place, float | None]) -> bool:
        known = [loads.get(place) for place in run.places]
        return bool(known) and all((inf if load is None else load) < self._rule.load_below for load in known)

    def _text(self, run: Occupied, idle_for: Seconds) -> str:
        whose = "its GPU has" if len(run.places) == 1 else f"all of its {len(run.places)} GPUs have"
        return f"{whose} had a load below {self._rule.load_below:g} % for {text_from_seconds(idle_for)}"

    def _forget_all_but(self, present: set[tuple[str, int]]) -> None:
        for key in self._since.keys() - present:
            del self._since[key]
        self._told &= present


class BadGpu(msgspec.Struct, frozen=True):
    """A GPU that something is wrong with; `drain`: nothing more is to run on it."""

    gpu_index: int
    why: str
    drain: bool


class BadGpuWatch:
    """Which GPUs are known to be bad: each is drained once, until somebody says that it is well again."""

    def __init__(self, rule: BadGpuRule) -> None:
        self._rule = rule
        self._bad: set[int] = set()

    def look(self, problems: Sequence[GpuProblem]) -> list[BadGpu]:
        """What is to be done about new problems: a bad GPU is drained, of others people are told."""
        if self._rule == "off":
            return []
        found: list[BadGpu] = []
        for problem in problems:
            if problem.gpu_index in self._bad:
                continue
            if problem.bad:
                self._bad.add(problem.gpu_index)
            found.append(BadGpu(problem.gpu_index, problem.text, problem.bad and self._rule == "drain"))
        return found

    def is_well(self, gpu_index: int) -> None:
        """It takes work again: what goes wrong from now on is news."""
        self._bad.discard(gpu_index)
