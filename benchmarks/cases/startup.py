"""Start-up time: `refold --help`, and the first placement in a fresh process."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import cpu_seconds_of_command
from benchmarks.table import Row, at_most

FIRST_PLACEMENT = """
from refold.model import Demand
from refold.packing import FreeResources, Placer
from refold.traces import read_cluster
assert Placer("best-fit").place(FreeResources(read_cluster("16x8:A100")), Demand(gpus=4))
"""


def rows(quick: bool) -> list[Row]:
    """Measure the CPU time (user and system) of whole processes."""
    times = 3 if quick else 7
    refold = [str(Path(sys.executable).with_name("refold"))]
    command = refold if Path(refold[0]).exists() else [sys.executable, "-m", "refold.cli.app"]
    help_seconds = _median([*command, "--help"], times)
    place = [sys.executable, "-c", FIRST_PLACEMENT]
    cpu_seconds_of_command(place)  # compiles and caches kernels that have changed
    warm = _median(place, times)
    with tempfile.TemporaryDirectory() as empty:
        cold = cpu_seconds_of_command(place, {"REFOLD_CACHE_DIR": empty})
        again = cpu_seconds_of_command(place, {"REFOLD_CACHE_DIR": empty})
    bare = _median([sys.executable, "-c", "import numba"], times)
    return [
        at_most("refold --help", help_seconds, 0.3, f"{help_seconds:.2f} s", "s"),
        Row("first placement in a fresh process, kernels cached", f"{warm:.2f} s", warm),
        Row("of which Python and `import numba`", f"{bare:.2f} s", bare),
        Row("first placement, empty kernel cache", f"{cold:.1f} s, then {again:.2f} s with the filled cache", cold),
    ]


def _median(command: list[str], times: int) -> float:
    return statistics.median(cpu_seconds_of_command(command) for _ in range(times))
