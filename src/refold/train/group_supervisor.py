"""The supervisor of a run on several hosts: a failure is a change of its hosts. No processes, files or clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from signal import SIGKILL, SIGQUIT

import msgspec

from refold.model import ChangeAnswer, ChangeRequest, InstanceGpus, Plan, Seconds
from refold.train.copies import CopyToLoad
from refold.train.messages import (
    Action,
    Answer,
    Change,
    CopyOrders,
    Log,
    Ready,
    Saved,
    SignalRank,
    StartRank,
    ToSupervisor,
)
from refold.train.rank_places import places_for, renumbered
from refold.train.rank_table import ENTER_SECONDS, JOIN_SECONDS, Phase, RankProcess, RankTable, Role, refusal
from refold.train.run_settings import SINGLE, HostSlots, Place, Shape
from refold.train.supervisor import Supervisor

GROWTH = -1
"""The number of requests that the supervisor makes itself, because hosts have joined."""

STACKS_SECONDS: Seconds = 2.0
"""How long ranks that hang have to print their stacks."""

MISSING_SECONDS: Seconds = 10.0
"""After so long, a rank that its host does not have is taken as ended."""

REGROUP_SECONDS: Seconds = 60.0
"""Time limit for the ranks that are left after a failure, which may have to finish a step first."""

PROCESSES_PER_REIGN = 10**6
"""Processes are numbered from the reign of their leader on in the same way as generations."""

GENERATIONS_PER_REIGN = 1000
"""Generations are numbered from the reign of their leader times this number on, so that no number is used twice."""


class GroupMachine:
    """What the supervisor needs to know: a clock, and the copies of all hosts. Memory is the business of each host."""

    def __init__(self, now: Callable[[], Seconds], newest_copy: Callable[[], CopyToLoad | None]) -> None:
        self.now = now
        self.newest_copy = newest_copy

    def shared_state(self, size: int) -> str:
        """Return nothing: each agent tells its ranks which file they use."""
        del size
        return ""

    def reserve(self, size: int) -> None:
        """Reserve nothing: copies that do not fit are not written."""


class GroupSupervisor(Supervisor):
    """Supervises the ranks of a run on several hosts, for an agent that has begun to lead in the view `reign`.

    Ranks that are left after a failure, or stay in a change, keep their processes and their state. If all are replaced,
    the new ones load the newest complete copy.
    """

    def __init__(
        self,
        plan: Plan,
        hosts: Sequence[HostSlots],
        machine: GroupMachine,
        reign: int,
        batch: int,
        hang_seconds: Seconds | None = None,
        instances: tuple[InstanceGpus, ...] = (),
    ) -> None:
        """`hang_seconds`: how long ranks that train may be silent before they are replaced (None: for ever).

        `instances`: what each instance may use, if a change has said so.
        """
        super().__init__(plan, None, machine)
        self._ranks = RankTable(SINGLE, self._actions, (reign - 1) * PROCESSES_PER_REIGN)
        self._instances = self._settled_instances = instances
        self._last_request = 0
        self._hosts = tuple(hosts)
        self._copies = machine
        self._asked = self._settled = plan
        self._batch = batch
        self._saved = -1
        self._hang_seconds = hang_seconds
        self._heard_at = machine.now()
        self._stacks_until: Seconds | None = None
        self._generation = reign * GENERATIONS_PER_REIGN
        self._has_trained = reign > 1 and batch > 0
        self._regrouped = -1
        self._missing: dict[int, Seconds] = {}
        self._tried_to_grow: tuple[HostSlots, ...] = self._hosts

    def adopt(self, ranks: Sequence[StartRank]) -> list[Action]:
        """Go on with the ranks that the hosts still have, after the loss of the leader before; without any, start."""
        self._ranks.adopt(
            RankProcess(start.process, start.rank, None, Role.MEMBER, True, start.host, start.local_rank)
            for start in ranks
        )
        self._phase = Phase.TRAINING
        if not ranks:
            return self.start()
        if not self._regroup():
            super()._restart()
        return self._take()

    @property
    def batch(self) -> int:
        """The global batch size; 0 if it is not known yet."""
        return self._batch

    @property
    def instances(self) -> tuple[InstanceGpus, ...]:
        """What each instance may use; empty: all that it has."""
        return self._instances

    @property
    def asked(self) -> Plan:
        """The plan that was requested last."""
        return self._asked

    def meeting(self) -> tuple[str, int]:
        """Return address and port at which the ranks of the next generation meet."""
        first = next(host for host in self._hosts if host.instance == self._target.place_of(0).host)
        return first.address, first.meeting_port

    def first_process(self) -> int | None:
        """Return the process that trains as rank 0."""
        return next((rank.process for rank in self._ranks.having(Role.MEMBER) if rank.rank == 0), None)

    def received(self, process: int, message: ToSupervisor) -> list[Action]:
        """Handle a message of a process."""
        if isinstance(message, Ready) and message.batch:
            self._batch = message.batch
        self._heard_at = self._machine.now()
        if isinstance(message, Saved):
            self._saved = message.step
        actions = super().received(process, message)
        if self._phase is Phase.TRAINING and self._requests.current is None:
            self._settled, self._settled_instances = self._asked, self._instances
        return actions

    def request(self, request: ChangeRequest) -> list[Action]:
        """Change the plan; if a change is in progress, after it. All agents that see a request pass it on."""
        if request.run <= self._last_request:
            return []
        self._last_request = request.run
        slots = sum(host.slots for host in self._usable(request.instances or self._instances))
        if request.plan.gpus > slots:
            return [
                refusal(request, f"{request.plan} needs {request.plan.gpus} ranks, the hosts of the run have {slots}")
            ]
        return super().request(request)

    def hosts_changed(self, hosts: Sequence[HostSlots]) -> list[Action]:
        """Go on with the hosts that there are now: without those that are lost, and with those that have joined."""
        lost = {instance for instance, _ in _names_of(self._hosts) - _names_of(hosts)}
        self._hosts = tuple(hosts)
        ended = [self._ranks.remove(rank.process) for rank in self._ranks if rank.host in lost]
        roles = {rank.role for rank in ended if rank is not None}
        if lost:
            self._log(f"lost {_names(lost)}")
        if self._phase is Phase.ENDING:
            self._ranks.kill(self._ranks)  # they would wait for those that are lost
        elif roles & {Role.MEMBER, Role.LEAVING} or (roles and self._phase is not Phase.JOINING):
            self._restart()
        elif roles:
            self._refuse_changes(f"{_names(lost)} was lost")
        else:
            self._grow()
        self._advance()
        return self._take()

    def running(self, processes: Mapping[int, Sequence[int]]) -> list[Action]:
        """Take ranks that are not among those of their hosts for a while as ended: a message about them was lost."""
        now = self._machine.now()
        missing = {rank.process for rank in self._ranks if rank.process not in processes.get(rank.host, ())}
        self._missing = {process: self._missing.get(process, now) for process in missing}
        late = [process for process, since in self._missing.items() if now - since >= MISSING_SECONDS]
        return [action for process in late for action in self.exited(process, -SIGKILL)]

    def tick(self) -> list[Action]:
        """Enforce time limits."""
        if self._phase is Phase.STARTING and self._has_trained and self._is_late():
            self._log(f"ranks were not ready within {JOIN_SECONDS:g} s")
            self._restart_or_end(1)
            return self._take()
        if self._phase is Phase.TRAINING and self._hang_seconds is not None:
            self._watch(self._machine.now(), self._hang_seconds)
        return super().tick()

    def _watch(self, now: Seconds, limit: Seconds) -> None:
        """Replace ranks that hang; let them print their stacks before."""
        if now - self._heard_at < limit:
            self._stacks_until = None
        elif self._stacks_until is None:
            self._stacks_until = now + STACKS_SECONDS
            self._log(f"no step for {limit:g} s; the stacks of all ranks follow")
            self._actions += [SignalRank(rank.process, SIGQUIT) for rank in self._ranks]
        elif now >= self._stacks_until:
            self._stacks_until = None
            self._restart_or_end(1)

    def _is_late(self) -> bool:
        return self._deadline is not None and self._machine.now() >= self._deadline

    def _restart_or_end(self, status: int, *, is_error: bool = False) -> None:
        if self._phase is Phase.ENTERING and self._generation == self._regrouped and self._stop_at is None:
            super()._restart()  # it is the consequence of the failure before
        else:
            super()._restart_or_end(status, is_error=is_error)

    def _restart(self) -> None:
        """Go on with the ranks that are left, if some are lost; else replace all of them."""
        is_complete = len(self._ranks.having(Role.MEMBER)) == self._shape.plan.gpus
        if is_complete or self._phase not in (Phase.TRAINING, Phase.JOINING) or not self._regroup():
            super()._restart()

    def _regroup(self) -> bool:
        """Let the ranks that are left form a group, unless not even one replica of the model fits there.

        Others join it as soon as they are ready, if there are hosts for more.
        """
        self._refuse_changes("ranks were lost")
        members = {rank.process: rank for rank in self._ranks.having(Role.MEMBER)}
        asked, self._instances = self._settled, self._settled_instances
        if not members or len(members) < asked.gpus // asked.data:
            return False
        plan = plan_for(asked, len(members), self._batch)
        numbers = renumbered({process: rank.rank for process, rank in members.items()}, plan.gpus)
        stay = {numbers[rank.process]: Place(rank.host, rank.local_rank) for rank in members.values()}
        places = places_for(stay, self._usable(self._instances), plan.gpus)
        if places is None:
            return False
        self._asked, self._target = asked, Shape(plan, hosts=self._usable(self._instances), places=places)
        self._tried_to_grow = ()
        self._generation += 1
        self._regrouped = self._generation
        self._phase, self._deadline = Phase.ENTERING, self._machine.now() + REGROUP_SECONDS
        self._ranks.forget_times()
        self._log(f"going on with {plan} on the ranks that are left")
        change = self._with_copies(Change(plan, plan.gpus, self._generation, "", False))
        for process, rank in members.items():
            rank.rank = numbers[process]
            rank.role = Role.MEMBER if rank.rank < plan.gpus else Role.LEAVING
            self._ranks.send([rank], msgspec.structs.replace(change, keep=True, lost=True, rank=rank.rank))
        return True

    def _begin(self) -> None:
        if self._requests.current is None:
            self._asked, self._instances = self._settled, self._settled_instances
        self._deadline = self._machine.now() + JOIN_SECONDS
        super()._begin()

    def _enter(self) -> None:
        super()._enter()
        self._deadline = self._machine.now() + ENTER_SECONDS

    def _grow(self) -> None:
        """Ask for a change if there is room for more of what was requested."""
        is_changing = self._requests.current or self._requests.next
        fitting = plan_for(self._asked, self._slots(), self._batch)
        has_room = fitting.gpus > self._shape.plan.gpus and _names_of(self._hosts) != _names_of(self._tried_to_grow)
        if self._phase is Phase.TRAINING and not is_changing and has_room:
            self._tried_to_grow = self._hosts
            self._log(f"growing to {fitting}")
            self._requests.add(ChangeRequest(GROWTH, fitting))

    def _usable(self, instances: tuple[InstanceGpus, ...]) -> tuple[HostSlots, ...]:
        """Return the hosts with what they may use."""
        return tuple(
            msgspec.structs.replace(
                host, slots=instances[host.instance].slots, devices=instances[host.instance].devices
            )
            if instances
            else host
            for host in self._hosts
        )

    def _slots(self) -> int:
        return sum(host.slots for host in self._usable(self._instances))

    def _shape_to_start(self) -> Shape:
        return Shape(plan_for(self._asked, self._slots(), self._batch), hosts=self._usable(self._instances))

    def _shape_after(self, request: ChangeRequest, members: list[RankProcess]) -> tuple[Shape, bool]:
        if request.run != GROWTH:
            self._asked, self._instances = request.plan, request.instances or self._instances
        hosts, shape = self._usable(self._instances), self._shape.plan
        stay = {rank.rank: Place(rank.host, rank.local_rank) for rank in members}
        places = places_for(stay, hosts, request.plan.gpus)
        before = {host.instance: host.devices for host in self._shape.hosts}
        is_moved = any(host.devices != before.get(host.instance, host.devices) for host in hosts)
        takes_parts_along = request.plan.gpus < shape.gpus and shape.gpus // shape.data * max(shape.zero, 1) > 1
        if places is None or is_moved or takes_parts_along or request.way == "warm":
            return Shape(request.plan, hosts=hosts), False
        return Shape(request.plan, hosts=hosts, places=places), True

    def _abandon_change(self, why: str) -> None:
        if self._requests.current is not None:
            self._asked, self._instances = self._settled, self._settled_instances
        super()._abandon_change(why)

    def _with_copies(self, change: Change) -> Change:
        if change.resume and self._replaces_all and not self._ranks.are_joining():
            return change  # they write a copy first
        keep = change.resume and not self._replaces_all
        copy = self._newest_copy()
        address, port = self.meeting()
        orders = CopyOrders(0 if copy is None else 1 - copy.slot, copy)
        return msgspec.structs.replace(change, address=address, port=port, resume=False, copies=orders, keep=keep)

    def _restart_point(self) -> str:
        copy = self._newest_copy()
        return "the last checkpoint" if copy is None else f"the copy of step {copy.step}"

    def _newest_copy(self) -> CopyToLoad | None:
        """Return the newest complete copy, unless the last checkpoint is newer."""
        copy = self._copies.newest_copy()
        return None if copy is None or copy.step < self._saved else copy

    def _take(self) -> list[Action]:
        return [_without_number(action) for action in super()._take()]


def _without_number(action: Action) -> Action:
    """Return an action, but log the answer to a request that nobody has made."""
    match action:
        case Answer(ChangeAnswer(run=number, error=error, plan=plan)) if number == GROWTH:
            return Log(f"not grown: {error}" if error else f"grown to {plan}")
        case _:
            return action


def _names_of(hosts: Sequence[HostSlots]) -> set[tuple[int, int]]:
    return {(host.instance, host.since) for host in hosts}


def _names(instances: set[int]) -> str:
    return "instance " + ", ".join(map(str, sorted(instances)))


def plan_for(asked: Plan, gpus: int, batch: int = 0) -> Plan:
    """Return the plan that comes nearest to a requested one on at most so many GPUs: with fewer data-parallel ranks.

    The number of micro-batches grows as the number of ranks shrinks, so that they need no more memory. If not even one
    replica of the model fits, data parallelism with ZeRO-3. `batch`: the global batch, which is divided (0: unknown).
    """
    if asked.gpus <= gpus:
        return asked
    replica = asked.gpus // asked.data
    if replica > gpus:
        data = _divisor(batch, gpus)
        return Plan(data=data, zero=3 if data > 1 else 0)
    data = _divisor(batch, gpus // replica)
    micro_batches, rest = divmod(asked.accumulation * asked.data, data)
    if rest or (batch and batch % (data * micro_batches)):
        micro_batches = asked.accumulation
    replicate = asked.replicate if data % asked.replicate == 0 else 1
    zero = asked.zero if data > 1 else 0
    return msgspec.structs.replace(asked, data=data, accumulation=micro_batches, replicate=replicate, zero=zero)


def _divisor(batch: int, largest: int) -> int:
    return max(count for count in range(1, largest + 1) if batch % count == 0)
