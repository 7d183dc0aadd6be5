"""Seconds by phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from refold.model import Seconds


class PhaseTimer:
    """Measures phases that follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, Seconds] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began
