"""The agent of one host of a run on several: one of them leads, with the supervisor; all carry out what it decides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import assert_never

import msgspec

from refold.model import NOT_REJOINED
from refold.train.agent import POLL_SECONDS, Agent, free_port, print_line
from refold.train.copy_ledger import CopyLedger
from refold.train.fork_server import ProcessExited, Program
from refold.train.group_link import GroupLink, Peer, interface_of, own_address
from refold.train.group_messages import (
    AgentBeat,
    BackUp,
    CopiesHeld,
    GroupMessage,
    Order,
    RankEnded,
    RankHeld,
    RankSaid,
    Requested,
    Shared,
    StopRequested,
    Wanted,
    decoded,
)
from refold.train.group_supervisor import GroupMachine, GroupSupervisor
from refold.train.host_copies import HostCopies
from refold.train.membership import (
    BEAT_SECONDS,
    GATHER_SECONDS,
    HELD_SECONDS,
    NEW_LEADER_SECONDS,
    REJOIN_SECONDS,
    GroupView,
    Membership,
)
from refold.train.messages import (
    Action,
    Change,
    Copied,
    Copying,
    CopySecured,
    Exit,
    Log,
    Send,
    SignalRank,
    StartRank,
    ToAgent,
)
from refold.train.own_ranks import OwnRanks, starts_of
from refold.train.rank_table import STOPPED
from refold.train.run_settings import HostSlots, RunSettings


class GroupAgent(Agent):
    """Starts the ranks of its host, as the leading agent says; may have to lead."""

    def __init__(self, program: Program, settings: RunSettings, environment: Mapping[str, str]) -> None:
        assert settings.secret is not None
        seed = (settings.address, settings.port or 0)
        self._address = settings.address if settings.instance == 0 else own_address(seed)
        interface = interface_of(self._address)
        names = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
        super().__init__(program, settings, {**names, **environment})
        incarnation = os.urandom(8).hex()
        secret = settings.secret.encode()
        self._state = Path(self._folder.shared_state(0))
        self._copies = HostCopies(secret, self._state)
        self._link = GroupLink(secret, settings.instance, incarnation, ("", seed[1]), self._copies.serve)
        self._link.add_seeds([seed])
        self._membership = Membership(settings.instance, incarnation, settings.gang.instances)
        self._hosts: dict[int, AgentBeat] = {}
        self._addresses: dict[int, str] = {settings.instance: self._address}
        self._view: GroupView | None = None
        self._group: GroupSupervisor | None = None
        self._ledger = CopyLedger()
        self._wanted = Wanted(0, settings.plan, 0)
        self._meeting_port = free_port("")
        self._beat_at = 0.0
        self._told: AgentBeat | None = None
        self._led_since = 0.0
        self._alone_since = self._began = monotonic()
        self._processes_of: dict[int, StartRank] = {}
        self._is_stopped = False
        self._rejoins = self._changes.was_announced()
        self._own = OwnRanks()
        self._held: dict[int, list[RankHeld]] = {}
        """Leader: the ranks that each host had when this one began to lead."""

    def run(self) -> int:
        """Run until the run has ended; return its exit status."""
        try:
            return super().run()
        finally:
            self._link.close()

    def _start(self) -> None:
        instances = self._settings.gang.instances
        print_line(f"instance {self._settings.instance} of {instances}, at {self._address}:{self._link.port}")

    def _step(self) -> None:
        events = list(self._processes.wait(POLL_SECONDS, self._link))
        messages = list(decoded(self._link.take_messages()))
        for peer, message in messages:  # all beats first: a long pause of this process is no silence of the others
            if isinstance(message, AgentBeat):
                self._on_beat(peer, message)
        for peer, message in messages:
            self._follow_view()
            if not isinstance(message, AgentBeat) and message.reign == self._reign:
                self._on_group_message(peer.instance, message)
        for peer in self._link.take_refused():
            self._membership.died(peer.instance, peer.incarnation)
        self._follow_view()
        if self._stop_requested:
            self._stop_requested = False
            self._on_stop()
        for event in events:
            self._on_event(event)
        if request := self._changes.poll():
            self._tell_leader(Requested(self._reign, request))
        if self._group is not None and self._view is not None:
            self._do(self._group.hosts_changed(self._host_slots(self._view)))
            self._do(self._group.running({number: beat.processes for number, beat in self._hosts.items()}))
            self._do(self._group.tick())
        for failed in self._copies.take_fetched():
            self._tell_copies(failed)
        self._beat()
        self._check_limits()

    @property
    def _reign(self) -> int:
        return self._view.reign if self._view else 0

    # The group.

    def _beat(self) -> None:
        """Tell the others what there is, at once if that has changed."""
        told = AgentBeat(
            self._membership.beat(),
            self._settings.slots,
            self._link.port,
            self._meeting_port,
            self._link.peers(),
            self._own.processes(),
        )
        if told != self._told or monotonic() >= self._beat_at:
            self._told, self._beat_at = told, monotonic() + BEAT_SECONDS
            self._hosts[self._settings.instance] = told
            for instance in self._link.peers():
                self._link.send(instance, told)

    def _follow_view(self) -> None:
        """Take the part that the view of the membership says."""
        membership = self._membership
        membership.tick(monotonic())
        view = membership.view
        if view is None or not membership.follows:
            if self._view is not None and monotonic() - self._alone_since > NEW_LEADER_SECONDS:
                print_line(f"lost the other hosts: waiting for {REJOIN_SECONDS:g} s")
                self._leave_reign(keeps_ranks=False)
                self._view = None
            return
        self._alone_since = monotonic()
        if membership.committed != view.epoch or view == self._view:
            return
        old, self._view = self._view, view
        me = self._settings.instance
        is_same_member = old is not None and old.members[me].since == view.members[me].since
        if old is None or not is_same_member or old.reign != view.reign:
            self._leave_reign(keeps_ranks=is_same_member)
            self._ledger = CopyLedger()
            self._led_since = monotonic()
        self._beat()
        if membership.leads:
            print_line(f"instances {', '.join(map(str, view.members))} are there, instance {me} leads")
            self._ledger.set_hosts(list(view.members))
        self._tell_copies()
        if self._is_stopped:
            self._on_stop()

    def _host_slots(self, view: GroupView) -> list[HostSlots]:
        return [
            HostSlots(number, member.since, host.slots, self._addresses[number], host.meeting_port, host.port)
            for number, member in view.members.items()
            if (host := self._hosts.get(number))
        ]

    def _leave_reign(self, *, keeps_ranks: bool) -> None:
        """Kill the ranks of this host, except those that train if the next leader may use them; wait for their ends."""
        self._group = None
        self._held = {}
        self._own.give_up(keeps_training=keeps_ranks)
        for process in self._own.given_up(self._processes.running()):
            self._processes.signal(process, SIGKILL)
        limit = monotonic() + 5.0
        while self._own.given_up(self._processes.running()) and monotonic() < limit:
            self._beat()
            for event in self._processes.wait(POLL_SECONDS):
                if isinstance(event, ProcessExited):
                    self._own.ended(event.process)
                else:
                    self._copies.note(event[1])
        self._copies.forget_unfinished()
        self._processes_of.clear()

    def _lead(self) -> None:
        """Begin to supervise when all agents have told which copies they have."""
        view = self._view
        if view is None or not self._membership.leads or self._group is not None or self._is_stopped:
            return
        if not self._ledger.knows(view.members) and monotonic() - self._led_since < HELD_SECONDS:
            return
        hosts = self._host_slots(view)
        slots = sum(host.slots for host in hosts)
        if view.reign == 1 and slots < self._wanted.plan.gpus:
            print_line(f"{self._wanted.plan} needs {self._wanted.plan.gpus} ranks, the hosts have {slots}")
        machine = GroupMachine(monotonic, lambda: self._ledger.to_load(self._host_slots(self._view or view)))
        wanted = self._wanted
        self._group = GroupSupervisor(
            wanted.plan, hosts, machine, view.reign, wanted.batch, self._settings.hang_seconds, wanted.instances
        )
        starts = starts_of({host: ranks for host, ranks in self._held.items() if host in view.members})
        self._processes_of.update({start.process: start for start in starts})
        self._do(self._group.adopt(starts))

    def _check_limits(self) -> None:
        now = monotonic()
        self._lead()
        if self._view is None:
            first = self._membership.view is None
            limit = GATHER_SECONDS if first and not self._rejoins else REJOIN_SECONDS
            since = self._began if first else self._alone_since
            if now - since > limit or self._is_stopped:
                missing = ", ".join(map(str, self._membership.missing()))
                if not self._is_stopped:
                    print_line(f"instances {missing} have not connected within {limit:g} s")
                self._status = STOPPED if self._is_stopped else NOT_REJOINED if self._rejoins else 1

    def _on_stop(self) -> None:
        self._is_stopped = True
        self._tell_leader(StopRequested(self._reign, self._settings.grace))

    # Messages.

    def _tell_leader(self, message: GroupMessage) -> None:
        if self._view is not None:
            self._tell(self._view.leader, message)

    def _tell(self, instance: int, message: GroupMessage) -> None:
        if instance == self._settings.instance:
            self._on_group_message(instance, message)
        else:
            self._link.send(instance, message)

    def _on_beat(self, peer: Peer, message: AgentBeat) -> None:
        self._membership.heard(message.beat, monotonic())
        self._hosts[peer.instance] = message
        self._addresses[peer.instance] = peer.address
        self._link.know(message.peers)

    def _on_group_message(self, sender: int, message: GroupMessage) -> None:
        match message:
            case Order(_, action, address, port):
                self._carry_out(action, address, port)
            case Shared(_, action):
                super()._do([action])
            case Wanted():
                self._wanted = message
            case BackUp(_, copy):
                self._copies.fetch_in_background(copy)
            case CopiesHeld(_, copies, failed, ranks):
                self._note_ranks(sender, ranks)
                self._ledger.note(sender, copies, failed)
                self._back_up()
            case RankSaid(_, process, rank_message):
                if self._group is not None:
                    self._do(self._group.received(process, rank_message))
                    self._share_wanted()
            case RankEnded(_, process, status):
                if self._group is not None:
                    self._do(self._group.exited(process, status))
            case Requested(_, request):
                if self._group is not None:
                    self._do(self._group.request(request))
                    self._share_wanted()
            case StopRequested(_, grace):
                self._do(
                    [Exit(STOPPED)] if self._group is None else self._group.stop(grace, self._settings.stop_signal)
                )
            case AgentBeat():
                pass
            case _:
                assert_never(message)

    def _tell_copies(self, failed: int | None = None) -> None:
        """Tell the leader which copies this host has; `failed`: the step of one of which parts were not fetched."""
        self._tell_leader(CopiesHeld(self._reign, self._copies.held(), failed, self._own.training()))

    def _note_ranks(self, sender: int, ranks: list[RankHeld]) -> None:
        """Note which ranks a host has; those of which it tells too late are killed."""
        self._held[sender] = ranks
        for rank in ranks:
            if self._group is not None and rank.process not in self._processes_of:
                self._tell(sender, Order(self._reign, SignalRank(rank.process, SIGKILL)))

    def _share_wanted(self) -> None:
        """Tell the others what the next leader must know."""
        if self._group is None or self._view is None:
            return
        wanted = Wanted(self._reign, self._group.asked, self._group.batch, self._group.instances)
        if wanted != self._wanted:
            for instance in self._view.members:
                self._tell(instance, wanted)

    # Ranks of this host.

    def _on_event(self, event: ProcessExited | tuple[int, ToAgent]) -> None:
        match event:
            case ProcessExited(process, status):
                self._processes_of.pop(process, None)
                if self._own.ended(process):  # else it was killed with the reign before
                    self._tell_leader(RankEnded(self._reign, process, status))
                    self._tell_copies()  # a leader that has not begun yet must know which ranks are left
            case _, (Copying() | Copied()) as copied:
                if self._copies.note(copied):
                    self._tell_copies()
            case process, message:
                if process in self._own:
                    self._tell_leader(RankSaid(self._reign, process, message))

    def _do(self, actions: list[Action]) -> None:
        """Let the hosts do what the supervisor has decided."""
        for action in actions:
            match action:
                case StartRank():
                    self._processes_of[action.process] = action
                    address, port = self._group.meeting() if self._group else ("", 0)
                    self._tell(action.host, Order(self._reign, action, address, port))
                case Send(process, message):
                    if start := self._processes_of.get(process):
                        self._tell(start.host, Order(self._reign, Send(process, message)))
                case SignalRank(process):
                    if start := self._processes_of.get(process):
                        self._tell(start.host, Order(self._reign, action))
                case Log(text):
                    print_line(text)
                case _:
                    for instance in self._view.members if self._view else ():
                        self._tell(instance, Shared(self._reign, action))

    def _carry_out(self, action: StartRank | Send | SignalRank, address: str, port: int) -> None:
        match action:
            case StartRank():
                environment = {
                    **self._rank_environment(action),
                    "LOCAL_RANK": str(action.local_rank),
                    "LOCAL_WORLD_SIZE": str(action.local_ranks),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                }
                self._own.started(action)
                self._processes.start(action.process, environment)
            case Send(process, Change() as change):
                self._own.told(process, change)
                self._processes.send(process, self._for_this_host(change))
            case Send(process, message):
                self._processes.send(process, message)
            case SignalRank(process, number):
                self._processes.signal(process, number)

    def _for_this_host(self, change: Change) -> Change:
        """Return a change with the files of this host."""
        if change.copies is None:
            return msgspec.structs.replace(change, state=str(self._state))
        self._meeting_port = free_port("")
        self._copies.begin_generation(change.copies.load.slot if change.copies.load else None)
        copies = msgspec.structs.replace(change.copies, host=self._settings.instance)
        return msgspec.structs.replace(change, state=str(self._state), copies=copies)

    # Copies.

    def _back_up(self) -> None:
        """Let parts be fetched that only one host has; if there are none, the next copy may be written."""
        if self._group is None or self._view is None or not self._membership.leads:
            return
        step, orders = self._ledger.next_orders(self._host_slots(self._view))
        for instance, copy in orders.items():
            self._tell(instance, BackUp(self._reign, copy))
        if step is not None and (process := self._group.first_process()) is not None:
            self._do([Send(process, CopySecured(step))])
