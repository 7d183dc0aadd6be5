"""Status of jobs, nodes and tenants as the API reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite

from msgspec.structs import replace

from refold.client.api import (
    Jobs,
    JobsQuery,
    JobState,
    JobStatus,
    NodeGpus,
    NodeStatus,
    TenantStatus,
    TimeEstimate,
    UserStatus,
)
from refold.core import Header, TenantUser, View
from refold.journal import JobRecord
from refold.model import (
    DAY,
    HOUR,
    WHOLE,
    Allocation,
    Cluster,
    Job,
    Seconds,
    StartEstimate,
    Wait,
    consent_of,
    run_plan,
)
from refold.placement import Power
from refold.policies.common import FairShare
from refold.server.auto_requests import describe_choices
from refold.server.job_table import JobSelector
from refold.server.live_state import JobBefore, LiveState
from refold.server.start_forecasts import StartForecasts
from refold.server.store import with_launch
from refold.server.wait_texts import RunNote, WaitTexts, WallTime, no_note
from refold.simulator import default_settings

UNKNOWN_POWER = (None, None)

STARTING = "Starting"
"""The reason of a job whose run was submitted to the engine and has not begun there."""


class JobStates:
    """Status of active jobs, from the scheduler's view, the job table and the forecasts.

    What is not on disk yet is not shown: a step that cannot be committed may have to be forgotten.
    """

    def __init__(self, state: LiveState, forecasts: StartForecasts, run_note: RunNote = no_note) -> None:
        self._view, self._job_table, self._wall_time = state.view, state.job_table.records, state.wall_time
        self._uncommitted = state.uncommitted
        self._forecasts = forecasts
        self._run_note = run_note
        self._texts = WaitTexts(self._view, self._job_table, self._wall_time, run_note)

    def page(self, query: JobsQuery) -> Jobs:
        first, end = query.after, query.after + query.limit
        filters = (query.state, query.tenant, query.user, query.name, query.match)
        if not any(filters):  # counting does not need to visit every job
            shown, total = list(islice(self.all_jobs(), first, end)), self._count()
        else:
            selector = JobSelector(query.match) if query.match else None
            matching = [
                entry
                for entry in self.all_jobs()
                if _matches(query, entry[0], entry[1]) and (selector is None or selector.matches(entry[1]))
            ]
            shown, total = matching[first:end], len(matching)
        next_page = first + len(shown)
        return Jobs([self.status(*entry) for entry in shown], total, next_page if shown and next_page < total else None)

    def all_jobs(self) -> Iterator[tuple[JobState, Job, int]]:
        """Yield running jobs, then queued jobs with their positions, then held and infeasible jobs."""
        if not self._uncommitted:
            yield from self._jobs_of_view()
            return
        for state, job, position in self._jobs_of_view():
            if job.id not in self._uncommitted:
                yield state, job, position
        for before in filter(None, self._uncommitted.values()):
            yield before.state, before.job, 0

    def _jobs_of_view(self) -> Iterator[tuple[JobState, Job, int]]:
        view = self._view
        for run in view.runs.values():
            yield ("stopping" if run.stopping else "running"), view.active[run.job], 0
        for position, job in enumerate(view.waiting.values(), start=1):
            yield "waiting", job, position
        for job in view.held.values():
            yield "held", job, 0
        for job in view.infeasible.values():
            yield "infeasible", job, 0

    def _count(self) -> int:
        """Return the number of jobs that `all_jobs` yields."""
        view, changed = self._view, self._uncommitted
        hidden = sum(job_before(view, job_id) is not None for job_id in changed)
        shown = len(changed) - sum(before is None for before in changed.values())
        return len(view.active) + len(view.waiting) + len(view.held) + len(view.infeasible) - hidden + shown

    def positions(self) -> dict[str, int]:
        return {job_id: position for position, job_id in enumerate(self._view.waiting, start=1)}

    def state(self, job_id: str, positions: Mapping[str, int] | None = None) -> tuple[JobState, Job, int] | None:
        """Return state, job and queue position of an active job; None if it is not active."""
        if job_id in self._uncommitted:
            before = self._uncommitted[job_id]
            return None if before is None else (before.state, before.job, 0)
        found = job_before(self._view, job_id)
        if found is None:
            return None
        position = 0
        if found.state == "waiting":
            position = self._view.jobs_ahead(job_id) + 1 if positions is None else positions[job_id]
        return found.state, found.job, position

    def status(self, state: JobState, job: Job, position: int) -> JobStatus:
        view, record = self._view, self._job_table.get(job.id)
        if record is None:  # it ends in the step that is being committed
            return _base_status(job, state, self._wall_time, None)
        run = view.runs.get(job.id) if state in ("running", "stopping") else None
        wait = None if run is not None or job.id in self._uncommitted else self._reason(job.id, position)
        note = "" if run is None else self._run_note(job.id)
        estimate = self._forecasts.estimate(job.id)
        end = self._forecasts.end_estimate(job.id)
        return replace(
            _base_status(job, state, self._wall_time, None if run is None else run.allocation),
            started=_optional_time(record.first_started, self._wall_time),
            runs=record.runs,
            placement=[] if run is None else wire_placement(run.allocation, view.cluster),
            domains={} if run is None else wire_domains(run.allocation, view.cluster),
            reason=(STARTING if note and state == "running" else "") if wait is None else wait.reason.value,
            message=note or record.why if wait is None else self._texts.of(job, wait),
            start_estimate=None if estimate is None else wire_estimate(estimate, self._wall_time),
            end_estimate=None if end is None else wire_estimate(end, self._wall_time),
            steps_done=view.steps_done(job.id)[0],
            loss=view.loss(job.id),
            samples_per_second=view.samples_per_second(job.id),
            position=position,
            warning=record.warning,
            instances=job.demand.instances if run is None else len(run.allocation.placement),
            cpu_seconds=record.cpu_seconds,
            peak_memory_mib=record.peak_memory_mib,
        )

    def _reason(self, job_id: str, position: int) -> Wait:
        """Return why a job waits. Passing its position spares the view from counting the jobs ahead."""
        return self._view.reason(job_id, max(0, position - 1))


def _matches(query: JobsQuery, state: JobState, job: Job) -> bool:
    return (
        (not query.state or state in query.state)
        and query.tenant in ("", job.tenant)
        and query.user in ("", job.user)
        and query.name in ("", job.group)
    )


def job_before(view: View, job_id: str) -> JobBefore | None:
    """Return an active job and its state, before it changes; None if it is not active."""
    if (run := view.runs.get(job_id)) is not None:
        return JobBefore("stopping" if run.stopping else "running", view.active[job_id])
    if job_id in view.waiting:
        return JobBefore("waiting", view.waiting[job_id])
    if job_id in view.held:
        return JobBefore("held", view.held[job_id])
    return JobBefore("infeasible", view.infeasible[job_id]) if job_id in view.infeasible else None


def ended_status(record: JobRecord, wall_time: WallTime) -> JobStatus:
    return replace(
        _base_status(record.job, record.state, wall_time, None if record.last is None else record.last.allocation),
        started=_optional_time(record.first_started, wall_time),
        ended=_optional_time(record.ended, wall_time),
        runs=record.runs,
        message=record.message,
        steps_done=record.steps,
        loss=record.loss,
        exit_code=record.exit_code,
        cpu_seconds=record.cpu_seconds,
        peak_memory_mib=record.peak_memory_mib,
    )


def _base_status(job: Job, state: JobState, wall_time: WallTime, allocation: Allocation | None) -> JobStatus:
    """Return what active and ended jobs have in common. `allocation`: that of the current or last run."""
    plan = None if allocation is None else run_plan(job, allocation)
    status = JobStatus(
        id=job.id,
        name=job.group,
        state=state,
        tenant=job.tenant,
        user=job.user,
        job_class=job.job_class,
        priority=job.priority,
        demand=str(job.demand),
        gpus=job.demand.total_gpus if allocation is None else allocation.gpu_milli / WHOLE,
        plan="" if plan is None else str(plan),
        submitted=wall_time(job.submitted),
        steps=job.steps,
        time_limit=job.time_limit,
        instances=job.demand.instances,
        array="" if job.launch.array is None else job.launch.array.array,
        preemptible=job.preemptible,
        consent=consent_of(job).why,
        requested_gpus=job.demand.total_gpus,
        requested_cpus=job.demand.cpu_milli / WHOLE,
        requested_memory_mib=job.demand.memory_mib,
        auto=describe_choices(job),
    )
    return with_launch(status, job)


def _optional_time(moment: Seconds | None, wall_time: WallTime) -> float | None:
    return None if moment is None else wall_time(moment)


def wire_estimate(estimate: StartEstimate, wall_time: WallTime) -> TimeEstimate:
    """Convert a start estimate to Unix seconds."""
    return TimeEstimate(
        wall_time(estimate.at), _optional_time(estimate.soonest, wall_time), _optional_time(estimate.latest, wall_time)
    )


def wire_placement(allocation: Allocation, cluster: Cluster) -> list[NodeGpus]:
    return [
        NodeGpus(cluster.nodes[share.node].name, list(share.gpus), share.gpu_milli / WHOLE)
        for share in allocation.placement
    ]


def wire_domains(allocation: Allocation, cluster: Cluster) -> dict[str, list[str]]:
    """Return the domains of an allocation by level, named with those around them."""
    paths = [cluster.nodes[node].domains for node in sorted(allocation.nodes)]
    return {
        name: list(dict.fromkeys("/".join(path[: level + 1]) for path in paths))
        for level, name in enumerate(cluster.level_names)
    }


def node_statuses(view: View, limits: str = "") -> list[NodeStatus]:
    """Return the status of every node. `limits`: whether CPUs and memory that jobs request are enforced there."""
    jobs: dict[int, list[str]] = {}
    for run in view.runs.values():
        for node in sorted(run.allocation.nodes):
            jobs.setdefault(node, []).append(run.job)
    gpu_reasons: dict[int, list[str]] = {}
    for (node, gpu), why in sorted(view.down_gpus.items()):
        what = f"GPU {gpu} is {'drained' if view.is_drained(node, gpu) else 'down'}"
        gpu_reasons.setdefault(node, []).append(f"{what}: {why}" if why else what)
    racks = _rack_power(view)
    return [
        NodeStatus(
            node.name,
            view.is_up(index),
            node.gpus,
            node.gpu_type,
            sum(view.free_gpu_milli(index)) / WHOLE,
            jobs.get(index, []),
            view.down_reason(index) or "; ".join(gpu_reasons.get(index, ())),
            view.is_drained(index),
            node.rack,
            racks.get(node.rack, UNKNOWN_POWER)[0],
            racks.get(node.rack, UNKNOWN_POWER)[1],
            limits,
            dict(zip(view.cluster.level_names, node.domains, strict=True)),
        )
        for index, node in enumerate(view.cluster.nodes)
    ]


def _rack_power(view: View) -> dict[str, tuple[float, float | None]]:
    """Return the modelled power of each rack and its limit, in watts."""
    power = Power(view.cluster)
    if not power.is_modelled:
        return {}
    draw, limits = power.draw(view.trial().free).tolist(), power.limit.tolist()
    return {
        name: (watts, limit if isfinite(limit) else None)
        for name, watts, limit in zip(power.names, draw, limits, strict=True)
    }


def tenant_statuses(view: View) -> list[TenantStatus]:
    configured = {tenant.name: tenant for tenant in view.cluster.tenants}
    running: dict[str, list[float]] = {}
    waiting: dict[str, list[float]] = {}
    for run in view.runs.values():
        running.setdefault(view.active[run.job].tenant, []).append(run.allocation.gpu_milli / WHOLE)
    for jobs in (view.waiting, view.held):
        for job in jobs.values():
            waiting.setdefault(job.tenant, []).append(job.demand.total_gpus)
    names = sorted({*configured, *running, *waiting})
    return [
        TenantStatus(
            name,
            configured[name].quota_gpus if name in configured else 0.0,
            configured[name].limit_gpus if name in configured else 0.0,
            len(running.get(name, [])),
            sum(running.get(name, [])),
            len(waiting.get(name, [])),
            sum(waiting.get(name, [])),
        )
        for name in names
    ]


# Status of users as the API reports it: their jobs, what they have used, and how that affects their jobs.

HALF_LIFE = 7 * DAY
"""Half-life of what users have used, if the policy has none."""


def user_statuses(view: View, header: Header) -> list[UserStatus]:
    """Return every user that has jobs or has used GPU time; only those with jobs have a share and a weight."""
    settings = {**default_settings(header.policy), **header.settings}
    half_life = settings.get("fair_share_half_life", HALF_LIFE)
    strength = settings.get("fair_share", 0.0)
    running: dict[TenantUser, list[float]] = {}
    waiting: dict[TenantUser, list[float]] = {}
    for run in view.runs.values():
        job = view.active[run.job]
        running.setdefault(TenantUser(job.tenant, job.user), []).append(run.allocation.gpu_milli / WHOLE)
    for job in (*view.waiting.values(), *view.held.values()):
        waiting.setdefault(TenantUser(job.tenant, job.user), []).append(job.demand.total_gpus)
    used = view.decayed_usage(half_life)
    shares = FairShare(strength, half_life).shares(view, (*view.active.values(), *view.waiting.values()))
    return [
        UserStatus(
            account.user,
            account.tenant,
            len(running.get(account, [])),
            sum(running.get(account, [])),
            len(waiting.get(account, [])),
            sum(waiting.get(account, [])),
            used.get(account, 0.0) / HOUR,
            shares[account].used if account in shares else None,
            shares[account].share if account in shares else None,
            shares[account].weight if account in shares and strength else None,
        )
        for account in sorted({*running, *waiting, *used})
    ]
