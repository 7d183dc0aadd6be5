"""Room for a guaranteed job: other guaranteed runs get their minimum, and are moved if it does not fit otherwise.

This is the last resort of preemption. What guaranteed runs hold beyond their minimum is not theirs, so a guaranteed
job must not wait for it, even if it takes several runs that are shrunk or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from refold.model import WHOLE, Allocation, Seconds, format_duration
from refold.placement import Placer
from refold.policies.common import Draft, Option
from refold.policies.refold.jobs import RoundJobs

PlaceVictim = Callable[[str, Allocation], Seconds]
"""Places a run without a guarantee again, or leaves it stopped; returns its weighted delay."""


class Clearing:
    """Places a guaranteed job on a draft by shrinking and moving others."""

    def __init__(self, jobs: RoundJobs, draft: Draft, placer: Placer, victims: Iterable[str]) -> None:
        """`victims`: the runs that may be changed, and the jobs that are about to start."""
        self._jobs, self._draft, self._placer = jobs, draft, placer
        held = {job_id: draft.allocation_of(job_id) for job_id in victims}
        self._held = {job_id: allocation for job_id, allocation in held.items() if allocation is not None}
        self._guaranteed = [job_id for job_id in self._held if job_id in jobs.guaranteed]

    def place(self, job_id: str, option: Option, skipped: int, place_victim: PlaceVictim) -> Seconds | None:
        """Place a job, and return the weighted delay of all others; None if it does not fit.

        `skipped`: number of nodes, of those with the fewest guaranteed GPUs, whose guaranteed runs are not moved.
        """
        draft = self._draft
        minimum = self._shrink()
        unguaranteed = [other for other in self._held if other not in minimum]
        for other in unguaranteed:
            draft.release(other)  # it gets its GPUs back below, if they are still free
        moved = iter(self._to_move(minimum, skipped))
        while not draft.place(job_id, self._placer, option.demand, option.plan):
            next_moved = next(moved, None)
            if next_moved is None:
                return None
            draft.release(next_moved)
        if not all(self._place_guaranteed(other, minimum[other]) for other in self._largest_first(minimum)):
            return None
        harm = sum(self._grow_back(other, job_id) for other in self._guaranteed)
        return harm + sum(place_victim(other, self._held[other]) for other in unguaranteed)

    def _shrink(self) -> dict[str, Allocation]:
        """Shrink the guaranteed runs to their minimum where they are, or move them to free GPUs; return these."""
        draft = self._draft
        for job_id in self._guaranteed:
            minimum = self._jobs.guarantee_options[job_id][0]
            if self._held[job_id].gpu_milli > minimum.gpus * WHOLE:
                draft.move(job_id, self._placer, minimum.demand, minimum.plan)
        found = {job_id: draft.allocation_of(job_id) for job_id in self._guaranteed}
        return {job_id: allocation for job_id, allocation in found.items() if allocation is not None}

    def _to_move(self, minimum: Mapping[str, Allocation], skipped: int) -> list[str]:
        """Return the guaranteed runs by node, nodes with the fewest guaranteed GPUs and their smallest runs first."""
        on_node: dict[int, dict[str, int]] = {}
        for job_id, allocation in minimum.items():
            for share in allocation.placement:
                on_node.setdefault(share.node, {})[job_id] = len(share.gpus)
        nodes = sorted(on_node, key=lambda node: (sum(on_node[node].values()), node))[skipped:]
        return [job_id for node in nodes for job_id in sorted(on_node[node], key=lambda job_id: on_node[node][job_id])]

    def _largest_first(self, minimum: Mapping[str, Allocation]) -> Sequence[str]:
        return sorted(minimum, key=lambda job_id: (-max(minimum[job_id].gpus_on_node), job_id))

    def _place_guaranteed(self, job_id: str, minimum: Allocation) -> bool:
        """Place a guaranteed run that was released, where it was if possible; return whether it fits."""
        draft = self._draft
        if draft.allocation_of(job_id) is not None or draft.assign(job_id, minimum):
            return True
        return draft.place_first(job_id, self._placer, self._jobs.guarantee_options[job_id]) is not None

    def _grow_back(self, job_id: str, preemptor: str) -> Seconds:
        """Let a guaranteed run keep what it held, if that is still free; return its weighted delay."""
        jobs, draft, held = self._jobs, self._draft, self._held[job_id]
        now_held = draft.allocation_of(job_id)
        assert now_held is not None, "guaranteed runs are placed"
        draft.release(job_id)
        if draft.assign(job_id, held):
            return 0.0
        slower = 1 - jobs.speed(job_id, now_held) / jobs.speed(job_id, held)
        later = max(0.0, jobs.remaining_time(job_id, now_held) - jobs.remaining_time(job_id, held))
        later += jobs.restart_cost(job_id)
        given = (held.gpu_milli - now_held.gpu_milli) // WHOLE
        change = f"gave {given} GPUs to {preemptor}" if given > 0 else f"moved for {preemptor}"
        draft.assign(job_id, now_held, f"{change}: −{max(0.0, slower):.0%} speed, ends {format_duration(later)} later")
        return later * jobs.weight(job_id)
