"""Jobs that come after others: released when those have finished, cancelled when one of them will not."""

from __future__ import annotations

from refold.core import JobCancelled, JobReleased
from refold.model import Job, Reason
from refold.server.loop import Loop, LoopStep
from refold.server.store import StoreReader


class Dependencies:
    """Who waits for whom. All of it follows from the jobs themselves, so a restart finds it again."""

    def __init__(self, loop: Loop, reading: StoreReader) -> None:
        self._loop = loop
        self._reading = reading
        self._waits_for: dict[str, set[str]] = {}
        self._before: dict[str, set[str]] = {}
        self._ready: set[str] = set()
        """Those who wait for nobody any more."""
        for record in list(loop.job_table.of.values()):
            self._add(record.job)
        self._release()

    def watch(self, step: LoopStep) -> None:
        """Take note of who has come and who is over."""
        for news in step.news:
            if news.kind == "submitted" and news.job is not None:
                self._add(news.job)
        for over in step.over:
            self._remove(over.record.job.id)
            for waiting in list(self._before.pop(over.record.job.id, ())):
                self._is_over(waiting, over.record.job.id, over.state)
        self._release()

    def _add(self, job: Job) -> None:
        if not job.launch.after:
            return
        self._waits_for[job.id] = set(job.launch.after)
        for before in job.launch.after:
            if before in self._loop.job_table.of:
                self._before.setdefault(before, set()).add(job.id)
            else:
                ended = self._reading.ended_job(before)
                self._is_over(job.id, before, "gone" if ended is None else ended.state)

    def _is_over(self, job_id: str, before: str, state: str) -> None:
        left = self._waits_for.get(job_id)
        if left is None:
            return
        left.discard(before)
        if state != "finished":
            self._remove(job_id)
            self._loop.report(JobCancelled(job_id, f"it comes after {before!r}, which is over and has not finished"))
        elif not left:
            self._remove(job_id)
            self._ready.add(job_id)

    def _release(self) -> None:
        """Those who are ready. After a restart the scheduler may have to be told of them first."""
        view = self._loop.view
        for job_id in list(self._ready):
            if view.held_for(job_id) is Reason.DEPENDENCY:
                self._loop.report(JobReleased(job_id))
            if job_id not in self._loop.job_table.of or any(
                job_id in jobs for jobs in (view.held, view.waiting, view.active, view.infeasible)
            ):
                self._ready.discard(job_id)

    def _remove(self, job_id: str) -> None:
        for before in self._waits_for.pop(job_id, ()):
            self._before.get(before, set()).discard(job_id)
