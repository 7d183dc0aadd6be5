"""When the policy decides. One that takes long must not hold up requests, whose events are committed without it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from refold.core import ChangeMeasured, Event, GpuTimeUsed, JobSubmitted, RunProgressed, RunStarted, SpeedMeasured
from refold.model import Seconds

QUICK: Seconds = 0.02
"""A policy that decides faster is called at every step."""

CALM_PAUSE, BUSY_PAUSE, IDLE_PAUSE = 3.0, 1.0, 0.5
"""Pauses after a decision, as multiples of its duration: before events that free nothing; before others if clients
wait for answers, and if none do. GPUs may be free then, but runs that were just started need the processor as well, and
the next decision is about all runs that end meanwhile."""

MAX_PAUSE: Seconds = 2.0

CALM = (JobSubmitted, RunStarted, RunProgressed, SpeedMeasured, ChangeMeasured, GpuTimeUsed)
"""Events that free nothing."""


class DecisionPace:
    """Measures decisions, and says when the next one is due."""

    def __init__(self) -> None:
        self._ended_at: Seconds = -inf
        self._duration: Seconds = 0.0

    def note(self, began_at: Seconds, ended_at: Seconds) -> None:
        """Note a decision."""
        self._ended_at, self._duration = ended_at, ended_at - began_at

    def decide_at(self, now: Seconds, events: Iterable[Event], has_requests: bool) -> Seconds | None:
        """Return when the policy is to decide about these events; None: now."""
        if self._duration < QUICK:
            return None
        calm = all(isinstance(event, CALM) for event in events)
        pause = CALM_PAUSE if calm else BUSY_PAUSE if has_requests else IDLE_PAUSE
        due = self._ended_at + min(MAX_PAUSE, pause * self._duration)
        return due if due > now else None
