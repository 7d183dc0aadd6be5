"""The one place where a decision is checked. It is admitted whole or refused whole, naming the policy and the rule."""

from __future__ import annotations

from refold.core.state import State
from refold.errors import BadDecision
from refold.model import Allocation, Decision, Demand, Job, Placement, Reshape, Start
from refold.model.allocation import union_of

RULES = {
    "waiting": "only a job that waits can be started, once",
    "running": "only a run that has not been told to stop can be stopped or reshaped, once",
    "gang": "every instance gets exactly what was asked for, or the job was submitted as reshapable",
    "preemptible": "a job that was submitted as not preemptible is not stopped or reshaped",
    "type": "an instance goes to a GPU type that its job accepts",
    "free": "what is started now is free now; GPUs are shared up to 1.0",
    "reason": "a reason is given for a job that waits",
    "wake": "a policy is woken in the future",
}
"""Every rule by the name that BadDecision gives."""


def admit(state: State, decision: Decision, policy: str) -> dict[str, Placement]:
    """Check every rule and take what the decision starts; or raise, having changed nothing.

    Returns what each reshaped job holds until its old run has stopped.
    """
    if not (decision.starts or decision.stops or decision.reshapes or decision.waits):
        _check_wake(state, decision, policy)
        return {}
    named: set[str] = set()
    for start in decision.starts:
        _check_start(state, start, named, policy)
    for stop in decision.stops:
        _check_running(state, stop.job, named, policy)
    for reshape in decision.reshapes:
        _check_running(state, reshape.job, named, policy)
        _check_types(state, state.active[reshape.job], reshape.allocation, policy)
        if not state.active[reshape.job].reshapable:
            raise BadDecision(policy, "gang", f"reshaped job {reshape.job!r}, which is not reshapable")
    for wait in decision.waits:
        if wait.job not in state.waiting or wait.job in named:
            raise BadDecision(policy, "reason", f"says why {wait.job!r} waits, which does not")
    _check_wake(state, decision, policy)
    return _take(state, decision, policy)


def _check_wake(state: State, decision: Decision, policy: str) -> None:
    if decision.wake_at is not None and not decision.wake_at > state.now:
        raise BadDecision(policy, "wake", f"asked at {state.now} to be woken at {decision.wake_at}")


def _check_start(state: State, start: Start, named: set[str], policy: str) -> None:
    job = state.waiting.get(start.job)
    if job is None or start.job in named:
        raise BadDecision(policy, "waiting", f"started job {start.job!r}, which {_standing(state, start.job)}")
    named.add(start.job)
    if not job.reshapable and not _is_what_was_asked(start.allocation, job.demand):
        raise BadDecision(policy, "gang", f"started job {job.id!r} on other than the {job.demand} it asked for")
    _check_types(state, job, start.allocation, policy)


def _is_what_was_asked(allocation: Allocation, demand: Demand) -> bool:
    placement = allocation.placement
    return len(placement) == demand.instances and all(
        len(share.gpus) == demand.gpus
        and share.gpu_milli == demand.gpu_milli
        and share.cpu_milli == demand.cpu_milli
        and share.memory_mib == demand.memory_mib
        for share in placement
    )


def _check_types(state: State, job: Job, allocation: Allocation, policy: str) -> None:
    for share in allocation.placement:
        if len(set(share.gpus)) != len(share.gpus):
            raise BadDecision(policy, "free", f"gave job {job.id!r} the same GPU twice in {share}")
        if not 0 <= share.node < len(state.cluster.nodes):
            raise BadDecision(policy, "free", f"put job {job.id!r} on node {share.node}, which does not exist")
        accepted = job.demand.gpu_types
        found = state.cluster.nodes[share.node].gpu_type
        if accepted and share.gpus and found not in accepted:
            raise BadDecision(policy, "type", f"put job {job.id!r} on {found}, it accepts {'|'.join(accepted)}")


def _check_running(state: State, job_id: str, named: set[str], policy: str) -> None:
    run = state.runs.get(job_id)
    if run is None or run.stopping or job_id in named:
        raise BadDecision(policy, "running", f"changed job {job_id!r}, which {_standing(state, job_id)}")
    if not state.active[job_id].preemptible:
        raise BadDecision(policy, "preemptible", f"changed job {job_id!r}, which is not preemptible")
    named.add(job_id)


def _standing(state: State, job_id: str) -> str:
    if job_id in state.runs:
        return "is stopping" if state.runs[job_id].stopping else "is running"
    if job_id in state.waiting:
        return "is named twice or waits"
    return "never fits this cluster" if job_id in state.never else "is not known"


def _take(state: State, decision: Decision, policy: str) -> dict[str, Placement]:
    taken: list[Placement] = []
    for start in decision.starts:
        refusal = state.free.take(start.allocation.placement)
        if refusal:
            _give_back(state, taken)
            raise BadDecision(policy, "free", f"started job {start.job!r} where {refusal}")
        taken.append(start.allocation.placement)
    return _take_reshaped(state, decision.reshapes, taken, policy) if decision.reshapes else {}


def _take_reshaped(
    state: State, reshapes: tuple[Reshape, ...], taken: list[Placement], policy: str
) -> dict[str, Placement]:
    holding: dict[str, Placement] = {}
    for reshape in reshapes:
        old = state.held_by(reshape.job)
        both = union_of(old, reshape.allocation.placement)
        state.free.give_back(old)
        refusal = state.free.take(both)
        if refusal:
            state.free.take_back(old)
            for job_id, held in holding.items():
                state.free.give_back(held)
                state.free.take_back(state.held_by(job_id))
            _give_back(state, taken)
            raise BadDecision(policy, "free", f"reshaped job {reshape.job!r} to where {refusal}")
        holding[reshape.job] = both
    return holding


def _give_back(state: State, taken: list[Placement]) -> None:
    for placement in taken:
        state.free.give_back(placement)
