"""Ledger: numbers of GPUs and CPUs, and memory, per job and node, changed one unit at a time, with roll-back.

A draft holds placements (which GPUs); a ledger holds counts only. `apply` turns the final counts into placements on the
draft; a job that keeps GPUs on a node keeps the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from refold.core import View
from refold.model import WHOLE, Allocation, MiB, Milli, Plan, Share
from refold.placement import CPU_FREE, MEMORY_FREE, UP, WHOLE_FREE
from refold.policies.common import Draft


class NodeShare(NamedTuple):
    """Resources of one job on one node."""

    gpus: int = 0
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


NO_SHARE = NodeShare()


def scale_share(share: NodeShare, gpus: int) -> NodeShare:
    """Scale a share to `gpus` GPUs, with CPUs and memory in proportion."""
    if not gpus:
        return NO_SHARE
    return NodeShare(gpus, share.cpu_milli * gpus // share.gpus, share.memory_mib * gpus // share.gpus)


class Ledger:
    """Resources of jobs per node, and free resources."""

    def __init__(self, view: View, draft: Draft, movable: Iterable[str]) -> None:
        """`movable`: jobs whose shares may be changed; the allocations of all other jobs are fixed."""
        columns = draft.free.nodes[: len(view.cluster.nodes)]
        up = columns[:, UP] > 0
        self.free: list[NodeShare] = [
            NodeShare(*row) if is_up else NO_SHARE
            for row, is_up in zip(columns[:, [WHOLE_FREE, CPU_FREE, MEMORY_FREE]].tolist(), up.tolist(), strict=True)
        ]
        self.nodes_with_free_gpus: set[int] = {node for node, share in enumerate(self.free) if share.gpus}
        """Nodes with at least one free GPU."""
        self.shares: dict[str, dict[int, NodeShare]] = {}
        self._gpus: dict[str, int] = {}
        self.jobs_on_node: dict[int, set[str]] = {}
        self._log: list[tuple[str, int, NodeShare]] = []
        self._draft = draft
        for job_id in movable:
            held = draft.allocation_of(job_id)
            assert held is not None
            self.shares[job_id] = _shares_by_node(held)
            self._gpus[job_id] = sum(share.gpus for share in self.shares[job_id].values())
            for node in self.shares[job_id]:
                self.jobs_on_node.setdefault(node, set()).add(job_id)

    def gpus(self, job_id: str) -> int:
        """Return the total number of GPUs of a job."""
        return self._gpus.get(job_id, 0)

    def layout(self, job_id: str) -> tuple[int, ...]:
        """Return the numbers of GPUs per node, in descending order."""
        return tuple(sorted((share.gpus for share in self.shares.get(job_id, {}).values() if share.gpus), reverse=True))

    def cpus(self, job_id: str) -> float:
        """Return the total number of CPUs of a job."""
        return sum(share.cpu_milli for share in self.shares.get(job_id, {}).values()) / WHOLE

    def set_share(self, job_id: str, node: int, share: NodeShare) -> None:
        """Set a job's share of a node; the difference is taken from or returned to the free resources."""
        shares = self.shares.setdefault(job_id, {})
        before = shares.get(node, NO_SHARE)
        self._log.append((job_id, node, before))
        self._replace_share(job_id, node, before, share)

    def savepoint(self) -> int:
        """Return a savepoint for `roll_back`."""
        return len(self._log)

    def roll_back(self, savepoint: int) -> None:
        """Undo all changes since a savepoint."""
        while len(self._log) > savepoint:
            job_id, node, before = self._log.pop()
            self._replace_share(job_id, node, self.shares[job_id].get(node, NO_SHARE), before)

    def changed_since(self, savepoint: int) -> dict[str, None]:
        """Return the jobs whose shares were set since a savepoint, in order."""
        return dict.fromkeys(job_id for job_id, _, _ in self._log[savepoint:])

    def _replace_share(self, job_id: str, node: int, before: NodeShare, after: NodeShare) -> None:
        free = self.free[node]
        now = self.free[node] = NodeShare(
            free.gpus + before.gpus - after.gpus,
            free.cpu_milli + before.cpu_milli - after.cpu_milli,
            free.memory_mib + before.memory_mib - after.memory_mib,
        )
        (self.nodes_with_free_gpus.add if now.gpus > 0 else self.nodes_with_free_gpus.discard)(node)
        self._gpus[job_id] = self._gpus.get(job_id, 0) + after.gpus - before.gpus
        if after == NO_SHARE:
            self.shares[job_id].pop(node, None)
            self.jobs_on_node.get(node, set()).discard(job_id)
        else:
            self.shares[job_id][node] = after
            self.jobs_on_node.setdefault(node, set()).add(job_id)

    def apply(self, plans: Mapping[str, Plan | None], reasons: Mapping[str, str]) -> None:
        """Assign placements on the draft to all jobs whose shares or plan differ from it."""
        changed = [job_id for job_id in self.changed_since(0) if self._differs(job_id, plans.get(job_id))]
        held = {job_id: _gpus_by_node(self._draft.allocation_of(job_id)) for job_id in changed}
        for job_id in changed:
            self._draft.release(job_id, reasons.get(job_id, ""))
        kept_gpus = {
            (job_id, node): held[job_id].get(node, ())[: share.gpus]
            for job_id in changed
            for node, share in self.shares[job_id].items()
        }
        used_gpus: dict[int, set[int]] = {}
        for (_, node), gpus in kept_gpus.items():
            used_gpus.setdefault(node, set()).update(gpus)
        for job_id in changed:
            shares = tuple(
                Share(node, self._choose_gpus(node, kept_gpus[job_id, node], share.gpus, used_gpus), WHOLE, *share[1:])
                for node, share in sorted(self.shares[job_id].items())
            )
            if shares:
                placed = self._draft.assign(job_id, Allocation(shares, plans.get(job_id)), reasons.get(job_id, ""))
                assert placed, f"the ledger gave {job_id!r} resources that are not free"

    def _differs(self, job_id: str, plan: Plan | None) -> bool:
        held = self._draft.allocation_of(job_id)
        before = _shares_by_node(held) if held is not None else {}
        return before != self.shares.get(job_id, {}) or (held is not None and held.plan != plan)

    def _choose_gpus(
        self, node: int, kept_gpus: tuple[int, ...], wanted: int, used_gpus: dict[int, set[int]]
    ) -> tuple[int, ...]:
        """Return the GPUs in `kept_gpus`, filled up to `wanted` with the first free ones."""
        used = used_gpus.setdefault(node, set())
        free = (
            gpu for gpu, milli in enumerate(self._draft.free.gpu_milli_of(node)) if milli == WHOLE and gpu not in used
        )
        chosen = list(kept_gpus)
        while len(chosen) < wanted:
            chosen.append(next(free))
        used.update(chosen)
        return tuple(sorted(chosen))


def _shares_by_node(held: Allocation) -> dict[int, NodeShare]:
    shares: dict[int, NodeShare] = {}
    for share in held.placement:
        have = shares.get(share.node, NO_SHARE)
        shares[share.node] = NodeShare(
            have.gpus + len(share.gpus), have.cpu_milli + share.cpu_milli, have.memory_mib + share.memory_mib
        )
    return shares


def _gpus_by_node(held: Allocation | None) -> dict[int, tuple[int, ...]]:
    gpus: dict[int, tuple[int, ...]] = {}
    for share in held.placement if held is not None else ():
        gpus[share.node] = gpus.get(share.node, ()) + share.gpus
    return gpus
