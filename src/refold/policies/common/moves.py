"""Search for runs to move so that a job fits for which enough resources are free in total, but scattered.

Moved runs go to resources that are free now. The search tries hypothetical states on copies of the free resources
until all instances of the job fit and each moved run has another placement.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations, islice

import msgspec
import numpy as np

from refold.core import View
from refold.model import WHOLE, Allocation, Demand, Job, MiB, Milli, Placement, Reshape, Run, Seconds, Share
from refold.placement import CPU_FREE, FIRST_GPU, GPUS, MEMORY_FREE, UP, FreeResources, Placer

MAX_SUBSETS = 256
"""Maximum number of sets of runs to try per node, small ones first; if there are more, a greedy one comes last."""

MAX_EVICTIONS = 64
"""Maximum number of evictions to try for one more instance, cheap ones first."""

_EVICT, _EXPAND = 0, 1
"""Kinds of search items: an eviction to try, and a node whose evictions are not listed yet. At equal cost, evictions
come first."""


class Moves(msgspec.Struct, frozen=True):
    """Runs to move, the placement of the waiting job afterwards, and the GPU capacity moved."""

    reshapes: tuple[Reshape, ...]
    placement: Placement
    gpu_milli: Milli


def find_moves(
    view: View, job: Job, placer: Placer, rest_seconds: Seconds, max_moves: int, moving: Container[str] = ()
) -> Moves | None:
    """Return the cheapest moves found after which all instances of a job fit; None: there are none, or none are needed.

    Instances are placed one after another. For each, nodes are tried in the order of their cost: the GPU capacity of
    all runs that have to leave, counted as whole runs even if only one share of a run leaves. Ties are broken by the
    least missing capacity, then by the order in the cluster; on a node, by fewer runs, then by runs that have been in
    place for longer. An eviction is rejected unless all its runs have another placement now. Finally, moves that turn
    out to be unnecessary are dropped. Only runs that have been in place for `rest_seconds` are moved, and none of
    `moving`. Jobs that require domains are neither moved nor moved for: instances are considered one by one.
    """
    if _requires_domains(job):
        return None
    free = view.trial().free
    runs = [run for run in _movable(view, rest_seconds) if run.job not in moving]
    search = _Search(view, free, job.demand, placer, runs, max_moves)
    if not search.place_all():
        return None
    search.drop_needless()
    moves = search.moves(f"defragment: to free GPUs for {job.id}")
    return moves if moves.reshapes else None  # without moves, the job fits as it is and the placement rule rejected it


def _movable(view: View, rest_seconds: Seconds) -> list[Run]:
    """Return the runs that may be moved, those that have been in place for longest first."""
    runs = [
        run
        for run in view.runs.values()
        if run.since + rest_seconds <= view.now
        and not run.stopping
        and view.is_preemptible(run.job)
        and not _requires_domains(view.active[run.job])
        and view.is_placement_up(run.allocation.placement)
    ]
    return sorted(runs, key=lambda run: run.since)


def _requires_domains(job: Job) -> bool:
    return job.demand.topology is not None and job.demand.topology.is_binding


class _NodeSpace(msgspec.Struct):
    """Free resources of one node: per GPU, CPUs, memory."""

    gpus: list[Milli]
    cpu_milli: Milli
    memory_mib: MiB

    def without(self, shares: Sequence[Share]) -> _NodeSpace:
        """Return what would be free if these shares were released."""
        gpus, cpu, memory = self.gpus.copy(), self.cpu_milli, self.memory_mib
        for share in shares:
            for gpu in share.gpus:
                gpus[gpu] += share.gpu_milli
            cpu += share.cpu_milli
            memory += share.memory_mib
        return _NodeSpace(gpus, cpu, memory)

    def fits(self, demand: Demand) -> bool:
        """Return whether one instance fits."""
        if self.cpu_milli < demand.cpu_milli or self.memory_mib < demand.memory_mib:
            return False
        return sum(free >= demand.gpu_milli for free in self.gpus) >= demand.gpus


class _Shares:
    """The shares of runs. Runs are identified by their index in `runs`, shares by their position in the placement."""

    def __init__(self, view: View, free: FreeResources, runs: list[Run]) -> None:
        self._view, self._free, self._runs = view, free, runs
        self._fits_now: dict[Demand, bool] = {}
        self.on_node = self._shares_on_nodes()
        """Node -> run -> its shares there, for runs whose shares on the node each fit elsewhere on their own."""

    def get(self, index: int, position: int) -> Share:
        """Return a share of a run."""
        return self._runs[index].allocation.placement[position]

    def demand_of(self, index: int, position: int) -> Demand:
        """Return the demand that a share satisfies, restricted to GPU types at least as fast as those of the run."""
        share, cluster = self.get(index, position), self._view.cluster
        requested = self._view.active[self._runs[index].job].demand
        accepted = requested.gpu_types or cluster.type_names
        if share.gpus and len(accepted) > 1:
            nodes = [part.node for part in self._runs[index].allocation.placement if part.gpus]
            speed = min(cluster.gpu_type(cluster.nodes[node].gpu_type).speed for node in nodes)
            accepted = tuple(
                name for name in cluster.type_names if name in accepted and cluster.gpu_type(name).speed >= speed
            )
        amounts = len(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib
        return Demand(1, *amounts, accepted, requested.allowed_nodes)

    def _shares_on_nodes(self) -> dict[int, dict[int, list[int]]]:
        on_node: dict[int, dict[int, list[int]]] = {}
        for index, run in enumerate(self._runs):
            for position, share in enumerate(run.allocation.placement):
                on_node.setdefault(share.node, {}).setdefault(index, []).append(position)
        for runs in on_node.values():
            for index in [index for index, shares in runs.items() if not self._fit_elsewhere(index, shares)]:
                del runs[index]
        return on_node

    def _fit_elsewhere(self, index: int, positions: list[int]) -> bool:
        for position in positions:
            demand = self.demand_of(index, position)
            if demand not in self._fits_now:
                self._fits_now[demand] = self._free.shortage(demand).nodes_fit > 0
            if not self._fits_now[demand]:
                return False
        return True


class _Search:
    """Search state. Runs are identified by their index in `runs`, shares by their position in the run's placement.

    Two states are tracked: resources free now, for moved runs, and resources that will be free when the moved runs have
    stopped, for the waiting job. The first are always a subset of the second.
    """

    def __init__(
        self, view: View, free: FreeResources, demand: Demand, placer: Placer, runs: list[Run], max_moves: int
    ) -> None:
        self._free = free
        self._now, self._later = free.copy(), free.copy()
        self._placer = placer
        self._demand = demand
        self._one = msgspec.structs.replace(demand, instances=1, topology=None)
        self._runs = runs
        self._max_moves = max_moves
        self._placed: list[Share] = []
        self._moved: dict[int, dict[int, Share]] = {}
        """Run -> position of each moved share -> new share."""
        self._shares = _Shares(view, free, runs)

    def place_all(self) -> bool:
        """Find a placement for all instances, moving as few runs as necessary; return whether there is one."""
        while len(self._placed) < self._demand.instances:
            if not self._place_one() and not self._move_for_one():
                return False
        return True

    def drop_needless(self) -> None:
        """Drop moves without which the job would fit as well, the most expensive first."""
        for index in sorted(self._moved, key=lambda index: (-self._runs[index].allocation.gpu_milli, index)):
            others = {other: shares for other, shares in self._moved.items() if other != index}
            hypothetical = self._free.copy()
            for other, shares in others.items():
                hypothetical.release([self._shares.get(other, position) for position in shares])
                hypothetical.take(tuple(shares.values()))
            placement = self._placer.place(hypothetical, self._demand)
            if placement is not None:
                self._moved, self._placed = others, list(placement)

    def moves(self, why: str) -> Moves:
        """Return the result of the search."""
        reshapes: list[Reshape] = []
        gpu_milli = 0
        for index, shares in sorted(self._moved.items()):
            run = self._runs[index]
            placement = tuple(shares.get(position, share) for position, share in enumerate(run.allocation.placement))
            reshapes.append(Reshape(run.job, Allocation(placement, run.allocation.plan), why))
            gpu_milli += run.allocation.gpu_milli
        return Moves(tuple(reshapes), tuple(self._placed), gpu_milli)

    def _place_one(self) -> bool:
        """Place one more instance on what will be free, and remove what it uses of that from what is free now."""
        placement = self._placer.place(self._later, self._one)
        if placement is None:
            return False
        self._placed += placement
        node = placement[0].node
        for gpu, (now, later) in enumerate(
            zip(self._now.gpu_milli_of(node), self._later.gpu_milli_of(node), strict=True)
        ):
            if now > later:
                self._now.take((Share(node, (gpu,), now - later),))
        more = np.maximum(self._now.nodes[node] - self._later.nodes[node], 0)
        self._now.take((Share(node, (), WHOLE, int(more[CPU_FREE]), int(more[MEMORY_FREE])),))
        return True

    def _move_for_one(self) -> bool:
        """Place one more instance by the cheapest eviction after which all runs have a placement."""
        nodes = [(least, _EXPAND, 0, node, ()) for node, least in self._nodes_and_least_costs()]
        items: list[tuple[Milli, int, int, int, tuple[int, ...]]] = [*nodes]
        heapify(items)
        tried = 0
        while items and tried < MAX_EVICTIONS:
            _, kind, _, node, runs = heappop(items)
            if kind == _EXPAND:
                for eviction in self._evictions(node):
                    heappush(items, (self._cost(eviction), _EVICT, len(eviction), node, eviction))
                continue
            tried += 1
            if self._evict(node, runs):
                return True
        return False

    def _nodes_and_least_costs(self) -> Iterator[tuple[int, Milli]]:
        """Yield the nodes on which an instance could fit, with a lower bound of the cost: the capacity missing on the
        emptiest GPUs."""
        instance, nodes = self._one, self._free.cluster.nodes
        rows, gpus = self._later.nodes.tolist(), self._later.gpus.tolist()
        for node, runs in self._shares.on_node.items():
            row = rows[node]
            if not (runs and row[UP] and row[GPUS] >= instance.gpus and instance.accepts(node, nodes[node])):
                continue
            if not self._moved.keys().isdisjoint(runs):
                yield node, 0  # a run that is moved anyway costs nothing more
                continue
            missing = [max(0, instance.gpu_milli - free) for free in gpus[row[FIRST_GPU] : row[FIRST_GPU] + row[GPUS]]]
            yield node, sum(sorted(missing)[: instance.gpus])

    def _cost(self, runs: tuple[int, ...]) -> Milli:
        """Return the GPU capacity of those runs that are not moved already."""
        return sum(self._runs[index].allocation.gpu_milli for index in runs if index not in self._moved)

    def _evictions(self, node: int) -> list[tuple[int, ...]]:
        """Return sets of runs without which an instance fits on a node; no set contains another."""
        runs = [index for index in self._shares.on_node[node] if self._unmoved(index, node)]
        runs.sort(key=lambda index: (self._cost((index,)), index))
        row = self._later.nodes[node]
        space = _NodeSpace(list(self._later.gpu_milli_of(node)), int(row[CPU_FREE]), int(row[MEMORY_FREE]))
        subsets = (subset for size in range(1, len(runs) + 1) for subset in combinations(runs, size))
        sufficient: list[tuple[int, ...]] = []
        for subset in islice(subsets, MAX_SUBSETS):
            if not any(set(subset).issuperset(smaller) for smaller in sufficient) and self._suffice(
                space, node, subset
            ):
                sufficient.append(subset)
        if 2 ** len(runs) > MAX_SUBSETS + 1:
            sufficient += [
                subset for subset in [self._greedy_eviction(space, node, runs)] if subset and subset not in sufficient
            ]
        return [subset for subset in sufficient if len(self._moved.keys() | subset) <= self._max_moves]

    def _greedy_eviction(self, space: _NodeSpace, node: int, runs: list[int]) -> tuple[int, ...]:
        """Return the cheapest runs that suffice, less those that need not leave, checked the most expensive first."""
        if not self._suffice(space, node, runs):
            return ()
        count = next(count for count in range(1, len(runs) + 1) if self._suffice(space, node, runs[:count]))
        leaving = runs[:count]
        for index in reversed(runs[:count]):
            fewer = [other for other in leaving if other != index]
            if self._suffice(space, node, fewer):
                leaving = fewer
        return tuple(leaving)

    def _suffice(self, space: _NodeSpace, node: int, runs: Sequence[int]) -> bool:
        return space.without([share for _, _, share in self._leaving(node, runs)]).fits(self._one)

    def _unmoved(self, index: int, node: int) -> list[int]:
        """Return the shares of a run on a node that have not been moved."""
        moved = self._moved.get(index, {})
        return [position for position in self._shares.on_node[node][index] if position not in moved]

    def _leaving(self, node: int, runs: Sequence[int]) -> list[tuple[int, int, Share]]:
        """Return the shares (run, position, share) that are released if these runs leave a node."""
        return [
            (index, position, self._shares.get(index, position))
            for index in runs
            for position in self._unmoved(index, node)
        ]

    def _evict(self, node: int, runs: tuple[int, ...]) -> bool:
        """Move runs off a node and place an instance there; return whether it worked. If not, nothing changes."""
        before = self._now.copy(), self._later.copy(), len(self._placed)
        moved_before = {index: dict(shares) for index, shares in self._moved.items()}
        leaving = self._leaving(node, runs)
        self._later.release([share for _, _, share in leaving])
        leaving.sort(key=lambda item: -len(item[2].gpus) * item[2].gpu_milli)  # the largest has the fewest alternatives
        if self._place_one() and all(self._move_share(index, position) for index, position, _ in leaving):
            return True
        self._now, self._later = before[0], before[1]
        del self._placed[before[2] :]
        self._moved = moved_before
        return False

    def _move_share(self, index: int, position: int) -> bool:
        placement = self._placer.place(self._now, self._shares.demand_of(index, position))
        if placement is None or self._later.take(placement) is not None:
            return False
        self._moved.setdefault(index, {})[position] = placement[0]
        return True
