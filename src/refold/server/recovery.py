"""After a restart: where things stood, and how to go on from there.

The journal is replayed with the policy, which then remembers everything that it did. Where that would take too long,
or the policy, its settings or the cluster are others now, things are taken as they were written, and a new epoch of
the journal begins with them: the policy knows who waits and who runs, and begins to think anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from refold.core import Entry, Event, Header, NodeLost, PastJob, Policy, RunAdopted, Scheduler
from refold.errors import BadDecision
from refold.model import Cluster, Seconds
from refold.server.drained_gpus import drained_again, is_about_placeholder, is_drain_placeholder
from refold.server.job_table import JobTable
from refold.server.store import Epoch, StoreReader
from refold.simulator import RecordedDecisions

MOST_REPLAYED = 5_000
"""Entries that are replayed with the policy; a longer epoch is taken as it was written."""

MOST_PAST_JOBS = 5_000
"""Ended jobs from which a policy learns how long jobs last, when it begins anew."""


@dataclass(slots=True)
class RecoveredState:
    """Where things stand. `snapshot`: what the first step has to tell the scheduler, if the journal begins anew."""

    scheduler: Scheduler
    job_table: JobTable
    entry: int = 0
    now: Seconds = 0.0
    wakes: list[Seconds] = field(default_factory=list)
    snapshot: tuple[Event, ...] | None = None
    note: str = ""


def recover(
    reading: StoreReader, header: Header, policy: Callable[[], Policy], refused: Callable[[BadDecision], None]
) -> RecoveredState:
    """Stand where the daemon stood that wrote last; or at the beginning."""
    epoch = reading.last_epoch()
    if epoch is None:
        return RecoveredState(
            Scheduler(header.cluster, policy(), refused=refused), JobTable(header.cluster), snapshot=()
        )
    last = reading.last_entry()
    why = _why_not_replayed(epoch, header, last)
    if not why:
        replayed = _replayed(reading, epoch, Scheduler(header.cluster, policy(), refused=refused))
        if replayed is not None:
            return replayed
        why = "the policy decides otherwise now than it did"
    written = _as_written(reading)
    snapshot = _snapshot_on(header.cluster, written.scheduler, reading.past(MOST_PAST_JOBS))
    job_table = JobTable(
        header.cluster, [one for one in written.job_table.of.values() if not is_drain_placeholder(one.job)]
    )
    scheduler = Scheduler(header.cluster, policy(), refused=refused)
    return RecoveredState(
        scheduler, job_table, last, written.now, snapshot=snapshot, note=f"the journal begins anew: {why}"
    )


def _snapshot_on(cluster: Cluster, before: Scheduler, past: list[PastJob]) -> tuple[Event, ...]:
    """The present as facts about another cluster: what was on a node is on the one that has its name now.

    A run on a node that is gone is not told of: its job waits again. Drained GPUs that are there are drained again.
    """
    old = before.view.cluster
    index = {number: cluster.index_of_node.get(node.name) for number, node in enumerate(old.nodes)}
    facts = [_moved(fact, index) for fact in before.snapshot(past) if not is_about_placeholder(fact)]
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


def _why_not_replayed(epoch: Epoch, header: Header, last: int) -> str:
    if epoch.header.cluster != header.cluster:
        return "the cluster is another"
    if (epoch.header.policy, epoch.header.settings) != (header.policy, header.settings):
        return f"the policy was {epoch.header.policy}, with other settings"
    length = last - epoch.first + 1
    return f"{length:,} entries would take long to replay" if length > MOST_REPLAYED else ""


def _replayed(reading: StoreReader, epoch: Epoch, scheduler: Scheduler) -> RecoveredState | None:
    """The policy sees everything again; None: it does not decide what it decided."""
    after_first = reading.checkpoint(at_most=epoch.first)
    assert after_first is not None, "every epoch begins with one"
    stand = RecoveredState(scheduler, JobTable(epoch.header.cluster, after_first.records), epoch.first - 1)
    for entry in reading.entries(epoch.first):
        if scheduler.step(entry.now, entry.events).orders != entry.orders:
            return None
        _follow(stand, entry, noted=stand.entry < epoch.first)
    return stand


def _as_written(reading: StoreReader) -> RecoveredState:
    """What the last entries say, whoever decided it."""
    checkpoint = reading.checkpoint()
    assert checkpoint is not None, "every epoch begins with one"
    cluster = reading.header_at(checkpoint.entry).cluster
    policy = RecordedDecisions(lambda _: None)
    scheduler = Scheduler(cluster, policy)
    entries = reading.entries(checkpoint.entry)
    at = next(entries)
    policy.entry = Entry(at.now)
    scheduler.step(at.now, checkpoint.snapshot)
    stand = RecoveredState(scheduler, JobTable(cluster, checkpoint.records), checkpoint.entry, at.now)
    for entry in entries:
        policy.entry = entry
        scheduler.step(entry.now, entry.events)
        _follow(stand, entry)
    return stand


def _follow(stand: RecoveredState, entry: Entry, *, noted: bool = False) -> None:
    if not noted:
        stand.job_table.note(entry, stand.scheduler.view)
    stand.entry += 1
    stand.now = entry.now
    if entry.wake_at is not None:
        stand.wakes.append(entry.wake_at)
