"""One instance of a run: started behind a shim, or adopted from an earlier daemon."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from refold.engines.local.process import Process, boot_id, wait_for_exit
from refold.engines.local.process_host import OutputCopy
from refold.engines.local.process_tree import ProcessTree
from refold.engines.local.run_groups import GroupPlace, ResourceLimits
from refold.engines.local.shim import CLAIM_FAILED, Claim, describe_exit, read_claim, read_exit_status, start_shim
from refold.model import Job, Seconds
from refold.server.output import RunFiles, is_regular, regular_size, retry_on_shortage

ENDED_BY_SHUTDOWN = frozenset(128 + number for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL))
"""Exit statuses of commands that are ended when the machine shuts down, as a shell reports them."""

CLAIM_TIMEOUT: Seconds = 1.0
"""How long to wait for a shim to write the claim file that it has created."""


class Instance:
    """An instance. `failure`: None while it runs, empty if it succeeded. `lost`: not the job but the machine failed."""

    def __init__(self, files: RunFiles, number: int, tree: ProcessTree, limits: ResourceLimits) -> None:
        self.limits = limits
        self.failure: str | None = None
        self.exit_code: int | None = None
        self.lost = False
        self._files = files
        self._number = number
        self._tree = tree
        self._shim: Process | None = None

    def start(
        self, job: Job, folder: Path, environment: Mapping[str, str], copies: Sequence[OutputCopy], max_output: int
    ) -> None:
        """Run the job's command behind a shim, unless the instance was started before."""
        if self.is_claimed():
            return
        self._shim = start_shim(
            self._files,
            self._number,
            folder,
            job.command,
            environment,
            copies,
            user=job.user,
            host=self._tree.host,
            place=self.place,
            max_output=max_output,
        )
        self._tree.add_leader(self._shim)

    @property
    def place(self) -> GroupPlace:
        return GroupPlace(self._tree.group, self._number, self.limits)

    def is_claimed(self) -> bool:
        """Whether the instance was started, by this daemon or an earlier one."""
        return is_regular(self._files.claim(self._number))

    def forget(self) -> None:
        for path in (self._files.exit(self._number), self._files.claim(self._number)):
            path.unlink(missing_ok=True)

    async def wait(self) -> None:
        """Wait for the instance to end, and set `failure`, `exit_code` and `lost`."""
        status = CLAIM_FAILED if self._shim is None else await wait_for_exit(self._shim)
        recorded = await self._read_exit_status()
        if self._shim is None or (status == CLAIM_FAILED and recorded is None):
            self.failure = await self._wait_adopted()
        else:
            self.failure = self._describe_failure(status if recorded is None else recorded)

    async def _wait_adopted(self) -> str:
        claim = await self._read_claim()
        if claim is None:
            # An empty file: its shim could not write it (disk full). Other content was written by a job.
            self.lost = regular_size(self._files.claim(self._number)) == 0
            return f"the claim file {str(self._files.claim(self._number))!r} cannot be read"
        is_alive = claim.is_alive()
        if is_alive and not await self._tree.owns(claim.process) and claim.is_alive():
            return f"the claim file {str(self._files.claim(self._number))!r} names a process that is not of this run"
        if is_alive:
            self._tree.add_leader(claim.process)
            await wait_for_exit(claim.process)
        elif claim.boot in ("", boot_id()):
            self._tree.add_leader(claim.process)  # the shim has ended, but its descendants may be alive
        status = await self._read_exit_status()
        if claim.boot not in ("", boot_id()) and (status is None or status in ENDED_BY_SHUTDOWN):
            self.lost = True
            return "lost: the machine was restarted"
        exit_file = self._files.exit(self._number)
        if status is None and is_regular(exit_file) and not regular_size(exit_file):
            self.lost = True  # there was no space for its exit status, so the command was not run
            return "lost: the disk was full when it was to start"
        return self._describe_failure(status)

    def _describe_failure(self, status: int | None) -> str:
        if status is None or status < 0:
            return "lost: its supervising shell (shim) was killed, or could not record its exit status"
        self.exit_code = status
        return describe_exit(status) if status else ""

    async def _read_exit_status(self) -> int | None:
        return await retry_on_shortage(lambda: read_exit_status(self._files.exit(self._number)))

    async def _read_claim(self) -> Claim | None:
        for _ in range(20):
            if claim := await retry_on_shortage(lambda: read_claim(self._files.claim(self._number))):
                return claim
            await asyncio.sleep(CLAIM_TIMEOUT / 20)
        return None
