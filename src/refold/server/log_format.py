"""The log on standard error: as text, or as one JSON object per line."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from refold.server.subscribers import LoopStep, Subscriber

EVENT_FIELDS = ("event", "job", "run", "tenant", "user")
_EVENTS = logging.getLogger("refold.events")


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
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
        """Log the events of a step."""
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
