# cython: boundscheck=True, wraparound=True
"""The check of every decision. It is accepted or rejected as a whole; the error names the policy and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import cython

from refold.errors import BadDecision
from refold.model import WHOLE, Allocation, Decision, Demand, Job, Placement, Reshape, Start, additional_shares

if not cython.compiled:
    from refold.core.state import State

RULES = {
    "waiting": "only a waiting job can be started, and only once per decision",
    "running": "only a run that is not stopping can be stopped or reshaped, and only once per decision",
    "gang": "every instance gets exactly what was requested, unless the job is reshapable",
    "preemptible": "a job that is not preemptible, or not again, is not stopped or reshaped",
    "type": "an instance is placed on a GPU type that its job accepts",
    "node": "an instance is placed on a node that its job is allowed on",
    "topology": "the instances of a job are placed in the domains that it requires",
    "limit": "a job of a tenant with a limit gets at most the GPUs with which it was admitted",
    "free": "an allocation consists of resources that are free now; the shares of a GPU sum up to at most 1.0",
    "reason": "reasons and start estimates are given for waiting jobs only",
    "wake": "the wake-up time is in the future",
}
"""The rules by the name that `BadDecision` reports."""


def check_and_allocate(
    state: State, decision: Decision, policy: str, preallocated: Sequence[Placement] = ()
) -> dict[str, Placement]:
    """Check every rule and allocate what the decision starts and reshapes; or raise and leave the state unchanged.

    `preallocated` are placements of the decision that were already allocated when the policy found them; on an error
    they are released as well. Returns the resources that each reshaped job holds until its old run has stopped.
    """
    allocated = list(preallocated)
    allocated_ids = set(map(id, preallocated))
    try:
        _check(state, decision, allocated_ids, policy)
        _allocate_starts(state, decision, allocated_ids, allocated, policy)
        return _allocate_reshapes(state, decision, allocated, policy)
    except BaseException:
        for placement in allocated:
            state.free.release(placement)
        raise


def _check(state: State, decision: Decision, allocated_ids: set[int], policy: str) -> None:
    seen_jobs: set[str] = set()
    for start in decision.starts:
        _check_start(state, start, seen_jobs, policy)
        if id(start.allocation.placement) not in allocated_ids:
            _check_shares(state, start.job, start.allocation, policy)
    for stop in decision.stops:
        _check_running(state, stop.job, seen_jobs, policy)
    for end in decision.ends:
        _check_running(state, end.job, seen_jobs, policy, ending=True)
    for reshape in decision.reshapes:
        _check_running(state, reshape.job, seen_jobs, policy)
        _check_shares(state, reshape.job, reshape.allocation, policy)
        stays_on = state.running.runs[reshape.job].allocation.nodes
        _check_nodes(state, state.running.jobs[reshape.job], reshape.allocation, policy, stays_on)
        if not _is_move(state, reshape) and not state.running.jobs[reshape.job].reshapable:
            raise BadDecision(policy, "gang", f"reshaped job {reshape.job!r}, which is not reshapable")
        _check_limit(state, state.running.jobs[reshape.job], reshape.allocation, policy)
    for flag in decision.flags:
        if flag.job not in state.running.runs:
            raise BadDecision(
                policy, "running", f"flagged job {flag.job!r}, which {_state_text(state, flag.job, seen_jobs)}"
            )
    for estimate in decision.start_estimates:
        if estimate.job not in state.queue.waiting or estimate.job in seen_jobs:
            raise BadDecision(policy, "reason", f"estimates the start of job {estimate.job!r}, which is not waiting")
    for wait in decision.waits:
        if wait.job not in state.queue.waiting or wait.job in seen_jobs:
            raise BadDecision(policy, "reason", f"gives a reason for job {wait.job!r}, which is not waiting")
    _check_wake(state, decision, policy)


def _is_move(state: State, reshape: Reshape) -> bool:
    """Whether a reshape only moves the run: every instance gets what was requested, and the plan is the same."""
    same_plan = reshape.allocation.plan == state.running.runs[reshape.job].allocation.plan
    return same_plan and _matches_demand(reshape.allocation, state.running.jobs[reshape.job].demand)


def _check_wake(state: State, decision: Decision, policy: str) -> None:
    if decision.wake_at is not None and not state.now < decision.wake_at < inf:
        raise BadDecision(
            policy, "wake", f"set wake_at to {decision.wake_at}, expected a finite time after {state.now}"
        )


def _check_start(state: State, start: Start, seen_jobs: set[str], policy: str) -> None:
    job = state.queue.waiting.get(start.job)
    if job is None or start.job in seen_jobs:
        raise BadDecision(
            policy, "waiting", f"started job {start.job!r}, which {_state_text(state, start.job, seen_jobs)}"
        )
    seen_jobs.add(start.job)
    if not job.reshapable and not _matches_demand(start.allocation, job.demand):
        raise BadDecision(
            policy, "gang", f"started job {job.id!r} with resources other than the requested {job.demand}"
        )
    _check_nodes(state, job, start.allocation, policy)
    if job.reshapable:
        _check_limit(state, job, start.allocation, policy)


def _check_limit(state: State, job: Job, allocation: Allocation, policy: str) -> None:
    limit = state.queue.limits.max_gpu_milli(job)
    if limit is not None and allocation.gpu_milli > limit:
        action = f"gave job {job.id!r} {allocation.gpu_milli / WHOLE:g} GPUs"
        raise BadDecision(policy, "limit", f"{action}, but the limit of tenant {job.tenant!r} allows {limit / WHOLE:g}")


def _matches_demand(allocation: Allocation, demand: Demand) -> bool:
    if len(allocation.placement) != demand.instances:
        return False
    requested = (demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
    for share in allocation.placement:
        if (len(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib) != requested:
            return False
    return True


def _check_nodes(
    state: State, job: Job, allocation: Allocation, policy: str, stays_on: frozenset[int] = frozenset()
) -> None:
    """Check that the nodes are of a type and in domains that the job accepts, and that it is allowed on them or runs
    there."""
    accepted, allowed = job.demand.gpu_types, job.demand.allowed_nodes
    if job.demand.topology is not None and job.demand.topology.is_binding:
        nodes = [share.node for share in allocation.placement]
        known = all(0 <= node < len(state.cluster.nodes) for node in nodes)
        if not (known and job.demand.is_met_by(nodes, state.cluster)):
            required = f"requires its instances {job.demand.topology}"
            raise BadDecision(policy, "topology", f"placed job {job.id!r} on nodes {nodes}, but it {required}")
    if not accepted and allowed is None:
        return
    for share in allocation.placement:
        if allowed is not None and share.node not in allowed and share.node not in stays_on:
            known = 0 <= share.node < len(state.cluster.nodes)
            name = state.cluster.nodes[share.node].name if known else str(share.node)
            raise BadDecision(policy, "node", f"placed job {job.id!r} on {name!r}, which does not meet its constraints")
        gpu_type = state.cluster.nodes[share.node].gpu_type if 0 <= share.node < len(state.cluster.nodes) else "nothing"
        if share.gpus and accepted and gpu_type not in accepted:
            raise BadDecision(
                policy, "type", f"placed job {job.id!r} on {gpu_type}, but it accepts {'|'.join(accepted)}"
            )


def _check_shares(state: State, job_id: str, allocation: Allocation, policy: str) -> None:
    """Check that the nodes, GPUs and amounts of an allocation are valid on this cluster."""
    nodes = state.cluster.nodes
    if not allocation.placement:
        raise BadDecision(policy, "gang", f"gave job {job_id!r} an empty allocation")
    for share in allocation.placement:
        if not 0 <= share.node < len(nodes):
            raise BadDecision(policy, "free", f"placed job {job_id!r} on node {share.node}, which does not exist")
        if not (1 <= share.gpu_milli <= WHOLE and share.cpu_milli >= 0 and share.memory_mib >= 0):
            raise BadDecision(policy, "free", f"gave job {job_id!r} invalid amounts in {share}")
        if share.gpus and (min(share.gpus) < 0 or max(share.gpus) >= nodes[share.node].gpus):
            name = nodes[share.node].name
            raise BadDecision(policy, "free", f"gave job {job_id!r} GPUs {share.gpus} of {name!r}: no such GPU")
        if len(set(share.gpus)) != len(share.gpus):
            raise BadDecision(policy, "free", f"gave job {job_id!r} the same GPU twice in {share}")


def _check_running(state: State, job_id: str, seen_jobs: set[str], policy: str, *, ending: bool = False) -> None:
    run = state.running.runs.get(job_id)
    if run is None or run.stopping or job_id in seen_jobs:
        raise BadDecision(policy, "running", f"changed job {job_id!r}, which {_state_text(state, job_id, seen_jobs)}")
    if not ending and state.running.changeable_at(job_id) > state.now:
        consents = state.running.jobs[job_id].preemptible
        problem = "was changed as often as it allows" if consents else "is not preemptible"
        raise BadDecision(policy, "preemptible", f"changed job {job_id!r}, which {problem}")
    seen_jobs.add(job_id)


def _state_text(state: State, job_id: str, seen_jobs: set[str]) -> str:
    if job_id in seen_jobs:
        return "appears twice in the decision"
    if job_id in state.running.runs:
        return "is stopping" if state.running.runs[job_id].stopping else "is running"
    if job_id in state.queue.waiting:
        return "is waiting"
    if job_id in state.queue.held:
        return "is held"
    return "does not fit even into the empty cluster" if job_id in state.queue.infeasible else "is unknown"


def _allocate_starts(
    state: State, decision: Decision, allocated_ids: set[int], allocated: list[Placement], policy: str
) -> None:
    for start in decision.starts:
        placement = start.allocation.placement
        if id(placement) in allocated_ids:
            allocated_ids.remove(id(placement))  # it was allocated once, so only one job may have it
            continue
        problem = state.free.take(placement)
        if problem:
            raise BadDecision(policy, "free", f"started job {start.job!r}, but {problem}")
        allocated.append(placement)


def _allocate_reshapes(
    state: State, decision: Decision, allocated: list[Placement], policy: str
) -> dict[str, Placement]:
    holding: dict[str, Placement] = {}
    for reshape in decision.reshapes:
        held = state.running.held_by(reshape.job)
        additional = additional_shares(reshape.allocation.placement, held)
        problem = state.free.take(additional)
        if problem:
            raise BadDecision(policy, "free", f"reshaped job {reshape.job!r}, but {problem}")
        allocated.append(additional)
        holding[reshape.job] = held + additional
    return holding
