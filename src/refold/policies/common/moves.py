"""Which runs to move so that a job has a place for which enough is free in sum, but in pieces.

Whoever moves goes where it is free now. So one supposed state after the other is tried out on copies of what is free,
until every instance of the job has room and everybody who goes has another place.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations, islice

import msgspec
import numpy as np

from refold.core import View
from refold.model import WHOLE, Allocation, Demand, Job, MiB, Milli, Placement, Reshape, Run, Seconds, Share
from refold.packing import CPU_FREE, FIRST_GPU, GPUS, MEMORY_FREE, TYPE_BIT, UP, Free, Placer

MOST_SUBSETS = 256
"""So many sets of runs of one node are tried, small ones first; where there are more, a greedy one is tried last."""

MOST_WAYS = 64
"""So many ways of making room for one more instance are tried, cheap ones first."""

_GO, _LOOK = 0, 1
"""A way to make room, and a node on which none was looked for yet: a way that costs no more goes first."""


class Moves(msgspec.Struct, frozen=True):
    """Runs that go elsewhere, where the waiting job will be when they have, and the GPU that is moved."""

    reshapes: tuple[Reshape, ...]
    placement: Placement
    gpu_milli: Milli


def find_moves(
    view: View, job: Job, placer: Placer, rest_seconds: Seconds, most_moves: int, moving: Container[str] = ()
) -> Moves | None:
    """The cheapest moves found that make room for every instance of a job; None: there are none, or none are needed.

    Instances get room one after the other. For each, nodes are taken in the order of what they would cost, which is
    the GPU of all runs that have to go, whole runs even where one share of them goes. Of equals, the node goes first on
    which the least is missing, then the first in the cluster; on a node, fewer runs, then those that have been there
    for longest. A way is passed over if not all that go have another place now. In the end, whoever would not have had
    to move stays. Who is `moving` already is left alone.
    """
    free = view.trial().free
    runs = [run for run in _movable(view, rest_seconds) if run.job not in moving]
    search = _Search(view, free, job.demand, placer, runs, most_moves)
    if not search.make_room():
        return None
    search.drop_needless()
    moves = search.moves(f"defragment: room for {job.id}")
    return moves if moves.reshapes else None  # it has a place as it is, and the rule did not want it


def _movable(view: View, rest_seconds: Seconds) -> list[Run]:
    """Runs that may be moved, those first that have been where they are for longest."""
    active = view.active
    down = {node for node in range(len(view.cluster.nodes)) if not view.is_up(node)}
    runs = [
        run
        for run in view.runs.values()
        if run.since + rest_seconds <= view.now
        and not run.stopping
        and active[run.job].preemptible
        and (not down or down.isdisjoint(run.allocation.nodes))
    ]
    return sorted(runs, key=lambda run: run.since)


class _NodeSpace(msgspec.Struct):
    """What is free on one node: of each GPU, CPUs, memory."""

    gpus: list[Milli]
    cpu_milli: Milli
    memory_mib: MiB

    def without(self, shares: Sequence[Share]) -> _NodeSpace:
        """What would be free if these were gone."""
        gpus, cpu, memory = self.gpus.copy(), self.cpu_milli, self.memory_mib
        for share in shares:
            for gpu in share.gpus:
                gpus[gpu] += share.gpu_milli
            cpu += share.cpu_milli
            memory += share.memory_mib
        return _NodeSpace(gpus, cpu, memory)

    def fits(self, demand: Demand) -> bool:
        """Whether one instance has room."""
        if self.cpu_milli < demand.cpu_milli or self.memory_mib < demand.memory_mib:
            return False
        return sum(free >= demand.gpu_milli for free in self.gpus) >= demand.gpus


class _Search:
    """One supposed state after another. Runs are named by their position in `runs`, their shares by theirs.

    Two things are kept apart: what is free now, where moved runs may go, and what will be free when the moved runs
    have stopped, where the waiting job may go. The first is never more than the second.
    """

    def __init__(
        self, view: View, free: Free, demand: Demand, placer: Placer, runs: list[Run], most_moves: int
    ) -> None:
        self._view = view
        self._free = free
        self._now, self._later = free.copy(), free.copy()
        self._placer = placer
        self._demand = demand
        self._one = msgspec.structs.replace(demand, instances=1)
        self._runs = runs
        self._most_moves = most_moves
        self._placed: list[Share] = []
        self._moved: dict[int, dict[int, Share]] = {}
        self._has_place: dict[Demand, bool] = {}
        self._on_node = self._shares_on_nodes()

    def make_room(self) -> bool:
        """A place for every instance, after as few moves as it takes."""
        while len(self._placed) < self._demand.instances:
            if not self._place_one() and not self._move_for_one():
                return False
        return True

    def drop_needless(self) -> None:
        """Those who would not have had to move, seen from the end, the dearest first."""
        for index in sorted(self._moved, key=lambda index: (-self._runs[index].allocation.gpu_milli, index)):
            others = {other: shares for other, shares in self._moved.items() if other != index}
            supposed = self._free.copy()
            for other, shares in others.items():
                supposed.give_back([self._share(other, position) for position in shares])
                supposed.take(tuple(shares.values()))
            placement = self._placer.place(supposed, self._demand)
            if placement is not None:
                self._moved, self._placed = others, list(placement)

    def moves(self, why: str) -> Moves:
        """What was found."""
        reshapes: list[Reshape] = []
        moved = 0
        for index, shares in sorted(self._moved.items()):
            run = self._runs[index]
            placement = tuple(shares.get(position, share) for position, share in enumerate(run.allocation.placement))
            reshapes.append(Reshape(run.job, Allocation(placement, run.allocation.plan), why))
            moved += run.allocation.gpu_milli
        return Moves(tuple(reshapes), tuple(self._placed), moved)

    def _share(self, index: int, position: int) -> Share:
        return self._runs[index].allocation.placement[position]

    def _shares_on_nodes(self) -> dict[int, dict[int, list[int]]]:
        """By node, the runs on it, each with its shares there, if all of these have another place on their own."""
        on_node: dict[int, dict[int, list[int]]] = {}
        for index, run in enumerate(self._runs):
            for position, share in enumerate(run.allocation.placement):
                on_node.setdefault(share.node, {}).setdefault(index, []).append(position)
        for runs in on_node.values():
            for index in [index for index, shares in runs.items() if not self._have_places(index, shares)]:
                del runs[index]
        return on_node

    def _have_places(self, index: int, positions: list[int]) -> bool:
        for position in positions:
            demand = self._demand_of(index, position)
            if demand not in self._has_place:
                self._has_place[demand] = self._free.shortage(demand).fit > 0
            if not self._has_place[demand]:
                return False
        return True

    def _demand_of(self, index: int, position: int) -> Demand:
        """A share as somebody asks for it who accepts no GPUs that are slower than those it has."""
        share, cluster = self._share(index, position), self._view.cluster
        accepted = self._view.active[self._runs[index].job].demand.gpu_types or cluster.type_names
        if share.gpus and len(accepted) > 1:
            nodes = [part.node for part in self._runs[index].allocation.placement if part.gpus]
            speed = min(cluster.gpu_type(cluster.nodes[node].gpu_type).speed for node in nodes)
            accepted = tuple(
                name for name in cluster.type_names if name in accepted and cluster.gpu_type(name).speed >= speed
            )
        return Demand(1, len(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib, accepted)

    def _place_one(self) -> bool:
        """One instance more on what will be free; what it takes of that is not free now either."""
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
        """Room for one instance more, in the cheapest way that leaves nobody without a place."""
        looks = [(least, _LOOK, 0, node, ()) for node, least in self._nodes_and_least_costs()]
        ways: list[tuple[Milli, int, int, int, tuple[int, ...]]] = [*looks]
        heapify(ways)
        tried = 0
        while ways and tried < MOST_WAYS:
            _, kind, _, node, runs = heappop(ways)
            if kind == _LOOK:
                for more in self._ways(node):
                    heappush(ways, (self._cost(more), _GO, len(more), node, more))
                continue
            tried += 1
            if self._move(node, runs):
                return True
        return False

    def _nodes_and_least_costs(self) -> Iterator[tuple[int, Milli]]:
        """Nodes that could have room, and what has to go there at least: what is missing on the emptiest GPUs."""
        one, types = self._one, int(self._later.vector(self._one)[0, 5])
        rows, gpus = self._later.nodes.tolist(), self._later.gpus.tolist()
        for node, runs in self._on_node.items():
            row = rows[node]
            if not (runs and row[UP] and row[GPUS] >= one.gpus and row[TYPE_BIT] & types):
                continue
            if not self._moved.keys().isdisjoint(runs):
                yield node, 0  # somebody who moves anyway goes free of charge
                continue
            missing = [max(0, one.gpu_milli - free) for free in gpus[row[FIRST_GPU] : row[FIRST_GPU] + row[GPUS]]]
            yield node, sum(sorted(missing)[: one.gpus])

    def _cost(self, runs: tuple[int, ...]) -> Milli:
        """The GPU of those that do not move anyway."""
        return sum(self._runs[index].allocation.gpu_milli for index in runs if index not in self._moved)

    def _ways(self, node: int) -> list[tuple[int, ...]]:
        """Sets of runs without which an instance has room on a node, none of which holds another."""
        runs = [index for index in self._on_node[node] if self._staying(index, node)]
        runs.sort(key=lambda index: (self._cost((index,)), index))
        row = self._later.nodes[node]
        room = _NodeSpace(list(self._later.gpu_milli_of(node)), int(row[CPU_FREE]), int(row[MEMORY_FREE]))
        subsets = (subset for size in range(1, len(runs) + 1) for subset in combinations(runs, size))
        found: list[tuple[int, ...]] = []
        for subset in islice(subsets, MOST_SUBSETS):
            if not any(set(subset).issuperset(smaller) for smaller in found) and self._suffice(room, node, subset):
                found.append(subset)
        if 2 ** len(runs) > MOST_SUBSETS + 1:
            found += [subset for subset in [self._greedy_way(room, node, runs)] if subset and subset not in found]
        return [subset for subset in found if self._are_few_enough(subset)]

    def _greedy_way(self, room: _NodeSpace, node: int, runs: list[int]) -> tuple[int, ...]:
        """The cheapest runs until there is room, without those, the dearest first, that need not go."""
        if not self._suffice(room, node, runs):
            return ()
        count = next(count for count in range(1, len(runs) + 1) if self._suffice(room, node, runs[:count]))
        going = runs[:count]
        for index in reversed(runs[:count]):
            fewer = [other for other in going if other != index]
            if self._suffice(room, node, fewer):
                going = fewer
        return tuple(going)

    def _suffice(self, room: _NodeSpace, node: int, runs: Sequence[int]) -> bool:
        return room.without([share for _, _, share in self._going(node, runs)]).fits(self._one)

    def _are_few_enough(self, runs: tuple[int, ...]) -> bool:
        return len(self._moved.keys() | runs) <= self._most_moves

    def _staying(self, index: int, node: int) -> list[int]:
        """The shares of a run on a node that have not been moved."""
        moved = self._moved.get(index, {})
        return [position for position in self._on_node[node][index] if position not in moved]

    def _going(self, node: int, runs: Sequence[int]) -> list[tuple[int, int, Share]]:
        """What goes if runs leave a node: the run, the position of the share, the share."""
        return [
            (index, position, self._share(index, position)) for index in runs for position in self._staying(index, node)
        ]

    def _move(self, node: int, runs: tuple[int, ...]) -> bool:
        """Move runs from a node and place an instance there; or leave everything as it was."""
        before = self._now.copy(), self._later.copy(), len(self._placed)
        moved_before = {index: dict(shares) for index, shares in self._moved.items()}
        going = self._going(node, runs)
        self._later.give_back([share for _, _, share in going])
        going.sort(key=lambda one: -len(one[2].gpus) * one[2].gpu_milli)  # the largest first: it is the most choosy
        if self._place_one() and all(self._move_share(index, position) for index, position, _ in going):
            return True
        self._now, self._later = before[0], before[1]
        del self._placed[before[2] :]
        self._moved = moved_before
        return False

    def _move_share(self, index: int, position: int) -> bool:
        placement = self._placer.place(self._now, self._demand_of(index, position))
        if placement is None or self._later.take(placement) is not None:
            return False
        self._moved.setdefault(index, {})[position] = placement[0]
        return True
