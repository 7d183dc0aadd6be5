"""Recovery: restore the state after a restart.

An epoch is a part of the journal that replays on its own. Normally the current epoch is replayed with the policy, which
rebuilds its internal state. If that would take too long, or the policy, its settings or the cluster changed, the
recorded decisions are applied instead and a new epoch begins: its first entry is a snapshot, the state as events, and
the policy starts from the snapshot, without internal state from before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from refold import core
from refold.errors import BadDecision
from refold.model import Cluster, Job, NodeSet, Seconds
from refold.server.job_table import JobTable, Notice
from refold.server.store import JournalReader, StoredEpoch, StoreReader
from refold.simulator import RecordedDecisions

MAX_REPLAYED_ENTRIES = 5_000
"""Maximum length, in journal entries, of an epoch that is replayed with the policy."""

MAX_REPLAYED_DECISIONS = 100_000
"""Maximum of its entries times jobs that wait or run: a policy may look at every job at each entry."""

MAX_PAST_JOBS = 5_000
"""Maximum number of ended jobs in a snapshot, from which a new policy learns run times."""


@dataclass(slots=True)
class RecoveredState:
    """The state at the last entry.

    `snapshot`: events of the first step if a new epoch begins, else None. `note`: tells the operator why one begins.
    `notices`: about runs that are not continued.
    """

    scheduler: core.Scheduler
    job_table: JobTable
    entry: int = 0
    now: Seconds = 0.0
    wakes: list[Seconds] = field(default_factory=list)
    snapshot: tuple[core.Event, ...] | None = None
    notices: list[Notice] = field(default_factory=list)
    note: str = ""


def recover(
    reader: StoreReader,
    header: core.Header,
    policy: Callable[[], core.Policy],
    on_rejection: Callable[[BadDecision], None],
    history: Sequence[core.PastJob] = (),
) -> RecoveredState:
    """Restore the state that the last daemon wrote, or start empty. `history`: jobs that ended without a daemon."""
    epoch = reader.journal.last_epoch()
    if epoch is None:
        return RecoveredState(
            core.Scheduler(header.cluster, policy(), on_rejection=on_rejection),
            JobTable(header.cluster),
            snapshot=tuple(history),
        )
    last = reader.journal.last_entry()
    why = _reason_for_new_epoch(epoch, header, last, reader.active_jobs())
    if not why:
        replayed = _replay(reader.journal, epoch, core.Scheduler(header.cluster, policy(), on_rejection=on_rejection))
        if replayed is not None:
            return replayed
        why = "the policy no longer makes the recorded decisions"
    restored = _restore(reader.journal)
    snapshot = _snapshot_for(header.cluster, restored.scheduler, past_jobs(reader, history))
    job_table = JobTable(header.cluster, restored.job_table.records.values())
    notices = job_table.lose_runs_except(
        {event.job for event in snapshot if isinstance(event, core.RunAdopted)}, restored.now
    )
    scheduler = core.Scheduler(header.cluster, policy(), on_rejection=on_rejection)
    return RecoveredState(
        scheduler,
        job_table,
        last,
        restored.now,
        snapshot=snapshot,
        notices=notices,
        note=f"the policy starts from a snapshot of the queue and the runs: {why}",
    )


def past_jobs(reader: StoreReader, history: Sequence[core.PastJob] = ()) -> list[core.PastJob]:
    """Return the latest jobs that have ended, after those of `history`. Slow: call it in a thread."""
    return [*history, *reader.past_jobs(MAX_PAST_JOBS)][-MAX_PAST_JOBS:]


def _snapshot_for(cluster: Cluster, before: core.Scheduler, past: list[core.PastJob]) -> tuple[core.Event, ...]:
    """Return the state as events for another cluster. Nodes are matched by name, GPUs by their index.

    A run on a node or GPU that no longer exists is left out, so its job waits again. Nodes and GPUs that exist stay
    down.
    """
    old = before.view.cluster
    new_types = _new_types(old, cluster)
    new_index = {old_index: cluster.index_of_node.get(node.name) for old_index, node in enumerate(old.nodes)}
    events = [_move_to_cluster(event, new_index, cluster) for event in before.snapshot(past)]
    return tuple(_rename_types(event, new_types) for event in events if event is not None)


def _new_types(old: Cluster, new: Cluster) -> dict[str, set[str]]:
    """Return which GPU types the nodes of each type have now, if it is not the same type for all."""
    types: dict[str, set[str]] = {}
    for node in old.nodes:
        index = new.index_of_node.get(node.name)
        if node.gpus and index is not None and new.nodes[index].gpus:
            types.setdefault(node.gpu_type, set()).add(new.nodes[index].gpu_type)
    return {name: found for name, found in types.items() if found != {name}}


def _rename_types(event: core.Event, new_types: Mapping[str, Collection[str]]) -> core.Event:
    """Let a job accept the same nodes as before, if their GPU types have other names now."""
    if not isinstance(event, core.JobSubmitted) or new_types.keys().isdisjoint(event.job.demand.gpu_types):
        return event
    types = {found for name in event.job.demand.gpu_types for found in new_types.get(name, (name,))}
    return core.JobSubmitted(replace(event.job, demand=replace(event.job.demand, gpu_types=tuple(sorted(types)))))


def _move_to_cluster(event: core.Event, new_index: Mapping[int, int | None], cluster: Cluster) -> core.Event | None:
    if isinstance(event, core.JobSubmitted | core.PastJob):
        return replace(event, job=_move_job(event.job, new_index))
    if isinstance(event, core.NodeLost | core.GpuLost):
        node = new_index[event.node]
        if node is None or (isinstance(event, core.GpuLost) and event.gpu >= cluster.nodes[node].gpus):
            return None
        return replace(event, node=node)
    if isinstance(event, core.NodeUsed):
        return None  # the back end reports it again
    if isinstance(event, core.RunAdopted):
        shares = [(share, new_index[share.node]) for share in event.allocation.placement]
        moved = tuple(
            replace(share, node=node)
            for share, node in shares
            if node is not None and max(share.gpus, default=-1) < cluster.nodes[node].gpus
        )
        if len(moved) < len(shares):
            return None
        return replace(event, allocation=replace(event.allocation, placement=moved))
    return event


def _move_job(job: Job, new_index: Mapping[int, int | None]) -> Job:
    """Let a job be placed on the same nodes as before; those that are new are not among them."""
    if job.demand.allowed_nodes is None:
        return job
    found = (new_index[node] for node in job.demand.allowed_nodes if node in new_index)
    nodes = NodeSet.of(node for node in found if node is not None)
    return replace(job, demand=replace(job.demand, allowed_nodes=nodes))


def _reason_for_new_epoch(epoch: StoredEpoch, header: core.Header, last: int, jobs: int) -> str:
    if epoch.header.cluster != header.cluster:
        return "the cluster changed"
    if (epoch.header.policy, epoch.header.settings) != (header.policy, header.settings):
        return f"the policy or its settings changed (before: {epoch.header.policy})"
    length = last - epoch.first_entry + 1
    if length > MAX_REPLAYED_ENTRIES:
        return f"the previous one has {length:,} entries, too many to replay"
    if length * jobs > MAX_REPLAYED_DECISIONS:
        return f"the previous one has {length:,} entries, too many to replay with {jobs:,} jobs"
    return ""


def _replay(journal: JournalReader, epoch: StoredEpoch, scheduler: core.Scheduler) -> RecoveredState | None:
    """Replay the epoch with the policy; None if it now decides differently."""
    after_first = journal.checkpoint(at_most=epoch.first_entry)
    assert after_first is not None, "every epoch begins with a checkpoint"
    state = RecoveredState(scheduler, JobTable(epoch.header.cluster, after_first.records), epoch.first_entry - 1)
    for entry in journal.entries(epoch.first_entry):
        if core.orders_as_recorded(scheduler.repeat(entry).orders, entry.orders) != entry.orders:
            return None
        _advance(state, entry, already_applied=state.entry < epoch.first_entry)
    return state


def _restore(journal: JournalReader) -> RecoveredState:
    """Restore the state from the last checkpoint and the recorded decisions after it."""
    checkpoint = journal.checkpoint()
    assert checkpoint is not None, "every epoch begins with a checkpoint"
    cluster = journal.header_at(checkpoint.entry).cluster
    policy = RecordedDecisions(lambda _: None)
    scheduler = core.Scheduler(cluster, policy)
    entries = journal.entries(checkpoint.entry)
    checkpoint_entry = next(entries)
    policy.entry = core.Entry(checkpoint_entry.now)
    scheduler.step(checkpoint_entry.now, checkpoint.snapshot)
    state = RecoveredState(scheduler, JobTable(cluster, checkpoint.records), checkpoint.entry, checkpoint_entry.now)
    for entry in entries:
        policy.entry = entry
        scheduler.step(entry.now, entry.events)
        _advance(state, entry)
    return state


def _advance(state: RecoveredState, entry: core.Entry, *, already_applied: bool = False) -> None:
    if not already_applied:
        state.job_table.replay(entry)
    state.entry += 1
    state.now = entry.now
    if entry.wake_at is not None:
        state.wakes.append(entry.wake_at)
