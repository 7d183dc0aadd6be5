"""What a rank measures of its own work in some of its steps: the parts in which it does not wait for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from time import monotonic, perf_counter
from typing import Any

import torch

from refold.model import Plan, Seconds
from refold.train.batches import Batches
from refold.train.layout import RankMesh
from refold.train.losses import Batch
from refold.train.slow_ranks import FORWARD, LOADING, PROBE, RankTimes

SAMPLE_SECONDS: Seconds = 1.0
"""Time between two steps that are measured: on a GPU, measuring waits for it."""

REPORT_SECONDS: Seconds = 5.0
"""Time between two reports."""

PROBE_SIZE = 512


class StepClock:
    """Measures parts of steps. With a single rank there is nothing to compare, and nothing is measured."""

    def __init__(self, rank: int, plan: Plan, device: torch.device) -> None:
        self._rank = rank
        self._device = device
        self._is_used = plan.gpus > 1
        self._has_own_forward = plan.tensor == plan.pipeline == 1 and plan.zero == 0
        self._probe: torch.Tensor | None = None
        self._is_sampled = False
        self._sampled_at = self._began = monotonic()
        self._steps = 0
        self._parts: dict[str, Seconds] = {}

    def read(self, batches: Batches, step: int, layout: RankMesh) -> Batch:
        """Return this rank's part of the batch of a step."""
        with self.part(LOADING):
            return batches.read(step, layout)

    def timed(self, context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
        """Return a context of forward passes that are also measured."""

        @contextmanager
        def both() -> Iterator[None]:
            with self.part(FORWARD), context():
                yield

        return both

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of a step, if the step is measured."""
        if not self._is_sampled or (name == FORWARD and not self._has_own_forward):
            yield
            return
        self._synchronize()
        began = perf_counter()
        yield
        self._synchronize()
        self._parts[name] = min(self._parts.get(name, inf), perf_counter() - began)

    def end_step(self) -> RankTimes | None:
        """End a step; return a report if it is time for one."""
        now = monotonic()
        if self._is_sampled and not self._has_own_forward:
            self._compute_probe()
        self._steps += 1
        self._is_sampled = self._is_used and now - self._sampled_at >= SAMPLE_SECONDS
        self._sampled_at = now if self._is_sampled else self._sampled_at
        if now - self._began < REPORT_SECONDS or not self._parts:
            return None
        times = RankTimes(self._rank, (now - self._began) / self._steps, self._parts)
        self._began, self._steps, self._parts = now, 0, {}
        return times

    def _compute_probe(self) -> None:
        if self._probe is None:
            self._probe = torch.ones(PROBE_SIZE, PROBE_SIZE, device=self._device)
        with self.part(PROBE), torch.no_grad():
            torch.mm(self._probe, self._probe)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
