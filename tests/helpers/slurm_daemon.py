"""A daemon on Slurm for tests: `refold serve --on slurm` in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from served_daemon import ServedDaemon
from slurm_servers import SlurmServers

WAIT_SECONDS = 90.0


class SlurmDaemon(ServedDaemon):
    """The daemon, and shortcuts to see what it does."""

    def __init__(self, slurm: SlurmServers, folder: Path, *options: str) -> None:
        log = folder.with_name(f"{folder.name}.log")
        config = folder.with_name(f"{folder.name}.yaml")
        given = () if "--config" in options else ("--config", str(config))
        config.write_text("slurm: {as_root: true}\n")
        super().__init__(folder, log, ["--on", "slurm", *given, *options], slurm.environment)

    def start(self) -> None:
        """Start it; return when it answers."""
        self.launch()
        self.wait_until(lambda: self.is_serving, "the daemon serves")

    def states(self) -> dict[str, str]:
        """Return the states of all jobs by id; none while the daemon does not answer."""
        return {job.id: job.state for job in self.jobs()}

    def wait_for_state(self, job: str, state: str) -> None:
        """Wait until a job is in a state."""
        self.wait_until(lambda: self.states().get(job) == state, f"{job} is {state}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, while the daemon runs."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if self.has_ended or time.monotonic() > deadline:
                raise AssertionError(f"{what}: not so\n{self.states()}\n{self.log()[-3000:]}")
            time.sleep(0.05)
