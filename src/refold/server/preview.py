"""What would become of a submission: tried out on a copy of the scheduler, of which nothing comes."""

from __future__ import annotations

import asyncio

from refold.api import LARGEST_ID, Caller, Interval, Preview, Submission
from refold.core import JobSubmitted, Scheduler, StartRun
from refold.model import Job
from refold.packing import Free
from refold.server.admission import Admission
from refold.server.loop import Loop
from refold.server.status import interval
from refold.simulator import CannotCopy

MOST_TO_TRY = 300
"""Jobs that are not over, up to which the policy itself is asked what it would do with one more: a copy takes time."""


class Previews:
    """Tries submissions out, one at a time."""

    def __init__(self, loop: Loop, accepting: Admission) -> None:
        self._loop = loop
        self._accepting = accepting
        self._one_at_a_time = asyncio.Semaphore(1)

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        """Whether it would fit, when it would start and how, as far as can be told without doing it."""
        loop, view = self._loop, self._loop.view
        await self._accepting.check_patterns([submission])
        job, held = self._accepting.job_of(caller, submission, LARGEST_ID)
        empty = Free(view.cluster)
        fits = empty.fits_when_empty(job.demand)
        notes = [] if fits else [f"it will never run here: {empty.shortage(job.demand).text('that')}"]
        if held:
            reason = "it is released" if submission.hold else "the jobs that it comes after have finished"
            notes.append(f"it waits until {reason}")
        plan, expected = await self._tried(job) if fits and not held else ("", None)
        notes += _notes_on_plan(submission, loop.header.policy, plan)
        return Preview(
            fits=fits,
            demand=str(job.demand),
            gpus=job.demand.total_gpus,
            plan=plan,
            starts_now=expected is not None and expected.at <= loop.wall(loop.now()) + 1.0,
            waiting_before=len(view.waiting),
            start_estimate=expected,
            notes=notes,
        )

    async def _tried(self, job: Job) -> tuple[str, Interval | None]:
        """What the policy would do with the job at this moment: its plan, and when it would start."""
        async with self._one_at_a_time:
            if len(self._loop.job_table.of) > MOST_TO_TRY:
                return "", None
            try:
                copied = self._loop.copied()
            except CannotCopy:
                return "", None
            return await asyncio.to_thread(self._decided, copied, job)

    def _decided(self, scheduler: Scheduler, job: Job) -> tuple[str, Interval | None]:
        loop = self._loop
        entry = scheduler.step(loop.now(), [JobSubmitted(job)])
        for order in entry.orders:
            if isinstance(order, StartRun) and order.job == job.id:
                plan = order.allocation.plan
                return "" if plan is None else str(plan), Interval(loop.wall(entry.now))
        expected = scheduler.view.start_estimate(job.id) if job.id in scheduler.view.waiting else None
        return "", None if expected is None else interval(expected, loop.wall)


def _notes_on_plan(submission: Submission, policy: str, plan: str) -> list[str]:
    if submission.plan != "auto" or plan:
        return []
    if not submission.workload:
        return ["plan: auto needs a workload, so that it is known how fast each plan would be"]
    return [f"its plan is chosen when it starts, if {policy} chooses plans"]
