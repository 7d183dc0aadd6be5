"""Hold a pool: read its allocations, request new ones, release those that are not needed."""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import localtime, monotonic, strftime

from refold.engines.slurm.node_records import SlurmNode
from refold.engines.slurm.pool import (
    PoolJob,
    PoolNode,
    PoolSettings,
    closing_jobs,
    next_change,
    pool_comment,
    read_pool,
)
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings, minutes_argument
from refold.engines.slurm.run_jobs import SlurmId
from refold.model import Seconds

REQUEST_INTERVAL: Seconds = 10.0
"""Allocations are not requested more often: one that ends at once would otherwise be requested again and again."""

END_MARGIN: Seconds = 15.0
"""How long before the time limit of an allocation its runs have ended, which are signalled a grace period earlier."""

HOLD = "#!/bin/bash\ntrap : HUP INT URG USR1 USR2\nwhile :; do sleep 3600 & wait $!; done\n"
"""The batch script of an allocation. It ends with the allocation."""

JOB_NAME = "refold-pool"

log = logging.getLogger("refold")


class HeldPool:
    """The allocations of a daemon, as they were last read. `settings`: options of sbatch."""

    def __init__(self, programs: Programs, daemon: str, settings: SlurmSettings, pool: PoolSettings) -> None:
        self._programs = programs.without_user_environment()
        self._daemon = daemon
        self._settings = settings
        self._pool = pool
        self._requested_at: Seconds | None = None
        self._closing: set[int] = set()
        self._was_closing: set[int] = set()
        self._abandoned: set[int] = set()
        self.jobs: list[PoolJob] = []

    @property
    def is_used(self) -> bool:
        """Whether runs are started in the pool."""
        return self._pool.is_used

    def read(self, now: Seconds) -> None:
        """Read the allocations. Raises SlurmError."""
        read = read_pool(self._programs.run, self._daemon, self._pool.jobs, self.jobs)
        found = [job._replace(is_abandoned=job.number in self._abandoned) for job in read]
        held = {job.number for job in found if job.is_held}
        for job in self.jobs:
            if job.is_held and job.number not in held:
                log.warning("allocation %d of the pool has ended", job.number)
        self._was_closing = self._closing
        self.jobs, self._closing = found, closing_jobs(found, self._pool.nodes, now)

    def abandon(self, step: SlurmId) -> None:
        """Start nothing more in the allocation of a step, and release it when its runs have ended."""
        number = int(step.partition(".")[0])
        if number not in self._abandoned:
            log.warning("Slurm keeps step %s, which has ended; its allocation is released when it is idle", step)
        self._abandoned.add(number)

    def is_abandoned(self, step: SlurmId) -> bool:
        """Whether a step is in an allocation that is used no more."""
        return step.partition(".")[0] in map(str, self._abandoned)

    def missing_jobs(self) -> list[int]:
        """Return the given allocations that Slurm does not know, or that are of others."""
        return [number for number in self._pool.jobs if number not in {job.number for job in self.jobs}]

    def request_missing(self, now: Seconds) -> None:
        """Request allocations that are missing, or will be. Raises SlurmError."""
        count = next_change(self.jobs, self._pool.nodes, now, ()).request
        if count and (self._requested_at is None or monotonic() > self._requested_at + REQUEST_INTERVAL):
            self._requested_at = monotonic()
            self._request(count)

    def release_idle(self, now: Seconds, busy: Collection[str]) -> None:
        """Release allocations that end soon, or are too many, and have no runs. `busy`: nodes that have runs.

        Their nodes have been drained since the last read: nothing is about to start there.
        """
        waiting = {job.number for job in self.jobs if job.is_waiting}
        for number in next_change(self.jobs, self._pool.nodes, now, busy).release:
            if number in self._was_closing | waiting:
                log.info("releasing allocation %d of the pool", number)
                self._programs.run("scancel", "--quiet", str(number))

    def place(self, node: str) -> tuple[int, PoolNode] | None:
        """Return the allocation that has a node, and what it has there; one that lasts before others."""
        held = sorted((job for job in self.jobs if job.is_held), key=lambda job: job.number in self._closing)
        return next(((job.number, part) for job in held for part in job.nodes if part.name == node), None)

    def drain_reason(self, node: SlurmNode) -> str:
        """Return why nothing can be started on a node, or ''."""
        place = self.place(node.name)
        if place is None:
            return "not in the pool"
        job = next(job for job in self.jobs if job.number == place[0])
        if job.number not in self._closing:
            return ""
        return f"its allocation in the pool ends{_at(job.ends_at)}"

    def end_reason(self, claim: SlurmId, grace: Seconds, now: Seconds) -> str:
        """Return why a run must end now so that its grace period ends before its allocation does, or ''."""
        job = next((job for job in self.jobs if str(job.number) == claim.partition(".")[0]), None)
        if job is None or job.ends_at is None or now < job.ends_at - grace - END_MARGIN:
            return ""
        return f"the time limit of its allocation, job {job.number} of Slurm, is near"

    def _request(self, count: int) -> None:
        words = [
            "--parsable",
            f"--comment={pool_comment(self._daemon)}",
            f"--job-name={JOB_NAME}",
            "--output=/dev/null",
            "--no-requeue",
            "--nodes=1",
            "--exclusive",
            "--gres=gpu:1",  # a node that has GPUs: --exclusive gives all of them
            "--mem=0",
            *([f"--partition={self._settings.partition}"] if self._settings.partition else []),
            *minutes_argument(self._pool.time_limit),
            *self._settings.arguments(),
        ]
        for _ in range(count):
            number = self._programs.run("sbatch", *words, stdin=HOLD).strip()
            log.info("requested a node for the pool: job %s of Slurm", number)


def _at(time: Seconds | None) -> str:
    return strftime(" at %H:%M", localtime(time)) if time is not None else ""
