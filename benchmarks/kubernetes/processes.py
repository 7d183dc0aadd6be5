"""Programs that are measured, or take part in a measurement."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Process = subprocess.Popen[bytes]


@contextmanager
def run_process(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run a program inside the context. Raises if it ends by itself."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environment or {})})
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} has ended:\n{log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()
