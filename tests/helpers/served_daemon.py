"""A daemon for tests: `refold serve` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from refold.client.address import read_address
from refold.client.api.wire import JobStatus
from refold.client.client import Client
from refold.errors import NoDaemon

END_SECONDS = 120.0


class ServedDaemon:
    """The process, its log, and its jobs. `words`: options of `refold serve`. `folder`: its state."""

    def __init__(self, folder: Path, log: Path, words: list[str], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._log = log
        self._words = [*words, "--port", "0", "--state", str(folder)]
        self._environment = environment
        self._began = 0
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._began = self._log.stat().st_size
            self._process = subprocess.Popen(
                self.command([sys.executable, "-m", "refold", "serve", *self._words]),
                stdout=log,
                stderr=log,
                env=dict(self._environment),
            )

    def command(self, words: list[str]) -> list[str]:
        """Return the command that starts it."""
        return words

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it; runs continue."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=END_SECONDS)
            self._process = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it does not run."""
        return self._process is None or self._process.poll() is not None

    @property
    def is_serving(self) -> bool:
        """Whether it schedules since it was last started."""
        return not self.has_ended and self.has_logged("serving on")

    def has_logged(self, text: str) -> bool:
        """Whether it has written this since it was last started."""
        return text.encode() in self._log.read_bytes()[self._began :]

    def log(self) -> str:
        """Return what it has written."""
        return self._log.read_text(errors="replace")

    def client(self) -> Client:
        """Return a client with the owner's token."""
        address = read_address(self.folder)
        if address is None:
            raise NoDaemon(f"no daemon in {self.folder}")
        return Client(address.address, address.token)

    def jobs(self) -> list[JobStatus]:
        """Return all jobs; none while the daemon does not answer."""
        try:
            with self.client() as client:
                return [*client.jobs().jobs, *client.jobs(ended=True).jobs]
        except NoDaemon:
            return []

    def events(self, job: str) -> list[str]:
        """Return what has happened to a job."""
        with self.client() as client:
            return [f"{event.kind}: {event.text}" if event.text else event.kind for event in client.why(job).events]
