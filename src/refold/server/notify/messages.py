"""What happens, told to those whom it concerns."""

from __future__ import annotations

from refold.model import Job, Seconds, text_from_seconds
from refold.server import Kind as NewsKind, Loop, LoopStep, Notice, is_drain_placeholder
from refold.server.config import Kind
from refold.server.notify.notifier import Message, Notifier
from refold.server.store import Store

KINDS: dict[NewsKind, Kind] = {
    "started": "started",
    "reshaped": "reshaped",
    "stopped": "stopped",
    "failed": "failed",
    "finished": "finished",
    "ended": "ended",
    "hang suspected": "hang_suspected",
    "idle": "gpu_idle",
}
"""Of which news people are told, and under which name they ask for it. What they did themselves they know."""

PHRASES: dict[NewsKind, str] = {
    "ended": "was ended",
    "hang suspected": "may hang",
    "idle": "leaves its GPUs idle",
}
"""What a message says of a job, where the kind of news alone does not say it."""

TOLD = "told to wait long"
"""Under which name it is kept whose long wait was told."""


class JobMessages:
    """Turns news into messages; and says so of jobs that wait for long, once, however often the daemon restarts."""

    def __init__(self, loop: Loop, notifier: Notifier, long: Seconds, store: Store) -> None:
        self._loop = loop
        self._notifier = notifier
        self._long = long
        self._store = store
        self._told: set[str] = set(store.reading.remembered(TOLD, list[str]) or ())

    def watch(self, step: LoopStep) -> None:
        """Tell what was news in a step."""
        for news in step.news:
            kind = KINDS.get(news.kind)
            if kind is not None and news.job is not None and not is_drain_placeholder(news.job):
                self.tell(kind, news.job, _title(news), news.text)

    def tell(self, kind: Kind, job: Job, title: str, body: str = "") -> None:
        """Tell something of a job."""
        self._notifier.tell(Message(kind, title, body, job.id, job.user, job.tenant), job.launch.notify)

    async def look_for_long_waits(self) -> None:
        """Those that have waited for long by now."""
        new = [job for job in self._loop.view.waiting.values() if self._is_new(job)]
        for job in new:
            reason = self._loop.view.reason(job.id, 0).reason.value
            waited = text_from_seconds(self._waited(job))
            self.tell("waiting_long", job, f"{job.id} has waited for {waited}", f"({reason})")
        if new:  # told, then written: rather twice than never
            self._told = {*self._told, *(job.id for job in new)} & self._loop.job_table.of.keys()
            kept = sorted(self._told)
            await self._loop.written(lambda: self._store.remember(TOLD, kept))

    def _is_new(self, job: Job) -> bool:
        return job.id not in self._told and not is_drain_placeholder(job) and self._waited(job) >= self._long

    def _waited(self, job: Job) -> Seconds:
        """How long it has been there without a run."""
        return self._loop.now() - job.submitted - self._loop.job_table.of[job.id].ran


def _title(news: Notice) -> str:
    assert news.job is not None
    again = f" (run {news.run})" if news.run > 1 else ""
    return f"{news.job.id} {PHRASES.get(news.kind, news.kind)}{again}"
