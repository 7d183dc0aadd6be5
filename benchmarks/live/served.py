"""A real daemon in a process of its own, in a folder that is gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from refold.client import Address, Client, left_address
from refold.errors import RefoldError

PATIENCE = 180.0
"""Seconds that a daemon may take to start: its kernels may have to be compiled."""


class Served:
    """A daemon, and somebody who may ask it everything."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], at: Address) -> None:
        self.folder, self.process, self.at = folder, process, at
        self.client = Client(at.address, at.token)

    @property
    def environment(self) -> dict[str, str]:
        """With which `refold` finds this daemon and no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        return {**kept, "REFOLD_HOME": str(self.folder)}

    def resident_mib(self) -> float:
        """Memory that it has, as `ps` tells it."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_seconds(self) -> float:
        """CPU time that it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(*options: str, folder: Path | None = None) -> Iterator[Served]:
    """`refold serve` with these options; ended, with all that it started, afterwards."""
    with tempfile.TemporaryDirectory(prefix="refold-") as made:
        home = folder or Path(made) / "state"
        command = [sys.executable, "-m", "refold.cli.app", "serve", "--port", "0", "--state", str(home), *options]
        before = left_address(home) if home.exists() else None
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=made, start_new_session=True)
        try:
            yield Served(home, process, _where_it_answers(home, process, before))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _where_it_answers(home: Path, process: subprocess.Popen[bytes], before: object) -> Address:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        left = left_address(home) if home.exists() else None
        if left is not None and left != before:
            with suppress(RefoldError):  # it has left word and does not answer yet
                Client(left.address, left.token).about()
                return left
        time.sleep(0.01)
    raise RuntimeError(f"the daemon did not start: status {process.poll()}")
