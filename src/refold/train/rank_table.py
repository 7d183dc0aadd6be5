"""The processes of a run that have not exited, and what part they have in it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from refold.train.actions import Action, Send, SignalRank, StartRank
from refold.train.messages import ToRank
from refold.train.shape import AgentRanks, Shape


class Role(Enum):
    """The part of a process in a run."""

    MEMBER = auto()
    """It trains, or will train with the first generation."""
    JOINING = auto()
    """It was started for a change, and trains from then on."""
    LEAVING = auto()
    """It trains, and was told to leave with a change."""
    DISMISSED = auto()
    """It has left or was killed: its exit is expected, whatever its status."""


@dataclass(slots=True)
class RankProcess:
    """A process that runs the script. `device`: the GPU that it uses, if there are any."""

    process: int
    rank: int
    device: str | None
    role: Role
    ready: bool = False


class RankTable:
    """The processes of a run, numbered in the order in which they were started. It appends to `actions`."""

    def __init__(self, gang: AgentRanks, actions: list[Action]) -> None:
        self._actions = actions
        self._gang = gang
        self._ranks: dict[int, RankProcess] = {}
        self._last_process = 0

    def start(self, local_ranks: Iterable[int], shape: Shape, role: Role) -> None:
        """Start processes."""
        for local in local_ranks:
            self._last_process += 1
            process, rank = self._last_process, self._gang.first_rank + local
            self._ranks[process] = RankProcess(process, rank, shape.device_of(local), role)
            self._actions.append(StartRank(process, rank, shape.plan.gpus, shape.visible_devices()))

    def send(self, ranks: Iterable[RankProcess], message: ToRank) -> None:
        """Send a message to processes."""
        self._actions += [Send(rank.process, message) for rank in ranks]

    def kill(self, ranks: Iterable[RankProcess]) -> None:
        """Kill processes."""
        for rank in ranks:
            rank.role = Role.DISMISSED
            self._actions.append(SignalRank(rank.process, signal.SIGKILL))

    def get(self, process: int) -> RankProcess | None:
        """Return a process; None if it has exited."""
        return self._ranks.get(process)

    def remove(self, process: int) -> RankProcess | None:
        """Remove a process that has exited, and return it."""
        return self._ranks.pop(process, None)

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(list(self._ranks.values()))

    def __len__(self) -> int:
        return len(self._ranks)

    def having(self, *roles: Role) -> list[RankProcess]:
        """Return the processes that have one of some roles."""
        return [rank for rank in self if rank.role in roles]

    def give(self, role: Role, *, to: Role) -> None:
        """Give a role to all processes that have another one."""
        for rank in self.having(to):
            rank.role = role

    def are_ready(self) -> bool:
        """Whether all processes that are to train have called `start`."""
        needed = self.having(Role.MEMBER, Role.JOINING)
        return bool(needed) and all(rank.ready for rank in needed)

    def are_joining(self) -> bool:
        """Whether all processes of the previous generation have exited."""
        return all(rank.role is Role.JOINING for rank in self)
