"""How jobs, nodes and tenants stand, as they are told to people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
from msgspec.structs import replace

from refold.api import Interval, Jobs, JobState, JobStatus, NodeStatus, Place, TenantStatus
from refold.core import View
from refold.model import WHOLE, Allocation, Cluster, Job, Seconds, StartEstimate, Wait
from refold.server.drained_gpus import TENANT, drained_gpus, is_drain_placeholder
from refold.server.job_table import EndedJobNotice, JobRecord

Wall = Callable[[Seconds], float]
"""A moment of the journal in Unix seconds."""


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs somebody asks for. What is empty asks for nothing."""

    states: tuple[JobState, ...] = ()
    tenant: str = ""
    user: str = ""
    name: str = ""

    def includes(self, state: JobState, job: Job) -> bool:
        """Whether a job is one of them."""
        return (
            (not self.states or state in self.states)
            and self.tenant in ("", job.tenant)
            and self.user in ("", job.user)
            and self.name in ("", job.group)
        )


EVERYBODY = JobFilter()


class JobStates:
    """Jobs that are not over, from what the scheduler and the job_table know."""

    def __init__(self, view: View, job_table: dict[str, JobRecord], wall: Wall) -> None:
        self._view, self._job_table, self._wall = view, job_table, wall

    def page(self, wanted: JobFilter, limit: int, after: int) -> Jobs:
        """Some of those that are wanted, after so many others, and how many there are of them."""
        if wanted == EVERYBODY:  # they need not all be looked at to be counted
            shown, total = list(islice(self.everybody(), after, after + limit)), self._count()
        else:
            chosen = [one for one in self.everybody() if wanted.includes(one[0], one[1])]
            shown, total = chosen[after : after + limit], len(chosen)
        more = after + len(shown)
        return Jobs([self.status(*one) for one in shown], total, more if shown and more < total else None)

    def everybody(self) -> Iterator[tuple[JobState, Job, int]]:
        """Those that run, then those that wait in their order with their places, then the others."""
        view = self._view
        for run in view.runs.values():
            job = view.active[run.job]
            if not is_drain_placeholder(job):
                yield ("stopping" if run.stopping else "running"), job, 0
        for place, job in enumerate(view.waiting.values(), start=1):
            if not is_drain_placeholder(job):
                yield "waiting", job, place
        for job in view.held.values():
            if not is_drain_placeholder(job):
                yield "held", job, 0
        for job in view.infeasible.values():
            if not is_drain_placeholder(job):
                yield "infeasible", job, 0

    def _count(self) -> int:
        """How many `everybody` goes through. Stand-ins are held or run: those that wait need not be looked at."""
        view = self._view
        placeholders = sum([job.tenant for job in jobs.values()].count(TENANT) for jobs in (view.active, view.held))
        return len(view.active) + len(view.waiting) + len(view.held) + len(view.infeasible) - placeholders

    def state(self, job_id: str) -> tuple[JobState, Job, int] | None:
        """Where one stands; None: it is over, or never was."""
        view = self._view
        if job_id in view.runs:
            return ("stopping" if view.runs[job_id].stopping else "running"), view.active[job_id], 0
        if job_id in view.waiting:
            return "waiting", view.waiting[job_id], view.jobs_before(job_id) + 1
        if job_id in view.held:
            return "held", view.held[job_id], 0
        return ("infeasible", view.infeasible[job_id], 0) if job_id in view.infeasible else None

    def status(self, state: JobState, job: Job, place: int) -> JobStatus:
        """All that is told of a job."""
        view, record = self._view, self._job_table[job.id]
        run = view.runs.get(job.id)
        wait = None if run is not None else self._reason(job.id, place)
        expected = view.start_estimate(job.id)
        return replace(
            _asked(job, state, self._wall),
            started=_moment(record.first_started, self._wall),
            runs=record.runs,
            where=[] if run is None else places(run.allocation, view.cluster),
            plan="" if run is None or run.allocation.plan is None else str(run.allocation.plan),
            reason="" if wait is None else wait.reason.value,
            why=record.why if wait is None else wait_text(wait, job),
            start_estimate=None if expected is None else interval(expected, self._wall),
            steps_done=view.steps_done(job.id)[0],
            place=place,
            warning=record.warning,
            instances=job.demand.instances if run is None else len(run.allocation.placement),
        )

    def _reason(self, job_id: str, place: int) -> Wait:
        """The view counts those before a job; whoever lists them all has counted already."""
        return self._view.reason(job_id, max(0, place - 1))


