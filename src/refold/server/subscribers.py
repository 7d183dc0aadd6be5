"""What other parts of the daemon contribute to the loop's steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from refold.core import ChangeMeasured, Entry, Event, RunProgressed, StopRun
from refold.journal import Change, JobEnded, JobRecord
from refold.model import Seconds
from refold.server.inbox import Inbox
from refold.server.job_table import Notice


class LoopStep(msgspec.Struct, frozen=True):
    """A step that was committed and carried out."""

    entry: Entry
    changes: list[Change]
    notices: list[Notice]

    @property
    def ended(self) -> list[JobRecord]:
        return [change.record for change in self.changes if isinstance(change, JobEnded)]


class Subscriber:
    """A part that takes part in every step. Subclasses override what they need; the loop calls them in order.

    An error in `started` or `before_step` ends the loop: nothing was decided yet. An error in `after_step` is logged:
    the step has been carried out.
    """

    def started(self) -> None:
        """Called once, when the state of the previous daemon has been restored."""

    def next_step_at(self) -> Seconds | None:
        """Return when a step is due even if no input arrives; None if there is no such time."""
        return None

    def before_step(self, now: Seconds) -> Sequence[Event]:  # noqa: ARG002
        """Return events to add to the step at this time, before the policy decides."""
        return ()

    def after_step(self, step: LoopStep) -> None:
        """Called after each step has been carried out."""


# The log on standard error: as text, or as one JSON object per line.

EVENT_FIELDS = ("event", "job", "run", "tenant", "user")
_EVENTS = logging.getLogger("refold.events")


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name in EVENT_FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class EventLog(Subscriber):
    """Logs what happens to jobs and nodes, for programs that collect logs."""

    def after_step(self, step: LoopStep) -> None:
        for notice in step.notices:
            fields: dict[str, object] = {"event": notice.kind}
            if notice.job is not None:
                fields |= {"job": notice.job.id, "tenant": notice.job.tenant, "user": notice.job.user}
                fields |= {"run": notice.run} if notice.run else {}
            _EVENTS.info(notice.text or notice.kind, extra=fields)


def log_to_stderr(*, as_json: bool = False) -> None:
    """Log warnings of all libraries, and what Refold does. Events of jobs are logged as JSON only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("refold").setLevel(logging.INFO)
    _EVENTS.setLevel(logging.INFO if as_json else logging.WARNING)


# Measure what it costs to change a run by restarting it: the time from the order to stop to the first new step. Live
# changes are measured by the job itself, and reported by the back end.


class ChangeCosts(Subscriber):
    """Reports the cost of each change that was not reported otherwise."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._stops: dict[tuple[str, int], Seconds] = {}
        """When a run was ordered to stop, by its job and the number of the next run."""

    def after_step(self, step: LoopStep) -> None:
        """Note stops of runs that will continue, and report the cost when the next run has done a step."""
        for order in step.entry.orders:
            if isinstance(order, StopRun) and order.next is not None:
                self._stops[order.job, order.run + 1] = step.entry.now
        if not self._stops:
            return
        for event in step.entry.events:
            if isinstance(event, ChangeMeasured):
                self._stops.pop((event.job, event.run), None)
            elif isinstance(event, RunProgressed) and (event.job, event.run) in self._stops:
                seconds = step.entry.now - self._stops.pop((event.job, event.run))
                self._inbox.report(ChangeMeasured(event.job, event.run, seconds, "cold"))
        for record in step.ended:
            self._stops.pop((record.job.id, record.runs + 1), None)
            self._stops.pop((record.job.id, record.runs), None)
