"""What the supervisor of a run keeps: its ranks, the requests to change its plan, and how often it has failed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from refold.model import ChangeAnswer, ChangeRequest, ChangeWay, Seconds, SlowPlace
from refold.train.messages import Action, Answer, Entered, Log, Send, SignalRank, StartRank, ToRank
from refold.train.run_settings import AgentRanks, Shape
from refold.train.slow_ranks import RankTimes, SlowRanks


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
    """A process that runs the script. `device`: the GPU that it uses, if there are any. `restarts`: see `Ready`."""

    process: int
    rank: int
    device: str | None
    role: Role
    ready: bool = False
    host: int = 0
    local_rank: int = 0
    restarts: bool = False


class RankTable:
    """The processes of a run, numbered in the order in which they were started. It appends to `actions`."""

    def __init__(self, gang: AgentRanks, actions: list[Action], last_process: int = 0) -> None:
        self._actions = actions
        self._gang = gang
        self._ranks: dict[int, RankProcess] = {}
        self._last_process = last_process
        self._times = SlowRanks()
        self.slow: SlowPlace | None = None
        """The rank that holds up the others, if there is one."""

    def start(self, local_ranks: Iterable[int], shape: Shape, role: Role) -> None:
        """Start processes."""
        self.forget_times()
        for local in local_ranks:
            self._last_process += 1
            process, rank = self._last_process, self._gang.first_rank + local
            place = shape.place_of(local)
            on_host = place.local_rank if shape.hosts else local
            self._ranks[process] = RankProcess(process, rank, shape.device_of(local), role, False, place.host, on_host)
            self._actions.append(StartRank(process, rank, shape.plan.gpus, shape.visible_devices(local), *place))

    def adopt(self, ranks: Iterable[RankProcess]) -> None:
        """Keep processes that run already."""
        self._ranks.update({rank.process: rank for rank in ranks})

    def forget_times(self) -> None:
        """Begin to measure anew, as the ranks get other numbers."""
        self._times, self.slow = SlowRanks(), None

    def note_times(self, times: RankTimes, ranks: int) -> None:
        """Note what a rank has measured; find the rank that has been slower than the others for a while."""
        if not self._times.is_complete_with(times, ranks):
            return
        before, found = self.slow, self._times.slowest()
        rank = next((rank for rank in self if found and rank.rank == found.rank), None)
        self.slow = SlowPlace(rank.host, rank.local_rank, str(found)) if rank else None
        if self.slow is not None and before is None:
            place = f"(instance {self.slow.instance}, local rank {self.slow.local_rank})"
            self._actions.append(Log(f"{self.slow.what} {place}"))

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


class Phase(Enum):
    """What a run is doing. See the supervisor."""

    STARTING = auto()
    ENTERING = auto()
    TRAINING = auto()
    JOINING = auto()
    RESTARTING = auto()
    ENDING = auto()


class Pause(NamedTuple):
    """A change in which processes are replaced: since when there are none that train, and phases before that."""

    since: Seconds
    way: ChangeWay
    phases: dict[str, Seconds]


# Time limits.

JOIN_SECONDS: Seconds = 300.0
"""Time limit for starting the ranks that join in a change."""

ENTER_SECONDS: Seconds = 300.0
"""Time limit for a change, once all ranks are there."""

LEAVE_SECONDS: Seconds = 10.0
"""Time limit for the exit of ranks that have left."""


# Failures of ranks: how they are described, and how often a run is restarted after them.

STOPPED = 128 + signal.SIGTERM
"""Exit status of a run whose ranks had to be killed at the end of the grace period."""

MAX_FAILURES = 3
"""How many times in a row a run is restarted without having come further than before."""


class RestartLimit:
    """Allows `MAX_FAILURES` restarts in a row in which the training gets no further than before."""

    def __init__(self) -> None:
        self._furthest = -1
        self._furthest_at_failure = -1
        self._failures = 0

    def reached(self, step: int) -> None:
        """Record progress."""
        self._furthest = max(self._furthest, step)

    def may_restart(self) -> bool:
        """Record a failure, and return whether the run may be restarted."""
        if self._furthest > self._furthest_at_failure:
            self._furthest_at_failure = self._furthest
            self._failures = 0
        self._failures += 1
        return self._failures <= MAX_FAILURES


def exit_code(status: int) -> int:
    """Return the exit code that stands for a status, as a shell does."""
    return status if status >= 0 else 128 - status


def describe_exit(status: int) -> str:
    """Return what a process has done that ended with a status."""
    return f"has exited with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"


# The requests to change the plan of a run: the one that is carried out, and the next one.


class ChangeRequests:
    """Keeps the requests until they are answered. The newest one that is not carried out yet supersedes the others."""

    def __init__(self) -> None:
        self.current: ChangeRequest | None = None
        self.next: ChangeRequest | None = None

    def add(self, request: ChangeRequest) -> list[Answer]:
        """Add a request; return the answer to the one that it supersedes."""
        superseded, self.next = self.next, request
        return [refusal(superseded, f"superseded by run {request.run}")] if superseded else []

    def begin(self) -> ChangeRequest:
        """Return the next request, which is now carried out."""
        assert self.next is not None
        assert self.current is None
        request = self.next
        self.current, self.next = request, None
        return request

    def complete(self, entered: Entered, earlier: dict[str, Seconds], way: ChangeWay) -> Answer | None:
        """Return the answer to the current request, if there is one; `earlier`: phases before those of new ranks."""
        if self.current is None:
            return None
        run, self.current = self.current.run, None
        return Answer(ChangeAnswer(run, entered.plan, entered.step, earlier | entered.phases, entered.why, way=way))

    def refuse_current(self, why: str) -> list[Answer]:
        """Give up the current request."""
        refused, self.current = self.current, None
        return [refusal(refused, why)] if refused else []

    def refuse_next(self, why: str) -> list[Answer]:
        """Give up the next request."""
        refused, self.next = self.next, None
        return [refusal(refused, why)] if refused else []


def refusal(request: ChangeRequest, why: str) -> Answer:
    """Return the answer to a request that is not carried out."""
    return Answer(ChangeAnswer(request.run, error=why))
