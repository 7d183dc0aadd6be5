"""A daemon on Slurm for tests: `refold serve --on slurm` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_servers import SlurmServers

from refold.client.address import read_address
from refold.client.client import Client
from refold.errors import NoDaemon

WAIT_SECONDS = 90.0


class SlurmDaemon:
    """The daemon, and shortcuts to see what it does."""

    def __init__(self, slurm: SlurmServers, folder: Path, *options: str) -> None:
        self.folder = folder
        self._slurm = slurm
        self._options = options
        self._log = folder.with_name(f"{folder.name}.log")
        self._began = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return when it answers."""
        self.launch()
        self.wait_until(lambda: b"serving on" in self._log.read_bytes()[self._began :], "the daemon serves")

    def launch(self) -> None:
        """Start it."""
        words = ["serve", "--on", "slurm", "--port", "0", "--state", str(self.folder), *self._options]
        with self._log.open("ab") as log:
            self._began = self._log.stat().st_size
            self._process = subprocess.Popen(
                [sys.executable, "-m", "refold", *words], stdout=log, stderr=log, env=self._slurm.environment
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it; runs continue."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=WAIT_SECONDS)
            self._process = None

    def log(self) -> str:
        """Return what it has written."""
        return self._log.read_text(errors="replace")

    def client(self) -> Client:
        """Return a client with the owner's token."""
        address = read_address(self.folder)
        assert address is not None
        return Client(address.address, address.token)

    def states(self) -> dict[str, str]:
        """Return the states of all jobs by id; none while the daemon does not answer."""
        try:
            with self.client() as client:
                return {job.id: job.state for job in (*client.jobs().jobs, *client.jobs(ended=True).jobs)}
        except NoDaemon:
            return {}

    def wait_for_state(self, job: str, state: str) -> None:
        """Wait until a job is in a state."""
        self.wait_until(lambda: self.states().get(job) == state, f"{job} is {state}")

    def events(self, job: str) -> list[str]:
        """Return what has happened to a job."""
        with self.client() as client:
            return [f"{event.kind}: {event.text}" if event.text else event.kind for event in client.why(job).events]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, while the daemon runs."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            has_ended = self._process is None or self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise AssertionError(f"{what}: not so\n{self.states()}\n{self.log()[-3000:]}")
            time.sleep(0.05)
