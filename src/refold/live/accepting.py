"""Submissions become jobs: for whom, under which id, after which others; and what would become of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from refold.catalogue.tables import gpu_key
from refold.core.events import Event, JobHeld, JobSubmitted
from refold.core.orders import StartRun
from refold.errors import BadInput, Conflict, Forbidden, TooMuch, UnknownName
from refold.live.calls import Caller
from refold.live.drains import TENANT
from refold.live.loop import Loop
from refold.live.notify_addresses import check_address
from refold.live.standing import interval
from refold.live.store import NewJob, Store
from refold.live.wire import LARGEST_ID, Interval, JobStatus, Preview, Submission
from refold.model import Job, Reason
from refold.packing import Free
from refold.simulator.snapshot import CannotCopy

MOST_JOBS = 200_000
"""Jobs that may be there at once and are not over."""

MOST_TO_TRY = 2_000
"""Waiting jobs up to which the policy itself is asked what it would do with one more."""


class Accepting:
    """Gives jobs their numbers, and sees to it that a request is accepted once."""

    def __init__(self, loop: Loop, store: Store, find: Callable[[str], str]) -> None:
        self._loop = loop
        self._store = store
        self._find = find
        self._number = store.reading.last_numbers()[0]
        self._accepting: dict[str, asyncio.Future[str]] = {}

    async def accept(self, caller: Caller, submissions: Sequence[Submission]) -> list[str]:
        """Their ids, once they are on disk. A request that was accepted before gives the job that it gave then."""
        if len(self._loop.roster.of) + len(submissions) > MOST_JOBS:
            raise TooMuch(f"{len(self._loop.roster.of):,} jobs are there already, expected at most {MOST_JOBS:,}")
        requests = [f"{caller.name}/{one.request}" if one.request else "" for one in submissions]
        ids: list[str] = [await self._known(request) for request in requests]
        new: list[NewJob] = []
        events: list[Event] = []
        taken = self._number
        for place, submission in enumerate(submissions):
            if not ids[place]:
                taken += 1
                job, held = self._job(caller, submission, taken)
                new.append(NewJob(taken, submission.name, job, requests[place], submission.secrets))
                events += [JobSubmitted(job), *held]
                ids[place] = job.id
        self._number = taken  # from here on nothing is refused
        if new:
            await self._write(events, new)
        return ids

    async def _known(self, request: str) -> str:
        """The job of a request that was accepted before, or is being accepted; empty: there is none."""
        if not request:
            return ""
        if request in self._accepting:
            return await asyncio.shield(self._accepting[request])
        return self._store.reading.job_of_request(request) or ""

    async def _write(self, events: Sequence[Event], new: Sequence[NewJob]) -> None:
        mine = {one.request: asyncio.get_running_loop().create_future() for one in new if one.request}
        self._accepting |= mine
        try:
            await self._loop.ask(events, new)
        except BaseException as error:
            for future in mine.values():
                future.set_exception(error if isinstance(error, Exception) else Conflict("it was not accepted"))
                future.exception()  # nobody has to look
            raise
        else:
            for one in new:
                if one.request:
                    mine[one.request].set_result(one.job.id)
        finally:
            for request in mine:
                del self._accepting[request]

    def _job(self, caller: Caller, submission: Submission, number: int) -> tuple[Job, list[Event]]:
        tenant = self._tenant(caller, submission)
        submission = msgspec.structs.replace(submission, gpu_types=self._types(submission.gpu_types))
        for address in submission.notify:
            check_address(address)
        job = submission.to_job(f"{submission.name}-{number}", tenant, caller.user, self._loop.now())
        self._refuse_beyond_limit(job)
        after = [self._after(one) for one in submission.after]
        waits_for = [job_id for job_id in after if job_id in self._loop.roster.of]
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
        if ended is not None and ended.standing != "finished":
            raise Conflict(f"after: {job_id!r} is over and has not finished ({ended.standing})")
        return job_id

    def ended_job(self, job_id: str) -> JobStatus | None:
        """How a job that is over stands, whether that is on disk yet or not; None: it is not over."""
        return self._loop.ending.get(job_id) or self._store.reading.ended_job(job_id)

    # What would become of one.

    def preview(self, caller: Caller, submission: Submission) -> Preview:
        """Whether it would fit, when it would start and how, as far as can be told without doing it."""
        loop, view = self._loop, self._loop.view
        job, held = self._job(caller, submission, LARGEST_ID)
        fits = Free(view.cluster).fits_when_empty(job.demand)
        notes = [] if fits else [f"it will never run here: {Free(view.cluster).shortage(job.demand).text('that')}"]
        if held:
            reason = "it is released" if submission.hold else "the jobs that it comes after have finished"
            notes.append(f"it waits until {reason}")
        tried = self._tried(job) if fits and not held else None
        plan, expected = tried if tried is not None else ("", None)
        notes += _notes_on_plan(submission, loop.header.policy, plan)
        return Preview(
            fits=fits,
            demand=str(job.demand),
            gpus=job.demand.total_gpus,
            plan=plan,
            starts_now=expected is not None and expected.at <= loop.wall(loop.now()) + 1.0,
            waiting_before=len(view.waiting),
            expected=expected,
            notes=notes,
        )

    def _tried(self, job: Job) -> tuple[str, Interval | None] | None:
        """What the policy would do with the job at this moment: its plan, and when it would start."""
        loop = self._loop
        if len(loop.view.waiting) > MOST_TO_TRY:
            return None
        try:
            scheduler = loop.copied()
        except CannotCopy:
            return None
        entry = scheduler.step(loop.now(), [JobSubmitted(job)])
        for order in entry.orders:
            if isinstance(order, StartRun) and order.job == job.id:
                plan = order.allocation.plan
                return "" if plan is None else str(plan), Interval(loop.wall(entry.now))
        expected = scheduler.view.expected(job.id) if job.id in scheduler.view.waiting else None
        return "", None if expected is None else interval(expected, loop.wall)


def _notes_on_plan(submission: Submission, policy: str, plan: str) -> list[str]:
    if submission.plan != "auto" or plan:
        return []
    if not submission.workload:
        return ["plan: auto needs a workload, so that it is known how fast each plan would be"]
    return [f"its plan is chosen when it starts, if {policy} chooses plans"]
