"""Admission: turn submissions into jobs with ids, tenants and dependencies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from refold.client.api import Caller, JobStatus, Submission
from refold.client.jobspec import array_jobs, check_patterns
from refold.core import Entry, Event, JobHeld, JobSubmitted
from refold.errors import BadInput, Conflict, Forbidden, TooManyRequests, Unavailable, UnknownName
from refold.model import (
    Cluster,
    Dependency,
    Job,
    Preemption,
    PreemptionRules,
    Reason,
    array_dependency,
    parse_array,
    parse_dependency,
    task_id,
)
from refold.placement import FreeResources, Power
from refold.planning.catalogue import gpu_names, matching_gpu_names
from refold.planning.plans import check_gang_command, launch_problem
from refold.server.auto_requests import choose_requests
from refold.server.environments import Environments
from refold.server.inbox import Inbox
from refold.server.job_limits import JobLimits
from refold.server.live_state import LiveState
from refold.server.notify import check_address
from refold.server.start_conditions import first_condition
from refold.server.store import ACTIVE, NewJob, StoreReader

MAX_ACTIVE_JOBS = 200_000
"""Maximum number of active jobs, that is, jobs that have not ended."""


MAX_ARRAY_BYTES = 64 * 2**20
"""Maximum size of the jobs of an array in the journal, where each task is a job of its own."""


CompleteJob = Callable[[Submission, Job], Job]


def as_submitted(_: Submission, job: Job) -> Job:
    return job


class AdmissionRules(NamedTuple):
    """Which submissions are accepted: `allowed_targets`: to which the owner limits notifications.

    `complete`: adds what the engine knows of a job, such as the nodes on which it may be placed.
    """

    preemption: PreemptionRules
    limits: JobLimits
    allowed_targets: Sequence[str] | None = None
    complete: CompleteJob = as_submitted


class Admission:
    """Turns submissions into numbered jobs. A repeated request id returns the job that it created before."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        reader: StoreReader,
        environments: Environments,
        find_job: Callable[[str], str],
        rules: AdmissionRules,
    ) -> None:
        self._preemption, self._limits, self._allowed_targets, self._complete = rules
        self._state = state
        self._inbox = inbox
        self._reader = reader
        self._environments = environments
        self._find_job = find_job
        self._empty_cluster = FreeResources(state.header.cluster)
        self._power = _limited_power(state.header.cluster)
        self._number = reader.last_numbers()[0]
        self._pending_requests: dict[str, asyncio.Future[Entry]] = {}

    async def accept(
        self, caller: Caller, submissions: Sequence[Submission], complete: CompleteJob = as_submitted
    ) -> list[str]:
        """Commit the submissions as jobs and return their ids.

        A request that was accepted before returns the job it created then. `complete` adds what submissions do not say.
        """
        active = len(self._state.job_table.records)
        if active + sum(map(_job_count, submissions)) > MAX_ACTIVE_JOBS:
            raise TooManyRequests(
                f"too many active jobs: {active:,}, at most {MAX_ACTIVE_JOBS:,} are allowed;"
                " submit again when some have ended"
            )
        requests = [_request_key(caller, submission.request) for submission in submissions]
        keys = [request for request in requests if request]
        if len(keys) != len(set(keys)):
            raise BadInput("request: two submissions have the same value, expected unique values")
        self._environments.check(caller, submissions)
        await self.check_patterns(submissions)
        accepted = await self._find_accepted(requests)
        # No await between here and `enqueue`, so no other task can accept the same requests.
        ids: list[str] = []
        new: list[NewJob] = []
        events: list[Event] = []
        for submission, request, earlier in zip(submissions, requests, accepted, strict=True):
            if earlier:
                ids += _ids_of_request(earlier, submission)
                continue
            for job in self._new_jobs(caller, submission, request, self._number + len(new) + 1, complete):
                new.append(job)
                ids.append(job.job.id)
                events.append(JobSubmitted(job.job))
                if reason := self.hold_reason(submission, job.job):
                    events.append(JobHeld(job.job.id, reason))
        if new:
            reserved = self._limits.reserve(job.job for job in new)
            try:
                committed = self._inbox.enqueue(events, new)
            except Unavailable:
                self._limits.cancel(reserved)
                raise
            self._number += len(new)
            self._track_requests(committed, new)
            await self._inbox.wait_until_committed(committed)
        return ids

    def exported_names(self, caller: Caller, submission: Submission) -> list[str]:
        """Return the names of the variables that the job would inherit from its submitter."""
        return self._environments.names(caller, submission)

    async def check_patterns(self, submissions: Sequence[Submission]) -> None:
        """Reject invalid regular expressions.

        There may be thousands, so they are compiled in a thread and other calls are served meanwhile.
        """
        if patterns := dict.fromkeys(pattern for submission in submissions for pattern in submission.patterns):
            await asyncio.to_thread(check_patterns, patterns)

    async def _find_accepted(self, requests: Sequence[str]) -> list[str]:
        """Return the first job of each request that was accepted before, else ''.

        Waits for requests that are being committed.
        """
        while pending := [self._pending_requests[request] for request in requests if request in self._pending_requests]:
            await self._inbox.wait_until_committed(pending[0])
        return [(self._reader.job_of_request(request) or "") if request else "" for request in requests]

    def _track_requests(self, committed: asyncio.Future[Entry], new: Sequence[NewJob]) -> None:
        """Record requests as pending until they are on disk, even if the caller stops waiting."""
        requests = [job.request for job in new if job.request]
        self._pending_requests |= dict.fromkeys(requests, committed)

        def forget(_: asyncio.Future[Entry]) -> None:
            for request in requests:
                del self._pending_requests[request]

        committed.add_done_callback(forget)

    def _new_jobs(
        self, caller: Caller, submission: Submission, request: str, number: int, complete: CompleteJob
    ) -> list[NewJob]:
        job = complete(submission, self.build_job(caller, submission, number))
        if not job.launch.gang:  # pods get no variables of Refold
            check_gang_command(submission.name, job.command, job.demand.instances)
        if not submission.allow_impossible and (problem := self.infeasibility(job)):
            raise BadInput(
                f"{problem}; to submit it for nodes that will be added, set allow_impossible (--allow-impossible)"
            )
        if submission.array:
            self._limits.check_array(job.tenant, _job_count(submission))
        jobs = array_jobs(job, parse_array(submission.array), number) if submission.array else [job]
        size = len(msgspec.json.encode(job))
        if len(jobs) > 1 and len(jobs) * size > MAX_ARRAY_BYTES:
            most = MAX_ARRAY_BYTES // size
            raise BadInput(
                f"array: {len(jobs):,} jobs of {size:,} bytes are too many, expected {most:,} or fewer;"
                " put a long script into a file, or submit several arrays"
            )
        return [
            NewJob(number + index, submission.name, task, "" if index else request, submission.secrets)
            for index, task in enumerate(jobs)
        ]

    def build_job(self, caller: Caller, submission: Submission, number: int) -> Job:
        """Return the job of a submission. Raises if the submission is invalid."""
        tenant = self._tenant(caller, submission)
        submission = replace(submission, gpu_types=self._resolve_gpu_types(submission))
        for address in submission.notify:
            check_address(address, self._allowed_targets)
        self._check_levels(submission)
        job_id = f"{submission.name}-{number}"
        job = submission.to_job(job_id, tenant, caller.user, self._state.now(), self.preemption(tenant, submission))
        self._check_tenant_limit(job)
        job = self._limits.apply(choose_requests(job, self._state.header.cluster, self._reader.group_usage))
        _check_engine(job)
        unmet = dict.fromkeys(str(unmet) for text in submission.after for unmet in self._resolve_dependency(text))
        begin = None if submission.begin is None else self._state.journal_time(submission.begin)
        return self._complete(submission, replace(job, launch=replace(job.launch, after=tuple(unmet), begin=begin)))

    def preemption(self, tenant: str, submission: Submission) -> Preemption:
        """Return the owner's rule for a job of a tenant."""
        return self._preemption.of(tenant, submission.job_class)

    def hold_reason(self, submission: Submission, job: Job) -> Reason | None:
        """Return the reason for which a new job is held; None: it is queued."""
        return Reason.HELD if submission.hold else first_condition(job, self._state.now())

    def infeasibility(self, job: Job) -> str:
        """Return why a job can never run on this cluster, even if all nodes were empty; '' if it can.

        Nodes on which it may not be placed now count: taints are removed, and reservations end.
        """
        demand = replace(job.demand, allowed_nodes=None)
        if self._empty_cluster.fits_when_empty(demand):
            if self._power is None or self._power.fits_when_empty(demand):
                return ""
            return "the job can never run on this cluster: it would exceed the power limits of the racks"
        shortage = self._empty_cluster.shortage(demand)
        return f"the job can never run on this cluster: {shortage.text(demand)}"

    def _tenant(self, caller: Caller, submission: Submission) -> str:
        tenant = submission.tenant or caller.tenant
        if not caller.can_submit_for(tenant):
            raise Forbidden(f"{caller.label} of tenant {caller.tenant!r} cannot submit jobs for tenant {tenant!r}")
        known = [configured.name for configured in self._state.header.cluster.tenants]
        if known and tenant not in known and tenant != "default":
            raise BadInput(f"unknown tenant {tenant!r}; known tenants: {', '.join(known)}")
        return tenant

    def _check_levels(self, submission: Submission) -> None:
        request, cluster = submission.topology, self._state.header.cluster
        if request is None or submission.allow_impossible:
            return
        for name in request.levels:
            cluster.level(name)
        if not cluster.levels and (request.segment or (request.most and request.wait is None)):
            what = "segments need" if request.segment else "a number of domains needs"
            raise BadInput(f"{what} a cluster with levels, such as racks; this one has none")

    def _resolve_gpu_types(self, submission: Submission) -> list[str]:
        """Return the GPU types of this cluster that match the requested ones: 'a100' matches every A100."""
        known = self._state.header.cluster.type_names
        resolved: list[str] = []
        for name in submission.gpu_types:
            matches = matching_gpu_names(name, known)
            if not matches and submission.allow_impossible:
                matches = matching_gpu_names(name, gpu_names()) or [name]
            if not matches:
                raise UnknownName("GPU type", name, known)
            resolved += matches
        return resolved

    def _check_tenant_limit(self, job: Job) -> None:
        limits = {tenant.name: tenant.limit_gpus for tenant in self._state.header.cluster.tenants}
        limit = limits.get(job.tenant, 0.0)
        largest = max(job.demand.total_gpus, job.gpu_range[1] if job.gpu_range else 0)
        if limit and largest > limit:
            raise BadInput(f"gpus is {largest:g}, but tenant {job.tenant!r} may use at most {limit:g}")

    def _resolve_dependency(self, text: str) -> list[Dependency]:
        """Return the dependency, or nothing if it is met. Raises Conflict if it cannot be met any more."""
        given = parse_dependency(text)
        if not given.job:
            return [given]
        if tasks := self._reader.array_jobs(given.array or given.job):
            dependency = array_dependency(given.kind, tasks[0].rpartition("_")[0])
            states = self._reader.array_states(dependency.array)
        else:
            dependency = Dependency(given.kind, self._find_job(given.job))
            ended = self.ended_job(dependency.job)
            states = frozenset([ACTIVE if ended is None else ended.state])
        if state := dependency.failing_state(states):
            raise Conflict(dependency.failure(state))
        return [dependency] if ACTIVE in states else []

    def ended_job(self, job_id: str) -> JobStatus | None:
        """Return the status of an ended job, committed or not yet; None if the job has not ended."""
        return self._state.uncommitted_ends.get(job_id) or self._reader.ended_job(job_id)


def _limited_power(cluster: Cluster) -> Power | None:
    """Return the power of the racks; None if none has a limit."""
    return Power(cluster) if any(rack.limit_watts for rack in cluster.racks) else None


def _check_engine(job: Job) -> None:
    if job.engine and job.plan and (problem := launch_problem(job.engine, job.plan)):
        raise BadInput(f"engine {job.engine} cannot run {job.plan}: {problem}")


def _job_count(submission: Submission) -> int:
    return len(parse_array(submission.array).tasks) if submission.array else 1


def _ids_of_request(first: str, submission: Submission) -> list[str]:
    """Return the ids of all jobs that a request created, given the first of them."""
    if not submission.array:
        return [first]
    array_id = first.rpartition("_")[0]
    return [task_id(array_id, task) for task in parse_array(submission.array).tasks]


def _request_key(caller: Caller, request: str) -> str:
    """Return the key under which a request is stored; request ids are per token."""
    return json.dumps([caller.name, request]) if request else ""
