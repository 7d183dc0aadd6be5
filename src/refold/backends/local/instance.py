"""One instance of a run: started behind a shim, or taken up where an earlier daemon has left it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from refold.backends.local.process import Process, boot_id, until_ended
from refold.backends.local.process_tree import ProcessTree
from refold.backends.local.run_files import RunFiles
from refold.backends.local.safe_files import patiently, plain_size
from refold.backends.local.shim import NOT_CLAIMED, Claim, read_claim, read_exit, start_shim, why_not_well
from refold.model import Seconds

WRITING: Seconds = 1.0
"""A shim that has created its claim has written it after so long, or never will."""


class Instance:
    """`failure` says how it ended, when it has: empty if that was well. `lost`: through no fault of its own."""

    def __init__(self, files: RunFiles, number: int, tree: ProcessTree) -> None:
        self.failure: str | None = None
        self.exit_code: int | None = None
        self.lost = False
        self._files = files
        self._number = number
        self._tree = tree
        self._shim: Process | None = None

    def start(self, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Have a shim run the command, unless somebody has claimed the instance before."""
        if self.was_claimed():
            return
        self._shim = start_shim(self._files, self._number, folder, command, environment)
        self._tree.add_leader(self._shim)

    def was_claimed(self) -> bool:
        """Whether there is anything of it."""
        return self._files.claim(self._number).exists()

    async def over(self) -> None:
        """Wait for its end."""
        status = NOT_CLAIMED if self._shim is None else await until_ended(self._shim)
        written = await self._exit_status()
        if self._shim is None or (status == NOT_CLAIMED and written is None):
            self.failure = await self._taken_up()
        else:
            self.failure = self._failure(status if written is None else written)

    async def _taken_up(self) -> str:
        claim = await self._claim()
        if claim is None:
            # Nothing in it: whoever made it could not write, as on a full disk. Something else: a job has written it.
            self.lost = plain_size(self._files.claim(self._number)) == 0
            return f"{str(self._files.claim(self._number))!r}, which says by whom it was started, cannot be read"
        if claim.holds():
            self._tree.add_leader(claim.process)
            await until_ended(claim.process)
        elif claim.boot in ("", boot_id()):
            self._tree.add_leader(claim.process)  # its shim is gone, but what it has started may not be
        status = await self._exit_status()
        if status is None and claim.boot not in ("", boot_id()):
            self.lost = True
            return "it was lost: the machine was restarted"
        return self._failure(status)

    def _failure(self, status: int | None) -> str:
        if status is None or status < 0:
            return "it was lost: its shim was killed"
        self.exit_code = status
        return why_not_well(status) if status else ""

    async def _exit_status(self) -> int | None:
        return await patiently(lambda: read_exit(self._files.exit(self._number)))

    async def _claim(self) -> Claim | None:
        for _ in range(20):
            if claim := await patiently(lambda: read_claim(self._files.claim(self._number))):
                return claim
            await asyncio.sleep(WRITING / 20)
        return None
