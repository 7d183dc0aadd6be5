"""After a restart: where things stood, and how to go on from there.

The journal is replayed with the policy, which then remembers everything that it did. Where that would take too long,
or the policy, its settings or the cluster are others now, things are taken as they were written, and a new chapter of
the journal begins with them: the policy knows who waits and who runs, and begins to think anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from refold.core import Entry, Event, Header, NodeLost, Policy, Remembered, RunAdopted, Scheduler
from refold.errors import BadDecision
from refold.model import Cluster, Seconds
from refold.server.drained_gpus import drained_again, is_stand_in, of_stand_in
from refold.server.job_table import Roster
from refold.server.store import Chapter, Reading
from refold.simulator import AsWritten

MOST_REPLAYED = 5_000
"""Entries that are replayed with the policy; a longer chapter is taken as it was written."""

MOST_REMEMBERED = 5_000
"""Ended jobs from which a policy learns how long jobs last, when it begins anew."""


@dataclass(slots=True)
class Recovered:
    """Where things stand. `opening`: what the first step has to tell the scheduler, if the journal begins anew."""

    scheduler: Scheduler
    roster: Roster
    entry: int = 0
    now: Seconds = 0.0
    wakes: list[Seconds] = field(default_factory=list)
    opening: tuple[Event, ...] | None = None
    note: str = ""


def recover(
    reading: Reading, header: Header, policy: Callable[[], Policy], refused: Callable[[BadDecision], None]
) -> Recovered:
    """Stand where the daemon stood that wrote last; or at the beginning."""
    chapter = reading.last_chapter()
    if chapter is None:
        return Recovered(Scheduler(header.cluster, policy(), refused=refused), Roster(header.cluster), opening=())
    last = reading.last_entry()
    why = _why_not_replayed(chapter, header, last)
    if not why:
        replayed = _replayed(reading, chapter, Scheduler(header.cluster, policy(), refused=refused))
        if replayed is not None:
            return replayed
        why = "the policy decides otherwise now than it did"
    written = _as_written(reading)
    opening = _opening_on(header.cluster, written.scheduler, reading.past(MOST_REMEMBERED))
    roster = Roster(header.cluster, [one for one in written.roster.of.values() if not is_stand_in(one.job)])
    scheduler = Scheduler(header.cluster, policy(), refused=refused)
    return Recovered(scheduler, roster, last, written.now, opening=opening, note=f"the journal begins anew: {why}")


def _opening_on(cluster: Cluster, before: Scheduler, past: list[Remembered]) -> tuple[Event, ...]:
    """The present as facts about another cluster: what was on a node is on the one that has its name now.

    A run on a node that is gone is not told of: its job waits again. Drained GPUs that are there are drained again.
    """
    old = before.view.cluster
    index = {number: cluster.index_of_node.get(node.name) for number, node in enumerate(old.nodes)}
    facts = [_moved(fact, index) for fact in before.opening(past) if not of_stand_in(fact)]
    return (*(fact for fact in facts if fact is not None), *drained_again(before.view, cluster))


def _moved(fact: Event, index: Mapping[int, int | None]) -> Event | None:
    if isinstance(fact, NodeLost):
        node = index[fact.node]
        return None if node is None else NodeLost(node)
    if isinstance(fact, RunAdopted):
        shares = [(share, index[share.node]) for share in fact.allocation.placement]
        moved = tuple(replace(share, node=node) for share, node in shares if node is not None)
        if len(moved) < len(shares):
            return None
        return replace(fact, allocation=replace(fact.allocation, placement=moved))
    return fact


def _why_not_replayed(chapter: Chapter, header: Header, last: int) -> str:
    if chapter.header.cluster != header.cluster:
        return "the cluster is another"
    if (chapter.header.policy, chapter.header.settings) != (header.policy, header.settings):
        return f"the policy was {chapter.header.policy}, with other settings"
    length = last - chapter.first + 1
    return f"{length:,} entries would take long to replay" if length > MOST_REPLAYED else ""


def _replayed(reading: Reading, chapter: Chapter, scheduler: Scheduler) -> Recovered | None:
    """The policy sees everything again; None: it does not decide what it decided."""
    after_first = reading.checkpoint(at_most=chapter.first)
    assert after_first is not None, "every chapter begins with one"
    stand = Recovered(scheduler, Roster(chapter.header.cluster, after_first.records), chapter.first - 1)
    for entry in reading.entries(chapter.first):
        if scheduler.step(entry.now, entry.events).orders != entry.orders:
            return None
        _follow(stand, entry, noted=stand.entry < chapter.first)
    return stand


def _as_written(reading: Reading) -> Recovered:
    """What the last entries say, whoever decided it."""
    checkpoint = reading.checkpoint()
    assert checkpoint is not None, "every chapter begins with one"
    cluster = reading.header_at(checkpoint.entry).cluster
    policy = AsWritten(lambda _: None)
    scheduler = Scheduler(cluster, policy)
    entries = reading.entries(checkpoint.entry)
    at = next(entries)
    policy.entry = Entry(at.now)
    scheduler.step(at.now, checkpoint.opening)
    stand = Recovered(scheduler, Roster(cluster, checkpoint.records), checkpoint.entry, at.now)
    for entry in entries:
        policy.entry = entry
        scheduler.step(entry.now, entry.events)
        _follow(stand, entry)
    return stand


def _follow(stand: Recovered, entry: Entry, *, noted: bool = False) -> None:
    if not noted:
        stand.roster.note(entry, stand.scheduler.view)
    stand.entry += 1
    stand.now = entry.now
    if entry.wake_at is not None:
        stand.wakes.append(entry.wake_at)
