"""Which agents form a run on several hosts, and which of them leads. No sockets, no clock.

Agents tell each other their state in beats, so that a lost beat does no harm. A view is proposed by the leader of the
last one, or by its lowest member that is left, and counts when all of its members have accepted it. They must be a
quorum of the views before it, so of a network that is cut in two at most one side goes on. A view is accepted only by
members whose last accepted view its proposer knows: two proposals from the same view cannot both get a quorum.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from refold.model import Seconds

BEAT_SECONDS: Seconds = 0.3
"""Time between two beats."""

LOST_SECONDS: Seconds = 1.5
"""An agent that was silent for so long is lost."""

GATHER_SECONDS: Seconds = 300.0
"""How long an agent waits for the other hosts of a run that starts."""

REJOIN_SECONDS: Seconds = 60.0
"""How long an agent that has lost the others waits for them."""

NEW_LEADER_SECONDS: Seconds = 5.0
"""How long the ranks of this host go on without a leader: as a rule the next one takes them over."""

HELD_SECONDS: Seconds = 20.0
"""How long a new leader waits until all agents have told which copies they have."""


class Member(msgspec.Struct, frozen=True):
    """An agent in a view. `incarnation`: a random name of the process; `since`: the view in which it joined."""

    incarnation: str
    since: int


class GroupView(msgspec.Struct, frozen=True):
    """The members of a run by instance, in the order in which they joined. `reign`: the first view of its leader."""

    epoch: int
    leader: int
    reign: int
    members: dict[int, Member]

    def has(self, instance: int, incarnation: str) -> bool:
        """Whether an agent is a member."""
        member = self.members.get(instance)
        return member is not None and member.incarnation == incarnation


class Beat(msgspec.Struct, frozen=True, tag=True):
    """What an agent tells the others: the view it has accepted last, that view's predecessors, and whom it hears.

    `committed`: the epoch of the last view that counts, as far as it knows.
    """

    instance: int
    incarnation: str
    view: GroupView | None = None
    bases: list[GroupView] = []
    committed: int = 0
    hears: list[int] = []


class Membership:
    """The state of one agent. Call `tick` after everything that it was told, and at least once per beat."""

    def __init__(self, instance: int, incarnation: str, instances: int) -> None:
        self.instance = instance
        self.incarnation = incarnation
        self.view: GroupView | None = None
        self.committed = 0
        self._instances = instances
        self._bases: list[GroupView] = []
        self._beats: dict[int, Beat] = {}
        self._heard_at: dict[int, Seconds] = {}
        self._dead: set[tuple[int, str]] = set()
        self._now: Seconds = 0.0

    @property
    def leads(self) -> bool:
        """Whether this agent leads a view that counts."""
        return self.view is not None and self.view.leader == self.instance and self.committed == self.view.epoch

    @property
    def follows(self) -> bool:
        """Whether this agent leads, or hears its leader; one that leads, or proposes to, needs a quorum."""
        if self.view is None:
            return False
        if self.view.leader != self.instance:
            return self.view.leader in self._alive()
        return all(self._is_quorum(self._alive(), base) for base in (*self._bases, self.view))

    def beat(self) -> Beat:
        """Return what to tell the others."""
        hears = sorted(self._alive() - {self.instance})
        return Beat(self.instance, self.incarnation, self.view, self._bases, self.committed, hears)

    def missing(self) -> list[int]:
        """Return the instances that are not heard."""
        return sorted(set(range(self._instances)) - self._alive())

    def heard(self, beat: Beat, now: Seconds) -> None:
        """Note a beat of another agent."""
        self._now = max(self._now, now)
        if (beat.instance, beat.incarnation) in self._dead:
            return
        before, member = self._beats.get(beat.instance), self.view and self.view.members.get(beat.instance)
        names = {known.incarnation for known in (before, member) if known} - {beat.incarnation}
        self._dead |= {(beat.instance, name) for name in names}
        self._beats[beat.instance] = beat
        self._heard_at[beat.instance] = now

    def died(self, instance: int, incarnation: str) -> None:
        """Note that an agent no longer exists."""
        self._dead.add((instance, incarnation))
        if (beat := self._beats.get(instance)) and beat.incarnation == incarnation:
            del self._beats[instance], self._heard_at[instance]

    def tick(self, now: Seconds) -> None:
        """Accept, propose and commit views."""
        self._now = max(self._now, now)
        for beat in self._beats.values():
            self._consider(beat)
        if self._proposer() == self.instance:
            self._propose()
        self._commit()

    def _alive(self) -> set[int]:
        heard = {instance for instance, at in self._heard_at.items() if self._now - at < LOST_SECONDS}
        return heard | {self.instance}

    def _alive_beats(self) -> list[Beat]:
        return [self._beats[instance] for instance in sorted(self._alive() - {self.instance})]

    def _consider(self, beat: Beat) -> None:
        """Accept the view that another agent proposes, or learn that it counts."""
        view = beat.view
        if view is None or view.leader != beat.instance or not view.has(self.instance, self.incarnation):
            return
        if self.view is None or view.epoch > self.view.epoch:
            is_known = self.view is None or self.view in beat.bases
            if is_known or not any(base.has(self.instance, self.incarnation) for base in beat.bases):
                self.view, self._bases = view, beat.bases
        if self.view == view and beat.committed == view.epoch:
            self.committed = view.epoch
            self._bases = []

    def _proposer(self) -> int:
        if self.view is None:
            return 0
        alive = {self.instance: self.incarnation, **{beat.instance: beat.incarnation for beat in self._alive_beats()}}
        members = [number for number, name in alive.items() if self.view.has(number, name)]
        return self.view.leader if self.view.leader in members else min(members, default=-1)

    def _propose(self) -> None:
        if self.view is None:
            beats = self._alive_beats()
            if not self.missing() and all(beat.view is None and self.instance in beat.hears for beat in beats):
                incarnations = {beat.instance: beat.incarnation for beat in [self.beat(), *beats]}
                self.view = self._view(1, incarnations)
            return
        view, beats = self.view, self._alive_beats()
        if any(beat.committed > view.epoch for beat in beats):
            return  # the others have gone on, and will let this agent join
        is_counted = self.committed == view.epoch
        wanted = {self.instance: self.incarnation}
        for beat in beats:
            is_member = view.has(beat.instance, beat.incarnation)
            if self.instance in beat.hears and (is_member or is_counted):
                wanted[beat.instance] = beat.incarnation
        rivals = [beat.view for beat in beats if beat.view and self._rivals(beat.view, beat)]
        now = {number: member.incarnation for number, member in view.members.items()}
        if wanted == now and not rivals:
            return
        bases = [view] if is_counted else [*self._bases, view]
        bases += [rival for rival in rivals if rival not in bases]
        if all(self._is_quorum(wanted, base) for base in bases):
            epochs = [view.epoch, *(beat.view.epoch for beat in beats if beat.view)]
            self.view, self._bases = self._view(max(epochs) + 1, wanted), bases

    def _rivals(self, other: GroupView, beat: Beat) -> bool:
        """Whether a member has accepted a view that this agent has not, and that may count."""
        assert self.view is not None
        is_member = self.view.has(beat.instance, beat.incarnation)
        return is_member and other.epoch >= self.view.epoch and other != self.view

    def _view(self, epoch: int, wanted: dict[int, str]) -> GroupView:
        old = self.view.members if self.view else {}
        stay = {number: member for number, member in old.items() if wanted.get(number) == member.incarnation}
        join = {number: Member(name, epoch) for number, name in sorted(wanted.items()) if number not in stay}
        reign = self.view.reign if self.view and self.view.leader == self.instance else epoch
        return GroupView(epoch, self.instance, reign, {**stay, **join})

    def _commit(self) -> None:
        """Let the own proposal count if all of its members have accepted it."""
        view = self.view
        if view is None or view.leader != self.instance or self.committed == view.epoch:
            return
        accepted = {beat.instance for beat in self._alive_beats() if beat.view == view} | {self.instance}
        if accepted >= set(view.members) and all(self._is_quorum(accepted, base) for base in self._bases):
            self.committed, self._bases = view.epoch, []

    def _is_quorum(self, instances: Iterable[int], base: GroupView) -> bool:
        alive = {number for number, member in base.members.items() if (number, member.incarnation) not in self._dead}
        votes = alive & set(instances)
        half, lowest = len(base.members) / 2, min(base.members)
        return len(votes) > half or votes == alive or (len(votes) == half and lowest in votes)
