"""What happens, told to those whom it concerns."""

from __future__ import annotations

from refold.live.config import Kind
from refold.live.drains import is_stand_in
from refold.live.loop import Loop, Step
from refold.live.notify import Message, Notifier
from refold.live.roster import Kind as NewsKind
from refold.live.roster import News
from refold.model import Job
from refold.model.units import Seconds, text_from_seconds

KINDS: dict[NewsKind, Kind] = {
    "started": "started",
    "reshaped": "reshaped",
    "stopped": "stopped",
    "failed": "failed",
    "finished": "finished",
    "warned": "hang_suspected",
}
"""Of which news people are told, and under which name they ask for it."""


class Telling:
    """Turns news into messages; and says so of jobs that wait for long, once."""

    def __init__(self, loop: Loop, notifier: Notifier, long: Seconds) -> None:
        self._loop = loop
        self._notifier = notifier
        self._long = long
        self._told: set[str] = set()

    def watch(self, step: Step) -> None:
        """Tell what was news in a step."""
        for news in step.news:
            kind = KINDS.get(news.kind)
            if kind is not None and news.job is not None and not is_stand_in(news.job):
                self.tell(kind, news.job, _title(news), news.text)

    def tell(self, kind: Kind, job: Job, title: str, body: str = "") -> None:
        """Tell something of a job."""
        self._notifier.tell(Message(kind, title, body, job.id, job.user, job.tenant), job.launch.notify)

    def look_for_long_waits(self) -> None:
        """Those that have waited for long by now."""
        view, now = self._loop.view, self._loop.now()
        self._told &= view.waiting.keys()
        for job in view.waiting.values():
            if now - job.submitted >= self._long and job.id not in self._told:
                self._told.add(job.id)
                reason = view.reason(job.id, 0).reason.value
                waited = text_from_seconds(now - job.submitted)
                self.tell("waiting_long", job, f"{job.id} has waited for {waited}", f"({reason})")


def _title(news: News) -> str:
    assert news.job is not None
    again = f" (run {news.run})" if news.run > 1 else ""
    return f"{news.job.id} {'may hang' if news.kind == 'warned' else news.kind}{again}"
