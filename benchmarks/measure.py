"""Measurement of CPU time, which other load on the machine affects less than wall-clock time, in fresh processes.

A fresh process has empty in-memory caches. It runs `python -m benchmarks.measure MODULE FUNCTION ARGUMENTS`, which
calls a function with JSON arguments and prints its result as JSON on the last line.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent

AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(REPOSITORY / "build" / "bytecode")}
"""Environment variables with which modules are compiled once, as pip does, and not whenever a command is run."""


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call in this process."""
    before = time.process_time()
    work()
    return time.process_time() - before


def median_cpu_seconds(work: Callable[[], object], times: int = 3) -> float:
    """Return the median CPU time of several calls."""
    return statistics.median(cpu_seconds(work) for _ in range(times))


def in_fresh_process(
    function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Any:
    """Call a module-level function in a new process. Arguments and result must be JSON values."""
    command = [sys.executable, "-m", "benchmarks.measure", function.__module__, function.__name__]
    done = subprocess.run(
        [*command, json.dumps(arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def cpu_seconds_of_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Return the user and system CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, check=True, cwd=REPOSITORY
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    kilobytes_or_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes_or_bytes if sys.platform == "darwin" else kilobytes_or_bytes * 1024


def _main() -> None:
    module, function, arguments = sys.argv[1:]
    result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(json.dumps(result))


if __name__ == "__main__":
    _main()
