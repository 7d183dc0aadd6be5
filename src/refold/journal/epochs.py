"""The history of a journal with several epochs, between which policy and cluster may have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from refold.core import (
    Entry,
    Event,
    GpuLost,
    GpuReturned,
    Header,
    NodeLost,
    NodeReturned,
    NodeUsed,
    Order,
    RunAdopted,
    StartRun,
)
from refold.journal.changes import NodeChange
from refold.journal.files import read_epochs
from refold.journal.history import History
from refold.journal.packed_history import PackedHistoryJournal
from refold.model import Allocation, Cluster, Node, Seconds

NOT_IN_CLUSTER = "it is not in the cluster"
"""Why a node or GPU counts as down before it was added or after it was removed."""


def read_history(path: Path) -> tuple[Header, History]:
    """Return the last header and the history of all epochs.

    Its cluster has every node and GPU that there was in any epoch; while one is not in the cluster, it is down. Nodes
    are matched by name.
    """
    epochs = read_united_epochs(path)
    journal = _EpochsJournal(epochs[-1].cluster)
    for epoch in epochs:
        for number, entry in enumerate(epoch.entries):
            if number == 0:
                journal.begin_epoch(entry, epoch.header.cluster)
            journal.write(entry)
    return epochs[-1].header, journal.packed_history()


class Epoch(NamedTuple):
    """An epoch of a journal, whose entries number the nodes as the united `cluster` does."""

    header: Header
    cluster: Cluster
    entries: Iterator[Entry]

    @property
    def missing(self) -> set[tuple[int, int | None]]:
        """Nodes, and GPUs of nodes, of the united cluster that were not in the cluster of this epoch."""
        return _missing_parts(self.cluster, self.header.cluster)


def read_united_epochs(path: Path) -> list[Epoch]:
    """Return the epochs of a journal with a cluster that has every node and GPU that there was in any of them."""
    epochs = read_epochs(path)
    cluster = unite_clusters([header.cluster for header, _ in epochs])
    return [Epoch(header, cluster, _move_entries(header.cluster, cluster, entries)) for header, entries in epochs]


def _move_entries(own: Cluster, united: Cluster, entries: Iterator[Entry]) -> Iterator[Entry]:
    if own is united:
        return entries
    new_index = [united.index_of_node[node.name] for node in own.nodes]
    return (_move_entry(entry, new_index) for entry in entries)


def unite_clusters(clusters: Sequence[Cluster]) -> Cluster:
    """Return the last cluster with all nodes and GPUs that an earlier one had."""
    *earlier, last = clusters
    nodes = {node.name: node for node in last.nodes}
    for cluster in earlier:
        for node in cluster.nodes:
            nodes[node.name] = _larger(nodes[node.name], node) if node.name in nodes else node
    united = tuple(nodes.values())
    return last if united == last.nodes else replace(last, nodes=united)


def _larger(node: Node, other: Node) -> Node:
    if other.gpus <= node.gpus:
        return node
    return replace(node, gpus=other.gpus, gpu_type=node.gpu_type or other.gpu_type)


class _EpochsJournal(PackedHistoryJournal):
    """Records the entries of several epochs, whose nodes are numbered as in the united cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._missing: set[tuple[int, int | None]] = set()

    def begin_epoch(self, first: Entry, cluster: Cluster) -> None:
        """Prepare for the first entry of an epoch: end runs that it does not continue, add and remove nodes."""
        self.now = first.now
        adopted = {event.job for event in first.events if isinstance(event, RunAdopted)}
        for record in self.records.values():
            if record.job.id not in adopted and (run := record.current) is not None:
                record.lose_run(first.now)
                run.end_step = self._step
        self._set_missing(first.now, cluster)

    def _set_missing(self, now: Seconds, cluster: Cluster) -> None:
        missing = _missing_parts(self.cluster, cluster)
        for change in membership_changes(now, self._missing, missing):
            self._change_node(change)
        self._missing = missing


def _missing_parts(united: Cluster, cluster: Cluster) -> set[tuple[int, int | None]]:
    missing: set[tuple[int, int | None]] = set()
    for index, node in enumerate(united.nodes):
        if node.name not in cluster.index_of_node:
            missing.add((index, None))
        else:
            present = cluster.nodes[cluster.index_of_node[node.name]].gpus
            missing |= {(index, gpu) for gpu in range(present, node.gpus)}
    return missing


def membership_changes(
    now: Seconds, before: set[tuple[int, int | None]], after: set[tuple[int, int | None]]
) -> list[NodeChange]:
    """Return which nodes and GPUs are added and removed between two epochs, by what is missing in each."""
    added = [NodeChange(now, index, True, gpu) for index, gpu in sorted(before - after, key=str)]
    removed = sorted(after - before, key=str)
    return added + [NodeChange(now, index, False, gpu, NOT_IN_CLUSTER, drained=True) for index, gpu in removed]


def _move_entry(entry: Entry, new_index: Sequence[int]) -> Entry:
    events = tuple(_move_event(event, new_index) for event in entry.events)
    return replace(entry, events=events, orders=tuple(_move_order(order, new_index) for order in entry.orders))


def _move_event(event: Event, new_index: Sequence[int]) -> Event:
    match event:
        case NodeLost() | NodeReturned() | GpuLost() | GpuReturned() | NodeUsed():
            return replace(event, node=new_index[event.node])
        case RunAdopted():
            return replace(event, allocation=_move_allocation(event.allocation, new_index))
        case _:
            return event


def _move_order(order: Order, new_index: Sequence[int]) -> Order:
    if isinstance(order, StartRun):
        return replace(order, allocation=_move_allocation(order.allocation, new_index))
    if order.next is not None:
        return replace(order, next=_move_allocation(order.next, new_index))
    return order


def _move_allocation(allocation: Allocation, new_index: Sequence[int]) -> Allocation:
    return replace(
        allocation, placement=tuple(replace(share, node=new_index[share.node]) for share in allocation.placement)
    )
