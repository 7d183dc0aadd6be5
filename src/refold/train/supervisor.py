"""What the agent of a run decides: messages and exits of ranks in, actions out. No processes, files or clock.

A run starts its ranks, waits until they are ready, lets them enter a generation together, and trains:

    STARTING → ENTERING → TRAINING → (JOINING →) ENTERING → TRAINING …

A change of plan starts the missing ranks first (JOINING), while the others train. If a rank fails, all are killed
(RESTARTING), and the run starts again under the plan that it has been asked for last. A run that is told to end, or
that fails again and again, waits for its ranks (ENDING).
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from refold.errors import RefoldError
from refold.model import ChangeRequest, ChangeWay, Plan, Seconds
from refold.train.messages import (
    Action,
    Announce,
    Answer,
    Change,
    Entered,
    Exit,
    Finished,
    Left,
    Log,
    NotEntered,
    Progress,
    Ready,
    Report,
    Saved,
    SignalRank,
    StopTraining,
    ToSupervisor,
)
from refold.train.owned_files import SupervisedMachine
from refold.train.rank_table import (
    ENTER_SECONDS,
    JOIN_SECONDS,
    LEAVE_SECONDS,
    MAX_FAILURES,
    STOPPED,
    ChangeRequests,
    Pause,
    Phase,
    RankProcess,
    RankTable,
    RestartLimit,
    Role,
    describe_exit,
    exit_code,
    refusal,
)
from refold.train.run_settings import SINGLE, AgentRanks, Shape, make_shape, shape_after
from refold.train.slow_ranks import RankTimes


class Supervisor:
    """Supervises the ranks of a run on one machine. Every method returns what is to be done, in order."""

    def __init__(self, plan: Plan, devices: str | None, machine: SupervisedMachine, gang: AgentRanks = SINGLE) -> None:
        self._shape = self._target = make_shape(plan, devices)
        self._machine = machine
        self._gang = gang
        self._phase = Phase.STARTING
        self._actions: list[Action] = []
        self._ranks = RankTable(gang, self._actions)
        self._generation = 0
        self._state_bytes = 0
        self._requests = ChangeRequests()
        self._failed_joiners = 0
        self._replaces_all = False
        self._change_after_exits: Change | None = None
        self._answer_after_exits: Answer | None = None
        self._replaced_by: Plan | None = None
        """The plan in use, if it is not the requested one."""
        self._pause: Pause | None = None
        self._deadline: Seconds | None = None
        self._stop_at: Seconds | None = None
        self._limit = RestartLimit()
        self._has_trained = False
        self._status = 0

    def start(self) -> list[Action]:
        """Start the ranks of the run."""
        self._begin()
        return self._take()

    def received(self, process: int, message: ToSupervisor) -> list[Action]:
        """Handle a message of a process."""
        rank = self._ranks.get(process)
        if rank is None or rank.role is Role.DISMISSED:
            return []
        match message:
            case Ready():
                self._on_ready(rank, message)
            case Entered():
                self._on_entered(message)
            case NotEntered():
                self._on_not_entered(message)
            case Progress(step, loss, speed):
                self._limit.reached(step)
                self._actions.append(Report(step, loss, speed, self._replaced_by, self._ranks.slow))
            case RankTimes():
                self._ranks.note_times(message, self._shape.plan.gpus)
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
        rank = self._ranks.remove(process)
        if rank is None:
            return []
        match rank.role:
            case Role.DISMISSED:
                pass
            case Role.JOINING:
                self._on_failed_joiner(rank, status)
            case _ if status:
                self._on_failure(rank, status)
            case Role.MEMBER:
                self._refuse_changes("the training has finished")
        self._advance()
        return self._take()

    def request(self, request: ChangeRequest) -> list[Action]:
        """Change the plan; if a change is in progress, after it."""
        if self._phase is Phase.ENDING or self._stop_at is not None:
            self._actions.append(refusal(request, "the run is ending"))
        elif self._gang.instances > 1:
            self._actions.append(refusal(request, "a run with several instances cannot change live"))
        else:
            self._actions.extend(self._requests.add(request))
            if self._phase is Phase.STARTING and self._deadline is None:
                self._deadline = self._machine.now() + JOIN_SECONDS
            self._advance()
        return self._take()

    def stop(self, grace: Seconds, stop_signal: int) -> list[Action]:
        """End the run: ranks that train save a checkpoint, others are signalled; kill them after `grace` seconds."""
        if self._phase is not Phase.ENDING and self._stop_at is None:
            self._stop_at = self._deadline = self._machine.now() + grace
            if self._phase in (Phase.TRAINING, Phase.JOINING):
                self._stop_training()
            elif self._phase is not Phase.ENTERING:
                self._stop_starting(stop_signal)
            self._advance()
        return self._take()

    def tick(self) -> list[Action]:
        """Enforce time limits."""
        if self._deadline is not None and self._machine.now() >= self._deadline:
            self._deadline = None
            if self._stop_at is not None:
                self._end(STOPPED)
            elif self._phase is Phase.TRAINING:
                self._ranks.kill(self._ranks.having(Role.DISMISSED))
            elif self._phase is Phase.RESTARTING:
                self._ranks.kill(self._ranks)
            elif self._phase is Phase.ENTERING:
                self._log(f"generation {self._generation} does not train in time")
                self._restart_or_end(1)
            else:
                self._refuse_changes(f"ranks were not ready within {JOIN_SECONDS:g} s: does the script call start()?")
            self._advance()
        return self._take()

    def _begin(self) -> None:
        self._phase = Phase.STARTING
        self._target = self._shape_to_start()
        self._ranks.start(range(self._target.plan.gpus // self._gang.instances), self._target, Role.MEMBER)

    def _on_ready(self, rank: RankProcess, message: Ready) -> None:
        rank.ready, rank.restarts = True, message.restarts
        self._state_bytes = max(self._state_bytes, message.state_bytes)
        if self._phase is Phase.ENDING:
            self._ranks.kill([rank])  # it would wait for a generation that will not begin
        self._advance()

    def _on_entered(self, message: Entered) -> None:
        if self._phase is not Phase.ENTERING or message.generation != self._generation:
            return
        self._phase = Phase.TRAINING
        self._shape = self._target
        self._replaced_by = message.plan if message.why else None
        if not self._has_trained:
            self._has_trained = True
            self._actions.append(Announce())
        self._limit.reached(message.step)
        self._ranks.give(Role.MEMBER, to=Role.JOINING)
        self._ranks.give(Role.DISMISSED, to=Role.LEAVING)
        earlier, way = self._earlier_phases(message.phases)
        if answer := self._requests.complete(message, earlier, way):
            self._answer_after_exits = answer  # the GPUs of ranks that leave must be free then
        self._pause = None
        if self._stop_at is not None:
            self._stop_training()
        else:
            self._deadline = self._machine.now() + LEAVE_SECONDS
        self._advance()

    def _on_not_entered(self, message: NotEntered) -> None:
        if self._phase is not Phase.ENTERING or message.generation != self._generation:
            return
        self._abandon_change(message.error)
        if self._stop_at is not None:
            self._stop_training()
        self._advance()

    def _earlier_phases(self, phases: dict[str, Seconds]) -> tuple[dict[str, Seconds], ChangeWay]:
        """Return what a change has taken besides the phases that new ranks report, and its way."""
        if self._pause is None:
            return {}, "live"
        since, way, earlier = self._pause
        rest = max(0.0, self._machine.now() - since - sum(phases.values()))
        return {**earlier, "exit" if way == "warm" else "restart": rest}, way

    def _on_left(self, rank: RankProcess, message: Left) -> None:
        rank.role = Role.DISMISSED
        if self._change_after_exits and rank.rank == 0:
            self._pause = Pause(self._machine.now(), "warm", message.phases)
        if message.restart and self._phase is Phase.ENTERING:
            self._restart_after_exits()
        if self._phase in (Phase.ENDING, Phase.RESTARTING):
            self._actions.append(Report(message.step))

    def _restart_after_exits(self) -> None:
        """Let the ranks save a checkpoint and exit, then start again with the new plan, or end if told to stop."""
        self._ranks.kill(self._ranks.having(Role.JOINING))  # they wait for a generation that will not begin
        self._change_after_exits = None
        if self._stop_at is not None:
            self._refuse_changes("the run is stopping")
            self._phase = Phase.ENDING
            return
        self._phase = Phase.RESTARTING
        self._pause = Pause(self._machine.now(), "cold", {})
        self._deadline = self._machine.now() + ENTER_SECONDS

    def _on_failed_joiner(self, rank: RankProcess, status: int) -> None:
        if self._phase is not Phase.JOINING:
            self._on_failure(rank, status)
            return
        self._log(f"joining rank {rank.rank} {describe_exit(status)}")
        self._failed_joiners += 1
        if self._failed_joiners <= MAX_FAILURES:
            self._ranks.start([rank.rank], self._target, Role.JOINING)
        else:
            self._refuse_changes(f"joining rank {rank.rank} {describe_exit(status)}")

    def _on_failure(self, rank: RankProcess, status: int) -> None:
        if self._phase is not Phase.ENDING:
            self._log(f"rank {rank.rank} {describe_exit(status)}")
        self._restart_or_end(exit_code(status), is_error=status > 0)

    def _restart_or_end(self, status: int, *, is_error: bool = False) -> None:
        """Restart from the last checkpoint, unless that is useless. A script that fails by itself before it has ever
        trained will fail again."""
        is_useless = is_error and not self._has_trained
        if self._stop_at is not None or self._gang.instances > 1 or is_useless or not self._limit.may_restart():
            self._end(status)
        else:
            self._restart()

    def _restart(self) -> None:
        """Kill all ranks; when they have exited, start new ones."""
        self._log(f"restarting with {self._shape_to_start().plan} from {self._restart_point()}")
        self._phase = Phase.RESTARTING
        self._pause = Pause(self._machine.now(), "cold", {})
        self._deadline = self._change_after_exits = None
        self._ranks.kill(self._ranks)

    def _end(self, status: int) -> None:
        self._status = self._status or status
        self._refuse_changes("the run has ended")
        self._phase = Phase.ENDING
        self._ranks.kill(self._ranks)

    def _stop_training(self) -> None:
        """Let the ranks save a checkpoint and exit."""
        assert self._stop_at is not None
        self._refuse_changes("the run is stopping")
        self._phase = Phase.ENDING
        self._deadline = self._stop_at
        first = [rank for rank in self._ranks.having(Role.MEMBER) if rank.rank == 0]
        self._ranks.send(first, StopTraining(max(0.0, self._stop_at - self._machine.now())))

    def _stop_starting(self, stop_signal: int) -> None:
        """End ranks that do not train, among them those of a script that does not use `refold.train`."""
        self._refuse_changes("the run is stopping")
        self._phase = Phase.ENDING
        for rank in self._ranks.having(Role.MEMBER):
            if rank.ready:
                self._ranks.kill([rank])
            else:
                self._actions.append(SignalRank(rank.process, stop_signal))

    def _advance(self) -> None:
        """Take the next step if the current phase is complete."""
        if self._answer_after_exits and not self._ranks.having(Role.DISMISSED):
            self._actions.append(self._answer_after_exits)
            self._answer_after_exits = None
        match self._phase:
            case Phase.RESTARTING if not self._ranks:
                self._begin()
            case Phase.TRAINING if self._requests.next and self._ranks and not self._answer_after_exits:
                self._begin_change(self._requests.begin())
            case Phase.STARTING | Phase.JOINING if self._ranks.are_ready():
                self._enter()
            case Phase.ENTERING if self._change_after_exits and self._ranks.are_joining():
                self._ranks.send(self._ranks, self._with_copies(self._change_after_exits))
                self._change_after_exits = None
            case _:
                if not self._ranks and self._phase is not Phase.RESTARTING:
                    self._actions.append(Exit(self._status))

    def _begin_change(self, request: ChangeRequest) -> None:
        """Start the ranks that are missing: all if one that would stay must give up its GPU; none if all restart."""
        count = request.plan.gpus
        members = sorted(self._ranks.having(Role.MEMBER), key=lambda rank: rank.rank)[:count]
        self._target, can_stay = self._shape_after(request, members)
        self._replaces_all = not can_stay
        self._phase, self._failed_joiners = Phase.JOINING, 0
        self._deadline = self._machine.now() + JOIN_SECONDS
        if not any(rank.restarts for rank in members):
            self._ranks.start(range(len(members) if can_stay else 0, count), self._target, Role.JOINING)
        self._advance()

    def _enter(self) -> None:
        """Let the ranks that are ready train together."""
        resume = self._phase is Phase.JOINING
        state = self._machine.shared_state(self._state_bytes)
        if resume:
            try:
                self._machine.reserve(self._state_bytes)  # now, while the ranks are training
            except RefoldError as error:
                self._refuse_changes(str(error))
                return
        plan = self._target.plan
        self._generation += 1
        change = self._with_copies(Change(plan, plan.gpus, self._generation, state, resume))
        self._phase = Phase.ENTERING
        self._deadline = self._machine.now() + ENTER_SECONDS if resume else None
        if resume and self._replaces_all:
            self._change_after_exits = change  # the GPUs must be free first
            change = msgspec.structs.replace(change, ranks=0)
        members = self._ranks.having(Role.MEMBER)
        self._ranks.send(members if self._change_after_exits else [*members, *self._ranks.having(Role.JOINING)], change)
        for rank in members:
            rank.role = Role.MEMBER if rank.rank < change.ranks else Role.LEAVING

    def _shape_to_start(self) -> Shape:
        """Return the shape with which all ranks are started."""
        return self._target

    def _shape_after(self, request: ChangeRequest, members: list[RankProcess]) -> tuple[Shape, bool]:
        """Return the shape that a request asks for, and whether the members can stay."""
        return shape_after(self._shape, request, [rank.device for rank in members])

    def _with_copies(self, change: Change) -> Change:
        """Return a change with what ranks need to find each other and their state."""
        return change

    def _restart_point(self) -> str:
        return "the last checkpoint"

    def _refuse_changes(self, why: str) -> None:
        """Give up the change in progress, and the next one."""
        self._abandon_change(why)
        self._actions.extend(self._requests.refuse_next(why))

    def _abandon_change(self, why: str) -> None:
        """Give up the change in progress, if there is one: the ranks that train continue as before."""
        if self._requests.current is None:
            return
        self._actions.extend(self._requests.refuse_current(why))
        self._change_after_exits = self._pause = None
        self._ranks.kill(self._ranks.having(Role.JOINING))
        self._ranks.give(Role.MEMBER, to=Role.LEAVING)
        if self._phase in (Phase.JOINING, Phase.ENTERING):
            self._phase = Phase.TRAINING
            self._target = self._shape

    def _log(self, text: str) -> None:
        self._actions.append(Log(text))

    def _take(self) -> list[Action]:
        actions, self._actions[:] = self._actions[:], []
        return actions
