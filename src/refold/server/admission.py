"""Submissions become jobs: for whom, under which id, after which others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import msgspec

from refold.api import Caller, JobStatus, Submission
from refold.catalogue import gpu_key
from refold.core import Entry, Event, JobHeld, JobSubmitted
from refold.errors import BadInput, Conflict, Forbidden, TooManyRequests, UnknownName
from refold.jobspec import check_patterns
from refold.model import Job, Reason
from refold.server.drained_gpus import TENANT
from refold.server.loop import Loop
from refold.server.notify import check_address
from refold.server.store import NewJob, Store

MOST_JOBS = 200_000
"""Jobs that may be there at once and are not over."""


class Admission:
    """Gives jobs their numbers, and sees to it that a request is accepted once."""

    def __init__(self, loop: Loop, store: Store, find: Callable[[str], str]) -> None:
        self._loop = loop
        self._store = store
        self._find = find
        self._number = store.reading.last_numbers()[0]
        self._accepting: dict[str, asyncio.Future[Entry]] = {}
        self._checking = asyncio.Lock()

    async def accept(self, caller: Caller, submissions: Sequence[Submission]) -> list[str]:
        """Their ids, once they are on disk. A request that was accepted before gives the job that it gave then."""
        if len(self._loop.job_table.of) + len(submissions) > MOST_JOBS:
            raise TooManyRequests(
                f"{len(self._loop.job_table.of):,} jobs are there already, expected at most {MOST_JOBS:,}"
            )
        requests = [_key(caller, one.request) for one in submissions]
        named = [request for request in requests if request]
        if len(named) != len(set(named)):
            raise BadInput("request: two of the submissions have the same, expected each once")
        await self.check_patterns(submissions)
        ids = await self._accepted_before(requests)
        # From here until they are put nothing is awaited, so nobody else can begin to accept one of them.
        new: list[NewJob] = []
        events: list[Event] = []
        number = self._number
        for place, submission in enumerate(submissions):
            if not ids[place]:
                number += 1
                job, held = self.job_of(caller, submission, number)
                new.append(NewJob(number, submission.name, job, requests[place], submission.secrets))
                events += [JobSubmitted(job), *held]
                ids[place] = job.id
        if new:
            done = self._loop.put(events, new)
            self._number = number
            self._remember_until(done, new)
            await self._loop.patiently(done)
        return ids

    async def check_patterns(self, submissions: Sequence[Submission]) -> None:
        """Refuse what is no regular expression. One may take long to read, so others are answered meanwhile."""
        if patterns := [pattern for one in submissions for pattern in one.patterns]:
            async with self._checking:
                await asyncio.to_thread(check_patterns, patterns)

    async def _accepted_before(self, requests: Sequence[str]) -> list[str]:
        """The jobs of requests that were accepted before, or empty; what is under way is waited for."""
        while under_way := [self._accepting[one] for one in requests if one in self._accepting]:
            await self._loop.patiently(under_way[0])
        return [(self._store.reading.job_of_request(one) or "") if one else "" for one in requests]

    def _remember_until(self, done: asyncio.Future[Entry], new: Sequence[NewJob]) -> None:
        """A request is known from now on: here, until it is on disk, however long whoever asked waits for that."""
        mine = [one.request for one in new if one.request]
        self._accepting |= dict.fromkeys(mine, done)

        def forget(_: asyncio.Future[Entry]) -> None:
            for request in mine:
                del self._accepting[request]

        done.add_done_callback(forget)

    def job_of(self, caller: Caller, submission: Submission, number: int) -> tuple[Job, list[Event]]:
        """The job that a submission becomes, and what holds it back; or what is wrong with it."""
        tenant = self._tenant(caller, submission)
        submission = msgspec.structs.replace(submission, gpu_types=self._types(submission.gpu_types))
        for address in submission.notify:
            check_address(address)
        job = submission.to_job(f"{submission.name}-{number}", tenant, caller.user, self._loop.now())
        self._refuse_beyond_limit(job)
        after = [self._after(one) for one in submission.after]
        waits_for = [job_id for job_id in after if job_id in self._loop.job_table.of]
        job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, after=tuple(waits_for)))
        if submission.hold:
            return job, [JobHeld(job.id)]
        return job, [JobHeld(job.id, Reason.DEPENDENCY)] if waits_for else []

    def _tenant(self, caller: Caller, submission: Submission) -> str:
        tenant = submission.tenant or caller.tenant
        if not caller.sees(tenant):
            raise Forbidden(f"you are of tenant {caller.tenant!r}, and cannot submit for {tenant!r}")
        known = [one.name for one in self._loop.header.cluster.tenants]
        if tenant == TENANT or (known and tenant not in known and tenant != "default"):
            raise BadInput(f"no tenant {tenant!r} ({', '.join(known)})")
        return tenant

    def _types(self, asked: Sequence[str]) -> list[str]:
        """GPU types of this cluster, however they were written: 'a100' is any A100."""
        known = self._loop.header.cluster.type_names
        found: list[str] = []
        for name in asked:
            meant = [one for one in known if gpu_key(one).startswith(gpu_key(name))]
            if not meant:
                raise UnknownName("GPU type", name, known)
            found += meant
        return found

    def _refuse_beyond_limit(self, job: Job) -> None:
        limits = {one.name: one.limit_gpus for one in self._loop.header.cluster.tenants}
        most = limits.get(job.tenant, 0.0)
        largest = max(job.demand.total_gpus, job.gpu_range[1] if job.gpu_range else 0)
        if most and largest > most:
            raise BadInput(f"gpus is {largest:g}, and tenant {job.tenant!r} may use {most:g} at most")

    def _after(self, asked: str) -> str:
        """A job that has to have finished: one that has is no matter any more, one that never will is an error."""
        job_id = self._find(asked)
        ended = self.ended_job(job_id)
        if ended is not None and ended.state != "finished":
            raise Conflict(f"after: {job_id!r} is over and has not finished ({ended.state})")
        return job_id

    def ended_job(self, job_id: str) -> JobStatus | None:
        """How a job that is over stands, whether that is on disk yet or not; None: it is not over."""
        return self._loop.leaving.get(job_id) or self._store.reading.ended_job(job_id)


def _key(caller: Caller, request: str) -> str:
    """By what a request is known; whoever asks has names of their own."""
    return json.dumps([caller.name, request]) if request else ""
