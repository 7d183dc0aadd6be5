"""The machine of an agent, as far as its supervisor needs it: a clock, and shared memory."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from refold.model import Seconds
from refold.train.owned_files import AgentFolder


class SupervisedMachine(Protocol):
    """What the supervisor needs to know of the machine."""

    def now(self) -> Seconds:
        """Return the time of a monotonic clock."""

    def shared_state(self, size: int) -> str:
        """Return the path of a file in shared memory, which may grow to this size."""

    def reserve(self, size: int) -> None:
        """Let the file have this size, or raise an error."""


class LocalMachine:
    """This machine."""

    def __init__(self, folder: AgentFolder) -> None:
        self._folder = folder

    def now(self) -> Seconds:
        return monotonic()

    def shared_state(self, size: int) -> str:
        return str(self._folder.shared_state(size))

    def reserve(self, size: int) -> None:
        self._folder.reserve(size)
