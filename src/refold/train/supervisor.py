"""What the agent of a run decides: messages and exits of ranks in, actions out. No processes, files or clock.

A run starts its ranks, waits until they are ready, lets them enter a generation together, and trains:

    STARTING → ENTERING → TRAINING → (JOINING →) ENTERING → TRAINING …

A change of plan starts the missing ranks first (JOINING), while the others train. If a rank fails, all are killed
(RESTARTING), and the run starts again under the plan that it has been asked for last. A run that is told to end, or
that fails again and again, waits for its ranks (ENDING).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, assert_never

import msgspec

from refold.errors import RefoldError
from refold.model import ChangeAnswer, ChangeRequest, Plan, Seconds
from refold.train.messages import Change, Entered, Finished, Left, Progress, Ready, Saved, Stop, ToAgent, ToRank

MAX_FAILURES = 3
"""How many times in a row a run is restarted without having come further than before."""

JOIN_SECONDS: Seconds = 300.0
"""Time limit for starting the ranks that join in a change."""

ENTER_SECONDS: Seconds = 300.0
"""Time limit for a change, once all ranks are there."""

LEAVE_SECONDS: Seconds = 10.0
"""Time limit for the exit of ranks that have left."""

STOPPED = 128 + signal.SIGTERM
"""Exit status of a run whose ranks had to be killed at the end of the grace period."""


class StartRank(msgspec.Struct, frozen=True):
    """Start a rank as process number `process`; `devices` replaces CUDA_VISIBLE_DEVICES if it is not None."""

    process: int
    rank: int
    ranks: int
    devices: str | None


class Send(msgspec.Struct, frozen=True):
    """Send a message to a process."""

    process: int
    message: ToRank


class Signal(msgspec.Struct, frozen=True):
    """Send a signal to a process."""

    process: int
    number: int


class Announce(msgspec.Struct, frozen=True):
    """Let the back end know that the run can be changed."""


class Answer(msgspec.Struct, frozen=True):
    """Answer a request of the back end."""

    answer: ChangeAnswer


class Report(msgspec.Struct, frozen=True):
    """Report the progress of the training: finished steps, and the loss and speed of the last ones if known."""

    steps: int
    loss: float | None = None
    samples_per_second: float | None = None


class Log(msgspec.Struct, frozen=True):
    """Print a line to the log of the run."""

    text: str


class Exit(msgspec.Struct, frozen=True):
    """End the agent; all ranks have ended."""

    status: int


Action = StartRank | Send | Signal | Announce | Answer | Report | Log | Exit


class Machine(Protocol):
    """What the supervisor needs to know of the machine."""

    def now(self) -> Seconds:
        """Return the time of a monotonic clock."""

    def shared_state(self, size: int) -> str:
        """Return the path of a file in shared memory, which may grow to this size."""

    def reserve(self, size: int) -> None:
        """Let the file have this size, or raise an error."""


class Gang(msgspec.Struct, frozen=True):
    """The ranks of this agent among those of all instances of the run."""

    first_rank: int = 0
    instances: int = 1


SINGLE = Gang()


class _Phase(Enum):
    STARTING = auto()
    ENTERING = auto()
    TRAINING = auto()
    JOINING = auto()
    RESTARTING = auto()
    ENDING = auto()


class _Role(Enum):
    MEMBER = auto()
    JOINING = auto()
    LEAVING = auto()
    DISMISSED = auto()
    """It has left or was killed: its exit is expected, whatever its status."""


@dataclass(slots=True)
class _Rank:
    """A process that runs the script. `device`: the GPU that it uses, if there are any."""

    process: int
    rank: int
    device: str | None
    role: _Role
    ready: bool = False


class _Shape(msgspec.Struct, frozen=True):
    """A plan, and the GPUs by rank (None: as the environment says)."""

    plan: Plan
    devices: tuple[str, ...] | None


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


class Supervisor:
    """Supervises the ranks of a run on one machine. Every method returns what is to be done, in order."""

    def __init__(self, plan: Plan, devices: str | None, machine: Machine, gang: Gang = SINGLE) -> None:
        self._shape = self._target = _Shape(plan, _split(devices))
        self._machine = machine
        self._gang = gang
        self._phase = _Phase.STARTING
        self._ranks: dict[int, _Rank] = {}  # by process
        self._last_process = 0
        self._generation = 0
        self._state_bytes = 0
        self._request: ChangeRequest | None = None
        self._next_request: ChangeRequest | None = None
        self._failed_joiners = 0
        self._replaces_all = False
        self._change_after_exits: Change | None = None
        self._answer_after_exits: Answer | None = None
        self._restarting_since: Seconds | None = None
        self._deadline: Seconds | None = None
        self._stop_at: Seconds | None = None
        self._limit = RestartLimit()
        self._has_trained = False
        self._status = 0
        self._actions: list[Action] = []

    def start(self) -> list[Action]:
        """Start the ranks of the run."""
        self._begin()
        return self._take()

    def received(self, process: int, message: ToAgent) -> list[Action]:
        """Handle a message of a process."""
        rank = self._ranks.get(process)
        if rank is None or rank.role is _Role.DISMISSED:
            return []
        match message:
            case Ready(_, size):
                self._on_ready(rank, size)
            case Entered():
                self._on_entered(message)
            case Progress(step, loss, speed):
                self._limit.reached(step)
                self._actions.append(Report(step, loss, speed))
            case Saved(step):
                self._limit.reached(step)
            case Left():
                self._on_left(rank, message)
            case Finished(step):
                self._actions.append(Report(step))
                self._refuse_changes("the training has finished")
            case _:
                assert_never(message)
        return self._take()

    def exited(self, process: int, status: int) -> list[Action]:
        """Handle the end of a process."""
        rank = self._ranks.pop(process, None)
        if rank is None:
            return []
        match rank.role:
            case _Role.DISMISSED:
                pass
            case _Role.JOINING:
                self._on_failed_joiner(rank, status)
            case _ if status:
                self._on_failure(rank, status)
            case _Role.MEMBER:
                self._refuse_changes("the training has finished")
        self._advance()
        return self._take()

    def request(self, request: ChangeRequest) -> list[Action]:
        """Change the plan; if a change is in progress, after it."""
        if self._phase is _Phase.ENDING or self._stop_at is not None:
            self._refuse(request, "the run is ending")
        elif self._gang.instances > 1:
            self._refuse(request, "a run with several instances cannot change live")
        else:
            if self._next_request is not None:
                self._refuse(self._next_request, f"superseded by run {request.run}")
            self._next_request = request
            if self._phase is _Phase.STARTING and self._deadline is None:
                self._deadline = self._machine.now() + JOIN_SECONDS
            self._advance()
        return self._take()

    def stop(self, grace: Seconds, stop_signal: int) -> list[Action]:
        """End the run: ranks that train save a checkpoint, others are signalled; kill them after `grace` seconds."""
        if self._phase is not _Phase.ENDING and self._stop_at is None:
            self._stop_at = self._deadline = self._machine.now() + grace
            if self._phase in (_Phase.TRAINING, _Phase.JOINING):
                self._stop_training()
            elif self._phase is not _Phase.ENTERING:
                self._stop_starting(stop_signal)
            self._advance()
        return self._take()

    def tick(self) -> list[Action]:
        """Enforce time limits."""
        if self._deadline is not None and self._machine.now() >= self._deadline:
            self._deadline = None
            if self._stop_at is not None:
                self._end(STOPPED)
            elif self._phase is _Phase.TRAINING:
                for rank in self._with_role(_Role.DISMISSED):
                    self._kill(rank)
            elif self._phase is _Phase.RESTARTING:
                self._kill_all()
            elif self._phase is _Phase.ENTERING:
                self._log(f"generation {self._generation} does not train after {ENTER_SECONDS:g} s")
                self._restart_or_end(1)
            else:
                self._refuse_changes(f"ranks were not ready within {JOIN_SECONDS:g} s: does the script call start()?")
            self._advance()
        return self._take()

    def _begin(self) -> None:
        self._phase = _Phase.STARTING
        self._start_ranks(range(self._target.plan.gpus // self._gang.instances), _Role.MEMBER)

    def _start_ranks(self, local_ranks: Iterable[int], role: _Role) -> None:
        plan, devices = self._target.plan, self._target.devices
        for local in local_ranks:
            self._last_process += 1
            rank = self._gang.first_rank + local
            device = devices[local] if devices and local < len(devices) else None
            self._ranks[self._last_process] = _Rank(self._last_process, rank, device, role)
            visible = ",".join(devices) if devices else None
            self._actions.append(StartRank(self._last_process, rank, plan.gpus, visible))

    def _on_ready(self, rank: _Rank, size: int) -> None:
        rank.ready = True
        self._state_bytes = max(self._state_bytes, size)
        if self._phase is _Phase.ENDING:
            self._kill(rank)  # it would wait for a generation that will not begin
        self._advance()

    def _on_entered(self, message: Entered) -> None:
        if self._phase is not _Phase.ENTERING or message.generation != self._generation:
            return
        self._phase = _Phase.TRAINING
        self._shape = self._target
        if not self._has_trained:
            self._has_trained = True
            self._actions.append(Announce())
        self._limit.reached(message.step)
        for rank in self._with_role(_Role.JOINING):
            rank.role = _Role.MEMBER
        for rank in self._with_role(_Role.LEAVING):
            rank.role = _Role.DISMISSED
        if self._request is not None:
            phases = self._restart_phase(message.phases) | message.phases
            changed = ChangeAnswer(self._request.run, message.plan, message.step, phases, message.why)
            self._answer_after_exits = Answer(changed)  # the GPUs of ranks that leave must be free then
            self._request = None
        self._restarting_since = None
        if self._stop_at is not None:
            self._stop_training()
        else:
            self._deadline = self._machine.now() + LEAVE_SECONDS
        self._advance()

    def _restart_phase(self, phases: dict[str, Seconds]) -> dict[str, Seconds]:
        """Return the time that a restart during a change has taken, besides the phases that its ranks report."""
        if self._restarting_since is None:
            return {}
        return {"restart": max(0.0, self._machine.now() - self._restarting_since - sum(phases.values()))}

    def _on_left(self, rank: _Rank, message: Left) -> None:
        rank.role = _Role.DISMISSED
        if message.restart and self._phase is _Phase.ENTERING:
            self._restart_after_exits()
        if self._phase in (_Phase.ENDING, _Phase.RESTARTING):
            self._actions.append(Report(message.step))

    def _restart_after_exits(self) -> None:
        """Let the ranks save a checkpoint and exit, then start again with the new plan, or end if told to stop."""
        for rank in self._with_role(_Role.JOINING):
            self._kill(rank)  # it waits for a generation that will not begin
        self._change_after_exits = None
        if self._stop_at is not None:
            self._refuse_changes("the run is stopping")
            self._phase = _Phase.ENDING
            return
        self._phase = _Phase.RESTARTING
        self._restarting_since = self._machine.now()
        self._deadline = self._restarting_since + ENTER_SECONDS

    def _on_failed_joiner(self, rank: _Rank, status: int) -> None:
        if self._phase is not _Phase.JOINING:
            self._on_failure(rank, status)
            return
        self._log(f"joining rank {rank.rank} {_describe(status)}")
        self._failed_joiners += 1
        if self._failed_joiners <= MAX_FAILURES:
            self._start_ranks([rank.rank], _Role.JOINING)
        else:
            self._refuse_changes(f"joining rank {rank.rank} {_describe(status)}")

    def _on_failure(self, rank: _Rank, status: int) -> None:
        if self._phase is not _Phase.ENDING:
            self._log(f"rank {rank.rank} {_describe(status)}")
        self._restart_or_end(_exit_code(status), is_error=status > 0)

    def _restart_or_end(self, status: int, *, is_error: bool = False) -> None:
        """Restart from the last checkpoint, unless that is useless. A script that fails by itself before it has ever
        trained will fail again."""
        is_useless = is_error and not self._has_trained
        if self._stop_at is not None or self._gang.instances > 1 or is_useless or not self._limit.may_restart():
            self._end(status)
            return
        self._log(f"restarting with {self._target.plan} from the last checkpoint")
        self._phase = _Phase.RESTARTING
        self._restarting_since = self._machine.now()
        self._deadline = self._change_after_exits = None
        self._kill_all()

    def _end(self, status: int) -> None:
        self._status = self._status or status
        self._refuse_changes("the run has ended")
        self._phase = _Phase.ENDING
        self._kill_all()

    def _stop_training(self) -> None:
        """Let the ranks save a checkpoint and exit."""
        assert self._stop_at is not None
        self._refuse_changes("the run is stopping")
        self._phase = _Phase.ENDING
        self._deadline = self._stop_at
        for rank in self._with_role(_Role.MEMBER):
            if rank.rank == 0:
                self._send(rank, Stop(max(0.0, self._stop_at - self._machine.now())))

    def _stop_starting(self, stop_signal: int) -> None:
        """End ranks that do not train, among them those of a script that does not use `refold.train`."""
        self._refuse_changes("the run is stopping")
        self._phase = _Phase.ENDING
        for rank in self._with_role(_Role.MEMBER):
            if rank.ready:
                self._kill(rank)
            else:
                self._actions.append(Signal(rank.process, stop_signal))

    def _advance(self) -> None:
        """Take the next step if the current phase is complete."""
        if self._answer_after_exits and not self._with_role(_Role.DISMISSED):
            self._actions.append(self._answer_after_exits)
            self._answer_after_exits = None
        match self._phase:
            case _Phase.RESTARTING if not self._ranks:
                self._begin()
            case _Phase.TRAINING if self._next_request and self._ranks and not self._answer_after_exits:
                self._begin_change(self._next_request)
            case _Phase.STARTING | _Phase.JOINING if self._are_ready():
                self._enter()
            case _Phase.ENTERING if self._change_after_exits and self._are_alone():
                for rank in self._with_role(_Role.JOINING):
                    self._send(rank, self._change_after_exits)
                self._change_after_exits = None
            case _:
                if not self._ranks and self._phase is not _Phase.RESTARTING:
                    self._actions.append(Exit(self._status))

    def _begin_change(self, request: ChangeRequest) -> None:
        """Start the ranks that are missing: all if one that would stay has a GPU that it must give up."""
        self._request, self._next_request = request, None
        count = request.plan.gpus
        devices = self._shape.devices if request.devices is None else _split(request.devices)
        members = sorted(self._with_role(_Role.MEMBER), key=lambda rank: rank.rank)
        kept = tuple(rank.device for rank in members[:count])
        self._replaces_all = request.way == "warm" or (devices is not None and not set(kept) <= set(devices))
        if devices is not None and not self._replaces_all:
            devices = (*filter(None, kept), *(device for device in devices if device not in kept))
        self._target = _Shape(request.plan, devices)
        self._phase = _Phase.JOINING
        self._failed_joiners = 0
        self._deadline = self._machine.now() + JOIN_SECONDS
        self._start_ranks(range(0 if self._replaces_all else len(kept), count), _Role.JOINING)
        self._advance()

    def _enter(self) -> None:
        """Let the ranks that are ready train together."""
        resume = self._phase is _Phase.JOINING
        state = self._machine.shared_state(self._state_bytes)
        if resume:
            try:
                self._machine.reserve(self._state_bytes)  # now, while the ranks are training
            except RefoldError as error:
                self._refuse_changes(str(error))
                return
        plan = self._target.plan
        self._generation += 1
        change = Change(plan, plan.gpus, self._generation, state, resume)
        self._phase = _Phase.ENTERING
        self._deadline = self._machine.now() + ENTER_SECONDS if resume else None
        if resume and self._replaces_all:
            self._change_after_exits = change  # the GPUs must be free first
            change = msgspec.structs.replace(change, ranks=0)
        for rank in self._with_role(_Role.MEMBER):
            rank.role = _Role.MEMBER if rank.rank < change.ranks else _Role.LEAVING
            self._send(rank, change)
        if change.ranks:
            for rank in self._with_role(_Role.JOINING):
                self._send(rank, change)

    def _are_ready(self) -> bool:
        present = self._with_role(_Role.MEMBER) + self._with_role(_Role.JOINING)
        return bool(present) and all(rank.ready for rank in present)

    def _are_alone(self) -> bool:
        """Whether all ranks of the previous generation have exited."""
        return all(rank.role is _Role.JOINING for rank in self._ranks.values())

    def _with_role(self, role: _Role) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if rank.role is role]

    def _send(self, rank: _Rank, message: ToRank) -> None:
        self._actions.append(Send(rank.process, message))

    def _kill(self, rank: _Rank) -> None:
        rank.role = _Role.DISMISSED
        self._actions.append(Signal(rank.process, signal.SIGKILL))

    def _kill_all(self) -> None:
        for rank in self._ranks.values():
            self._kill(rank)

    def _refuse_changes(self, why: str) -> None:
        """Give up the change in progress, if there is one, and the next one."""
        for request in (self._request, self._next_request):
            if request is not None:
                self._refuse(request, why)
        if self._request is not None and self._phase in (_Phase.JOINING, _Phase.ENTERING):
            self._phase = _Phase.TRAINING
            self._target = self._shape
        self._request = self._next_request = self._change_after_exits = None
        for rank in self._with_role(_Role.JOINING):
            self._kill(rank)

    def _refuse(self, request: ChangeRequest, why: str) -> None:
        self._actions.append(Answer(ChangeAnswer(request.run, error=why)))

    def _log(self, text: str) -> None:
        self._actions.append(Log(text))

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions


def _split(devices: str | None) -> tuple[str, ...] | None:
    return tuple(devices.split(",")) if devices else None


def _exit_code(status: int) -> int:
    """Return the exit code that stands for a status, as a shell does."""
    return status if status >= 0 else 128 - status


def _describe(status: int) -> str:
    return f"has exited with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
