"""Turn notices into notifications."""

from __future__ import annotations

import re
from pathlib import Path

from refold.model import Job, Seconds, format_duration
from refold.server import LiveState, LoopStep, Notice, NoticeKind, Subscriber, Writer
from refold.server.config import NotificationKind
from refold.server.notify.notifier import Message, Notifier
from refold.server.output import log_path, tail_log
from refold.server.store import Store

NOTIFICATION_KINDS: dict[NoticeKind, NotificationKind] = {
    "started": "started",
    "reshaped": "reshaped",
    "stopped": "stopped",
    "failed": "failed",
    "finished": "finished",
    "ended": "ended",
    "timed out": "ended",
    "hang suspected": "hang_suspected",
    "time limit": "time_limit",
    "idle": "gpu_idle",
}
"""Notices that are sent as messages, and their configured kind. Users are not notified of their own actions."""

TITLE_VERBS: dict[NoticeKind, str] = {
    "ended": "was ended",
    "hang suspected": "may be stuck",
    "time limit": "is beyond its time limit",
    "idle": "leaves its GPUs idle",
}
"""Verbs in titles; for all other kinds, the kind itself is the verb."""

KINDS_WITH_OUTPUT: frozenset[NoticeKind] = frozenset({"failed", "ended", "timed out"})
"""Notices whose messages end with the last lines of the output."""

OUTPUT_LINES, MAX_OUTPUT_CHARS = 10, 1500
"""Lines and characters of output in a message."""

_INSTANCE = re.compile(r"instance (\d+): ")
_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")

LONG_WAITS_KEY = "long_waits_notified"
"""Key in the store's `meta` table: jobs whose long wait has been reported."""


class JobMessages(Subscriber):
    """Sends notices as messages, and one message per job about a long wait, also across restarts."""

    def __init__(
        self, state: LiveState, writer: Writer, store: Store, notifier: Notifier, threshold: Seconds, logs: Path
    ) -> None:
        """`threshold`: waiting time that is reported. `logs`: folder with the output of runs."""
        self._state = state
        self._writer = writer
        self._notifier = notifier
        self._threshold = threshold
        self._logs = logs
        self._store = store
        self._notified: set[str] = set(store.reader.read_meta(LONG_WAITS_KEY, list[str]) or ())

    def after_step(self, step: LoopStep) -> None:
        for notice in step.notices:
            kind = NOTIFICATION_KINDS.get(notice.kind)
            if kind is not None and notice.job is not None:
                last_lines = self._last_lines(notice.job, notice) if notice.kind in KINDS_WITH_OUTPUT else ""
                self.notify(kind, notice.job, _title(notice), notice.text + last_lines)

    def notify(self, kind: NotificationKind, job: Job, title: str, body: str = "") -> None:
        self._notifier.notify(Message(kind, title, body, job.id, job.user, job.tenant), job.launch.notify)

    def _last_lines(self, job: Job, notice: Notice) -> str:
        """Return the last lines of the run's output, of the instance that failed, after an empty line; '' if none."""
        instance = _INSTANCE.match(notice.text)
        path = log_path(self._logs, job.id, notice.run, int(instance[1]) if instance else 0)
        text = _readable(tail_log(path, OUTPUT_LINES).text)
        return f"\n\n{text}" if text else ""

    async def notify_long_waits(self) -> None:
        """Send a message for each job whose waiting time has reached the threshold."""
        new = [job for job in self._state.view.waiting.values() if self._waits_long(job)]
        for job in new:
            reason = self._state.view.reason(job.id, 0).reason.value
            waited = format_duration(self._waited(job))
            self.notify("waiting_long", job, f"{job.id} has been waiting for {waited}", f"({reason})")
        if new:  # sent before it is stored: after a crash a message may be repeated but is not lost
            self._notified = {*self._notified, *(job.id for job in new)} & self._state.job_table.records.keys()
            job_ids = sorted(self._notified)
            await self._writer.write(lambda: self._store.write_meta(LONG_WAITS_KEY, job_ids))

    def _waits_long(self, job: Job) -> bool:
        return job.id not in self._notified and self._waited(job) >= self._threshold

    def _waited(self, job: Job) -> Seconds:
        """Seconds since submission during which the job had no run."""
        return self._state.now() - job.submitted - self._state.job_table.records[job.id].run_time


def _readable(output: str) -> str:
    """Return output without control sequences; of a line that was overwritten, what was visible at the end."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _CONTROL_SEQUENCE.sub("", output).split("\n"))
    text = "\n".join("".join(filter(lambda char: char.isprintable() or char == "\t", line)) for line in lines)
    return text.strip("\n")[-MAX_OUTPUT_CHARS:]


def _title(notice: Notice) -> str:
    assert notice.job is not None
    run = f" (run {notice.run})" if notice.run > 1 else ""
    return f"{notice.job.id} {TITLE_VERBS.get(notice.kind, notice.kind)}{run}"