def ended_status(over: EndedJobNotice, wall: Wall, now: Seconds) -> JobStatus:
    """All that is told of a job for ever, once it is over."""
    record = over.record
    return replace(
        _asked(record.job, over.state, wall),
        started=_moment(record.first_started, wall),
        ended=wall(now),
        runs=record.runs,
        why=over.why,
        exit_code=over.exit_code,
    )


def _asked(job: Job, state: JobState, wall: Wall) -> JobStatus:
    return JobStatus(
        id=job.id,
        name=job.group,
        state=state,
        tenant=job.tenant,
        user=job.user,
        job_class=job.job_class,
        priority=job.priority,
        demand=str(job.demand),
        gpus=job.demand.total_gpus,
        submitted=wall(job.submitted),
        steps=job.steps,
        time_limit=job.time_limit,
        instances=job.demand.instances,
    )


def _moment(moment: Seconds | None, wall: Wall) -> float | None:
    return None if moment is None else wall(moment)


def interval(expected: StartEstimate, wall: Wall) -> Interval:
    """When a job may start, in Unix seconds."""
    return Interval(wall(expected.at), _moment(expected.soonest, wall), _moment(expected.latest, wall))


def places(allocation: Allocation, cluster: Cluster) -> list[Place]:
    """Which GPUs of which nodes."""
    return [
        Place(cluster.nodes[share.node].name, list(share.gpus), share.gpu_milli / WHOLE)
        for share in allocation.placement
    ]


def wait_text(wait: Wait, job: Job) -> str:
    """'0 of 12 nodes fit: 12 × less than 8 GPUs free', '3 jobs before it'."""
    if wait.shortage is not None:
        gpus = job.demand.gpus * job.demand.gpu_milli / WHOLE
        return wait.shortage.text(f"{gpus:g} GPU{'s' * (gpus != 1)}")
    return f"{wait.ahead:,} job{'s' * (wait.ahead != 1)} before it" if wait.ahead else ""


def node_statuses(view: View, drained_for: dict[str, str]) -> list[NodeStatus]:
    """Every node: what is free on it, and whose jobs run there. `drained_for`: why some take no work."""
    jobs: dict[int, list[str]] = {}
    taken: dict[int, int] = {}
    for run in view.runs.values():
        for share in run.allocation.placement:
            taken[share.node] = taken.get(share.node, 0) + len(share.gpus) * share.gpu_milli
            if not is_drain_placeholder(view.active[run.job]) and run.job not in jobs.setdefault(share.node, []):
                jobs[share.node].append(run.job)
    why = {name: f"GPU {gpu} is drained: {reason}" for (name, gpu), reason in drained_gpus(view).items()}
    return [
        NodeStatus(
            node.name,
            view.is_up(index),
            node.gpus,
            node.gpu_type,
            node.gpus - taken.get(index, 0) / WHOLE,
            jobs.get(index, []),
            drained_for.get(node.name, "") or why.get(node.name, ""),
        )
        for index, node in enumerate(view.cluster.nodes)
    ]


def tenant_statuses(view: View) -> list[TenantStatus]:
    """Every tenant that is named in the configuration or has jobs."""
    named = {tenant.name: tenant for tenant in view.cluster.tenants}
    running: dict[str, list[float]] = {}
    waiting: dict[str, list[float]] = {}
    for run in view.runs.values():
        running.setdefault(view.active[run.job].tenant, []).append(run.allocation.gpu_milli / WHOLE)
    for jobs in (view.waiting, view.held):
        for job in jobs.values():
            waiting.setdefault(job.tenant, []).append(job.demand.total_gpus)
    everybody = sorted({*named, *running, *waiting} - {TENANT})
    return [
        TenantStatus(
            name,
            named[name].quota_gpus if name in named else 0.0,
            named[name].limit_gpus if name in named else 0.0,
            len(running.get(name, [])),
            sum(running.get(name, [])),
            len(waiting.get(name, [])),
            sum(waiting.get(name, [])),
        )
        for name in everybody
    ]
