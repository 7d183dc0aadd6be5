"""A real daemon in its own process, with a temporary state folder."""

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

from benchmarks.measure import AS_INSTALLED
from refold.client import Address, Client, read_address
from refold.errors import RefoldError

START_TIMEOUT_SECONDS = 60.0
"""Maximum start-up time of a daemon."""


class Daemon:
    """A running daemon, and a client with the owner's token."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: Address) -> None:
        self.folder, self.process, self.address = folder, process, address
        self.client = Client(address.address, address.token)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which `refold` commands use this daemon."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        return {**others, **AS_INSTALLED, "REFOLD_HOME": str(self.folder)}

    def resident_mib(self) -> float:
        """Return the resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def run_daemon(*options: str, folder: Path | None = None, source: Path | None = None) -> Iterator[Daemon]:
    """Run `refold serve` with these options, and stop it at the end. `source`: the tree to run (default: installed)."""
    with tempfile.TemporaryDirectory(prefix="refold-") as temporary:
        home = folder or Path(temporary) / "state"
        command = [sys.executable, "-m", "refold.cli.app", "serve", "--port", "0", "--state", str(home), *options]
        before = read_address(home) if home.exists() else None
        environment = {**os.environ, **AS_INSTALLED}
        if source is not None:
            environment["PYTHONPATH"] = str(source.resolve())
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, cwd=temporary, start_new_session=True, env=environment
        )
        try:
            yield Daemon(home, process, _wait_until_ready(home, process, before))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_until_ready(home: Path, process: subprocess.Popen[bytes], before: object) -> Address:
    """Wait until the daemon has written a new address file and answers; return the address."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        address = read_address(home) if home.exists() else None
        if address is not None and address != before:
            with suppress(RefoldError):  # the address is written before the daemon accepts connections
                Client(address.address, address.token).info()
                return address
        time.sleep(0.01)
    raise RuntimeError(f"the daemon did not start: exit status {process.poll()}")
