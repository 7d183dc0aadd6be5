"""The copies of a host, from the point of view of its agent: what its ranks write, and what is fetched from others."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from refold.errors import RefoldError
from refold.train.agent import print_line
from refold.train.copies import CopyToLoad, HostCopy
from refold.train.copy_files import CopyFiles
from refold.train.messages import Copied, Copying, ToAgent


class HostCopies(CopyFiles):
    """Keeps what this host has, and fetches parts in the background, one copy after the other."""

    def __init__(self, secret: bytes, state: Path) -> None:
        super().__init__(secret, state)
        self._background = ThreadPoolExecutor(1, "refold-copies")
        self._fetching: list[tuple[int, Future[HostCopy]]] = []

    def note(self, message: ToAgent) -> bool:
        """Note what a rank does; return whether that changes which copies are complete."""
        match message:
            case Copying(slot):
                return self.invalidate(slot)
            case Copied():
                try:
                    return self.complete(message)
                except RefoldError as error:
                    print_line(str(error))
        return False

    def fetch_in_background(self, copy: CopyToLoad) -> None:
        """Fetch parts of a copy from other hosts."""
        self._fetching.append((copy.step, self._background.submit(self.fetch, copy)))

    def take_fetched(self) -> list[int | None]:
        """Return, for each copy of which parts were fetched, None; or its step if that has failed."""
        results: list[int | None] = []
        while self._fetching and self._fetching[0][1].done():
            step, future = self._fetching.pop(0)
            try:
                self.add(future.result())
                results.append(None)
            except (RefoldError, OSError, msgspec.DecodeError) as error:
                results.append(step)
                print_line(f"the copy of step {step} is not on a second host: {error}")
        return results
