"""The one place where a decision is checked. It is admitted whole or refused whole, naming the policy and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from refold.core.state import State
from refold.errors import BadDecision
from refold.model import WHOLE, Allocation, Decision, Demand, Job, Placement, Reshape, Start, beyond

RULES = {
    "waiting": "only a job that waits can be started, once",
    "running": "only a run that has not been told to stop can be stopped or reshaped, once",
    "gang": "every instance gets exactly what was asked for, or the job was submitted as reshapable",
    "preemptible": "a job that was submitted as not preemptible is not stopped or reshaped",
    "type": "an instance goes to a GPU type that its job accepts",
    "limit": "a job whose tenant has a limit gets no more than what it was let in with",
    "free": "what is started now is free now; GPUs are shared up to 1.0",
    "reason": "a reason is given for a job that waits",
    "wake": "a policy is woken in the future",
}
"""Every rule by the name that BadDecision gives."""


def admit(state: State, decision: Decision, policy: str, found: Sequence[Placement] = ()) -> dict[str, Placement]:
    """Check every rule and take what the decision starts; or raise, having changed nothing.

    `found` are placements of the decision that have been taken already, when they were found. Returns what each
    reshaped job holds until its old run has stopped.
    """
    taken = list(found)
    known_to_be_free = set(map(id, found))
    try:
        _check(state, decision, known_to_be_free, policy)
        _take_starts(state, decision, known_to_be_free, taken, policy)
        return _take_reshapes(state, decision, taken, policy)
    except BaseException:
        for placement in taken:
            state.free.give_back(placement)
        raise


def _check(state: State, decision: Decision, known_to_be_free: set[int], policy: str) -> None:
    named: set[str] = set()
    for start in decision.starts:
        _check_start(state, start, named, policy)
        if id(start.allocation.placement) not in known_to_be_free:
            _check_shares(state, start.job, start.allocation, policy)
    for stop in decision.stops:
        _check_running(state, stop.job, named, policy)
    for end in decision.ends:
        _check_running(state, end.job, named, policy, may_be_stopped=True)
    for reshape in decision.reshapes:
        _check_running(state, reshape.job, named, policy)
        _check_shares(state, reshape.job, reshape.allocation, policy)
        _check_types(state, state.active[reshape.job], reshape.allocation, policy)
        if not _keeps_its_shape(state, reshape) and not state.active[reshape.job].reshapable:
            raise BadDecision(policy, "gang", f"reshaped job {reshape.job!r}, which is not reshapable")
        _check_limit(state, state.active[reshape.job], reshape.allocation, policy)
    for flag in decision.flags:
        if flag.job not in state.runs:
            raise BadDecision(
                policy, "running", f"flagged job {flag.job!r}, which {_state_text(state, flag.job, named)}"
            )
    for expected in decision.start_estimates:
        if expected.job not in state.waiting or expected.job in named:
            raise BadDecision(policy, "reason", f"says when {expected.job!r} may start, which does not wait")
    for wait in decision.waits:
        if wait.job not in state.waiting or wait.job in named:
            raise BadDecision(policy, "reason", f"says why {wait.job!r} waits, which does not")
    _check_wake(state, decision, policy)


def _keeps_its_shape(state: State, reshape: Reshape) -> bool:
    """Whether a run only moves: every instance has elsewhere what was asked for, and the plan is the same."""
    same_plan = reshape.allocation.plan == state.runs[reshape.job].allocation.plan
    return same_plan and _is_what_was_asked(reshape.allocation, state.active[reshape.job].demand)


def _check_wake(state: State, decision: Decision, policy: str) -> None:
    if decision.wake_at is not None and not state.now < decision.wake_at < inf:
        raise BadDecision(policy, "wake", f"asked at {state.now} to be woken at {decision.wake_at}")


def _check_start(state: State, start: Start, named: set[str], policy: str) -> None:
    job = state.waiting.get(start.job)
    if job is None or start.job in named:
        raise BadDecision(policy, "waiting", f"started job {start.job!r}, which {_state_text(state, start.job, named)}")
    named.add(start.job)
    if not job.reshapable and not _is_what_was_asked(start.allocation, job.demand):
        raise BadDecision(policy, "gang", f"started job {job.id!r} on other than the {job.demand} it asked for")
    _check_types(state, job, start.allocation, policy)
    if job.reshapable:
        _check_limit(state, job, start.allocation, policy)


def _check_limit(state: State, job: Job, allocation: Allocation, policy: str) -> None:
    most = state.limits.share_of(job)
    if most is not None and allocation.gpu_milli > most:
        given = f"gave job {job.id!r} {allocation.gpu_milli / WHOLE:g} GPUs"
        raise BadDecision(policy, "limit", f"{given}, tenant {job.tenant!r} may use {most / WHOLE:g} for it")


def _is_what_was_asked(allocation: Allocation, demand: Demand) -> bool:
    if len(allocation.placement) != demand.instances:
        return False
    asked = (demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
    for share in allocation.placement:
        if (len(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib) != asked:
            return False
    return True


def _check_types(state: State, job: Job, allocation: Allocation, policy: str) -> None:
    accepted = job.demand.gpu_types
    if not accepted:
        return
    for share in allocation.placement:
        found = state.cluster.nodes[share.node].gpu_type if 0 <= share.node < len(state.cluster.nodes) else "nothing"
        if share.gpus and found not in accepted:
            raise BadDecision(policy, "type", f"put job {job.id!r} on {found}, it accepts {'|'.join(accepted)}")


def _check_shares(state: State, job_id: str, allocation: Allocation, policy: str) -> None:
    """That there can be such an allocation at all."""
    nodes = state.cluster.nodes
    if not allocation.placement:
        raise BadDecision(policy, "gang", f"gave job {job_id!r} nothing at all")
    for share in allocation.placement:
        if not 0 <= share.node < len(nodes):
            raise BadDecision(policy, "free", f"put job {job_id!r} on node {share.node}, which does not exist")
        if not (1 <= share.gpu_milli <= WHOLE and share.cpu_milli >= 0 and share.memory_mib >= 0):
            raise BadDecision(policy, "free", f"gave job {job_id!r} impossible amounts in {share}")
        if share.gpus and (min(share.gpus) < 0 or max(share.gpus) >= nodes[share.node].gpus):
            name = nodes[share.node].name
            raise BadDecision(policy, "free", f"gave job {job_id!r} GPUs {share.gpus} of {name!r}: no such GPU")
        if len(set(share.gpus)) != len(share.gpus):
            raise BadDecision(policy, "free", f"gave job {job_id!r} the same GPU twice in {share}")


def _check_running(state: State, job_id: str, named: set[str], policy: str, *, may_be_stopped: bool = False) -> None:
    run = state.runs.get(job_id)
    if run is None or run.stopping or job_id in named:
        raise BadDecision(policy, "running", f"changed job {job_id!r}, which {_state_text(state, job_id, named)}")
    if not state.active[job_id].preemptible and not may_be_stopped:
        raise BadDecision(policy, "preemptible", f"changed job {job_id!r}, which is not preemptible")
    named.add(job_id)


def _state_text(state: State, job_id: str, named: set[str]) -> str:
    if job_id in named:
        return "is named twice"
    if job_id in state.runs:
        return "is stopping" if state.runs[job_id].stopping else "is running"
    if job_id in state.waiting:
        return "waits"
    if job_id in state.held:
        return "is held"
    return "never fits this cluster" if job_id in state.infeasible else "is not known"


def _take_starts(
    state: State, decision: Decision, known_to_be_free: set[int], taken: list[Placement], policy: str
) -> None:
    for start in decision.starts:
        placement = start.allocation.placement
        if id(placement) in known_to_be_free:
            known_to_be_free.remove(id(placement))  # it was taken once, for one job
            continue
        refusal = state.free.take(placement)
        if refusal:
            raise BadDecision(policy, "free", f"started job {start.job!r} where {refusal}")
        taken.append(placement)


def _take_reshapes(state: State, decision: Decision, taken: list[Placement], policy: str) -> dict[str, Placement]:
    holding: dict[str, Placement] = {}
    for reshape in decision.reshapes:
        held = state.held_by(reshape.job)
        more = beyond(reshape.allocation.placement, held)
        refusal = state.free.take(more)
        if refusal:
            raise BadDecision(policy, "free", f"reshaped job {reshape.job!r} to where {refusal}")
        taken.append(more)
        holding[reshape.job] = held + more
    return holding
