"""Units on paper: how many GPUs, CPUs and how much memory each job has on each node, moved one by one, with a way back.

A draft knows places; a ledger only counts. When everything is counted out, `settle` finds the places: whoever keeps
GPUs on a node keeps the very same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from refold.core import View
from refold.model import WHOLE, Allocation, MiB, Milli, Plan, Share
from refold.packing import CPU_FREE, MEMORY_FREE, UP, WHOLE_FREE
from refold.policies.common import Draft


class NodeShare(NamedTuple):
    """What a job has on one node."""

    gpus: int = 0
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


NOTHING = NodeShare()


class Ledger:
    """Who has how much where, and what is free."""

    def __init__(self, view: View, draft: Draft, movable: Iterable[str]) -> None:
        """`movable`: the holders whose parts may be changed; all others just hold what they hold."""
        columns = draft.free.nodes[: len(view.cluster.nodes)]
        up = columns[:, UP] > 0
        self.free: list[NodeShare] = [
            NodeShare(*row) if here else NOTHING
            for row, here in zip(columns[:, [WHOLE_FREE, CPU_FREE, MEMORY_FREE]].tolist(), up.tolist(), strict=True)
        ]
        self.with_free: set[int] = {node for node, part in enumerate(self.free) if part.gpus}
        """The nodes that have a free GPU."""
        self.parts: dict[str, dict[int, NodeShare]] = {}
        self._gpus: dict[str, int] = {}
        self.residents: dict[int, set[str]] = {}
        self._log: list[tuple[str, int, NodeShare]] = []
        self._draft = draft
        for job_id in movable:
            held = draft.holds(job_id)
            assert held is not None
            self.parts[job_id] = _parts_of(held)
            self._gpus[job_id] = sum(part.gpus for part in self.parts[job_id].values())
            for node in self.parts[job_id]:
                self.residents.setdefault(node, set()).add(job_id)

    def gpus(self, job_id: str) -> int:
        """GPUs that a job has in all."""
        return self._gpus.get(job_id, 0)

    def layout(self, job_id: str) -> tuple[int, ...]:
        """GPUs on each node, the most first."""
        return tuple(sorted((part.gpus for part in self.parts.get(job_id, {}).values() if part.gpus), reverse=True))

    def cpus(self, job_id: str) -> float:
        """CPUs that a job has in all."""
        return sum(part.cpu_milli for part in self.parts.get(job_id, {}).values()) / WHOLE

    def give(self, job_id: str, node: int, part: NodeShare) -> None:
        """A job has so much on a node from now on; the difference is free, or no longer."""
        parts = self.parts.setdefault(job_id, {})
        before = parts.get(node, NOTHING)
        self._log.append((job_id, node, before))
        self._put(job_id, node, before, part)

    def mark(self) -> int:
        """How it stands, to come back to."""
        return len(self._log)

    def roll_back(self, mark: int) -> None:
        """As it stood then."""
        while len(self._log) > mark:
            job_id, node, before = self._log.pop()
            self._put(job_id, node, self.parts[job_id].get(node, NOTHING), before)

    def touched_since(self, mark: int) -> dict[str, None]:
        """Who was given or taken something, in that order."""
        return dict.fromkeys(job_id for job_id, _, _ in self._log[mark:])

    def _put(self, job_id: str, node: int, before: NodeShare, after: NodeShare) -> None:
        free = self.free[node]
        now = self.free[node] = NodeShare(
            free.gpus + before.gpus - after.gpus,
            free.cpu_milli + before.cpu_milli - after.cpu_milli,
            free.memory_mib + before.memory_mib - after.memory_mib,
        )
        (self.with_free.add if now.gpus > 0 else self.with_free.discard)(node)
        self._gpus[job_id] = self._gpus.get(job_id, 0) + after.gpus - before.gpus
        if after == NOTHING:
            self.parts[job_id].pop(node, None)
            self.residents.get(node, set()).discard(job_id)
        else:
            self.parts[job_id][node] = after
            self.residents.setdefault(node, set()).add(job_id)

    def settle(self, plans: Mapping[str, Plan | None], whys: Mapping[str, str]) -> None:
        """Find places on the draft for everybody whose parts have changed, or whose plan has."""
        changed = [job_id for job_id in self.touched_since(0) if self._differs(job_id, plans.get(job_id))]
        held = {job_id: _gpus_of(self._draft.holds(job_id)) for job_id in changed}
        for job_id in changed:
            self._draft.release(job_id, whys.get(job_id, ""))
        kept = {
            (job_id, node): held[job_id].get(node, ())[: part.gpus]
            for job_id in changed
            for node, part in self.parts[job_id].items()
        }
        taken: dict[int, set[int]] = {}
        for (_, node), gpus in kept.items():
            taken.setdefault(node, set()).update(gpus)
        for job_id in changed:
            shares = tuple(
                Share(node, self._filled(node, kept[job_id, node], part.gpus, taken), WHOLE, *part[1:])
                for node, part in sorted(self.parts[job_id].items())
            )
            if shares:
                placed = self._draft.put(job_id, Allocation(shares, plans.get(job_id)), whys.get(job_id, ""))
                assert placed, f"the ledger gave {job_id!r} what is not free"

    def _differs(self, job_id: str, plan: Plan | None) -> bool:
        held = self._draft.holds(job_id)
        before = _parts_of(held) if held is not None else {}
        return before != self.parts.get(job_id, {}) or (held is not None and held.plan != plan)

    def _filled(self, node: int, kept: tuple[int, ...], wanted: int, taken: dict[int, set[int]]) -> tuple[int, ...]:
        """The GPUs that are kept, and as many of the first free ones as are wanted."""
        used = taken.setdefault(node, set())
        free = (
            gpu for gpu, milli in enumerate(self._draft.free.gpu_milli_of(node)) if milli == WHOLE and gpu not in used
        )
        chosen = list(kept)
        while len(chosen) < wanted:
            chosen.append(next(free))
        used.update(chosen)
        return tuple(sorted(chosen))


def _parts_of(held: Allocation) -> dict[int, NodeShare]:
    parts: dict[int, NodeShare] = {}
    for share in held.placement:
        have = parts.get(share.node, NOTHING)
        parts[share.node] = NodeShare(
            have.gpus + len(share.gpus), have.cpu_milli + share.cpu_milli, have.memory_mib + share.memory_mib
        )
    return parts


def _gpus_of(held: Allocation | None) -> dict[int, tuple[int, ...]]:
    gpus: dict[int, tuple[int, ...]] = {}
    for share in held.placement if held is not None else ():
        gpus[share.node] = gpus.get(share.node, ()) + share.gpus
    return gpus
