"""How long a change of the plan interrupts a training on two hosts, by the size of what moves between them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.failures.hosts import Hosts, wait_until

SCRIPT = Path(__file__).with_name("train_wide.py")
SMALL, LARGE = 256, 2048
"""Widths of the layers of the two models."""

CHANGES = 4
LAYERS = 8
BYTES = 12
"""Bytes of state per parameter: float32 weights, and two moments of Adam."""


class LiveChange(NamedTuple):
    """Pauses of two models, and what moves between the hosts."""

    small_seconds: float
    small_bytes: int
    large_seconds: float
    large_bytes: int

    @property
    def per_gigabyte(self) -> float:
        """Return further seconds per further GB: what begins the new ranks is the same for both."""
        return (self.large_seconds - self.small_seconds) / ((self.large_bytes - self.small_bytes) / 1e9)


def seconds_per_gigabyte(gigabits: float, way: str) -> LiveChange:
    """Measure changes from ZeRO-3 on two hosts to plain data parallelism: each host gets half of the state.

    `way`: 'live', in which ranks stay, or 'warm', in which new ones load a copy from memory of the hosts.
    """
    return LiveChange(*_pause(SMALL, gigabits, way), *_pause(LARGE, gigabits, way))


def _pause(width: int, gigabits: float, way: str) -> tuple[float, int]:
    """Return the median pause, and how many bytes each host gets from the other."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(2, Path(folder), megabits=round(1000 * gigabits))
        try:
            for host in range(2):
                variables = {"REFOLD_GRACE": "1"}
                hosts.train(host, "dp2 zero3", str(SCRIPT), str(width), str(LAYERS), slots=1, variables=variables)
            wait_until((hosts.own_folder(0) / "change.agent").exists, 300.0)
            pauses = []
            for number in range(CHANGES):
                hosts.request(0, number + 2, {"data": 2, "zero": 3 * (number % 2)}, way)
                answer = hosts.answer(0, number + 2)
                assert not answer.get("error"), answer
                assert answer["way"] == way, answer
                pauses.append(sum(answer["phases"].values()))
                print(f"width {width}, {answer['plan']}: {answer['phases']}", flush=True)
            return median(pauses[::2]), width * width * LAYERS * BYTES // 2
        finally:
            hosts.close()
