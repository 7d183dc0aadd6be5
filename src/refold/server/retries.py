"""What becomes of a job whose run failed: whether it is tried again, and whether its node is to be trusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from refold.core import Event, JobHeld, NodeLost, RunFailed
from refold.model import Reason
from refold.server.job_table import JobRecord, Notice
from refold.server.loop import Loop
from refold.server.monitor import OutputWatch

log = logging.getLogger("refold")

MOST_LOST = 10
"""How often a job is tried again that was lost through no fault of its own, whatever it says of retries."""


class Retries:
    """Stands between a back end, which only knows how a run ended, and the loop."""

    def __init__(self, loop: Loop, output: OutputWatch) -> None:
        self._loop = loop
        self._output = output
        self._event_loop = asyncio.get_running_loop()
        self._judging: set[asyncio.Task[None]] = set()
        self.drained: Callable[[int, str], None] = lambda _node, _why: None

    def report(self, event: Event) -> None:
        """What a back end says; a failure is judged first. Any thread may say so."""
        if isinstance(event, RunFailed):
            self._event_loop.call_soon_threadsafe(self._begin_judging, event)
        else:
            self._loop.report(event)

    def _begin_judging(self, event: RunFailed) -> None:
        task = self._event_loop.create_task(self._judge(event))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _judge(self, event: RunFailed) -> None:
        """Whatever goes wrong here, the run has ended, and has to be reported."""
        try:
            judged = await self._judged(event)
        except Exception:
            log.exception("the end of run %d of %s could not be judged: it is taken as it came", event.run, event.job)
            judged = event
        self._loop.report(judged)
        if judged.retry and self._is_current(event):
            self._loop.report(JobHeld(event.job, Reason.BACKOFF))  # in the same step: nobody starts it in between

    async def _judged(self, event: RunFailed) -> RunFailed:
        if not self._is_current(event):
            return event
        record = self._loop.job_table.of[event.job]
        never, drains = await asyncio.to_thread(self._read_output, event)
        if drains:
            self._drain(record, drains)
        return msgspec.structs.replace(event, retry=not never and _may_be_tried_again(event, record))

    def _is_current(self, event: RunFailed) -> bool:
        record = self._loop.job_table.of.get(event.job)
        return record is not None and record.run == event.run

    def _read_output(self, event: RunFailed) -> tuple[bool, str]:
        return self._output.never_retry(event.job, event.run), self._output.drains(event.job, event.run)

    def _drain(self, record: JobRecord, pattern: str) -> None:
        run = self._loop.view.runs.get(record.job.id)
        why = f"{record.job.id} failed there with {pattern!r} in its output"
        for node in sorted(run.allocation.nodes) if run is not None else ():
            self.drained(node, why)
            self._loop.report(NodeLost(node))
            self._loop.tell(Notice("noted", record.job, record.run, f"its node is drained: {why}"))


def _may_be_tried_again(event: RunFailed, record: JobRecord) -> bool:
    """A run that was lost (the back end says so) was no fault of its job; otherwise the job says how often."""
    allowed = max(record.job.launch.retries, MOST_LOST if event.retry else 0)
    return record.failures < allowed
