"""Refold's goal `throughput`: the shapes with the largest sum of speeds, each relative to that of the job's request."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from refold.model import Allocation, Seconds
from refold.placement import Placer
from refold.policies.common import Draft, ThroughputPacker
from refold.policies.refold.jobs import RoundJobs


def maximise_throughput(jobs: RoundJobs, draft: Draft, placer: Placer) -> Seconds:
    """Choose shapes for jobs with known speeds; keep the present ones if the change does not pay back.

    Returns when the change pays back; infinity if it is made now or is not worthwhile.
    """
    before, held = draft.snapshot(), dict(draft.allocations())
    requested_speed = {
        job_id: speed
        for job_id in (*jobs.view.waiting, *jobs.view.active)
        if draft.may_change(job_id) and (speed := jobs.requested_speed(job_id)) is not None
    }

    def throughput(job_id: str) -> float:
        return jobs.speed(job_id, held[job_id]) / requested_speed[job_id]

    now = sum(throughput(job_id) for job_id in requested_speed if job_id in held)
    then = _place_all(jobs, draft, placer, requested_speed)
    _keep_placements(draft, held)
    restarted = (job_id for job_id in draft.changed if job_id in held and job_id in requested_speed)
    lost = sum(throughput(job_id) * jobs.restart_cost(job_id) for job_id in restarted)
    for job_id in draft.changed:
        draft.changed[job_id] = f"total normalised throughput rises from {now:.2f} to {then:.2f}"
    if now and (then - now) * jobs.arrivals.gap <= lost:
        draft.restore(before)
        return jobs.arrivals.last_arrival + lost / (then - now) if then > now else inf
    return inf


def _place_all(jobs: RoundJobs, draft: Draft, placer: Placer, requested_speed: Mapping[str, float]) -> float:
    """Release these jobs and place them for the largest sum; return that sum."""
    for job_id in requested_speed:
        draft.release(job_id)
    options = {job_id: jobs.options_of(job_id) for job_id in requested_speed}
    first = frozenset(jobs.guaranteed & set(requested_speed))
    return ThroughputPacker(draft, placer, options, requested_speed, first).fill()


def _keep_placements(draft: Draft, held: Mapping[str, Allocation]) -> None:
    """Let jobs whose shape has not changed keep their placement, where that is still free."""
    for job_id, before in held.items():
        after = draft.allocation_of(job_id)
        if after is None or (after.gpus_on_node, after.plan) != (before.gpus_on_node, before.plan):
            continue
        draft.release(job_id)
        if not draft.assign(job_id, before):
            draft.assign(job_id, after)
