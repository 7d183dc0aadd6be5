"""The log as JSON."""

from __future__ import annotations

import json
import logging
import sys

from refold.core import Entry
from refold.server.job_table import Notice
from refold.server.subscribers import EventLog, JsonFormatter, LoopStep
from refold.testing import make_job


def formatted(record: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_record_is_one_line_of_json() -> None:
    record = logging.LogRecord("refold", logging.WARNING, "", 0, 'a "%s"\nwith lines', ("name",), None)
    record.created = 1_700_000_000.25
    assert formatted(record) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "refold",
        "message": 'a "name"\nwith lines',
    }


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("refold", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert str(formatted(record)["exception"]).endswith("ValueError: wrong")


class RecordingHandler(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_events_have_their_job_as_fields() -> None:
    handler = RecordingHandler()
    logger = logging.getLogger("refold.events")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        job = make_job("train-1", gpus=1, user="ann")
        notices = [Notice("started", job, 2, "on node a"), Notice("gpu warning", text="GPU 0 of a")]
        EventLog().after_step(LoopStep(Entry(0.0, (), ()), [], notices))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    fields = [{key: value for key, value in formatted(record).items() if key != "time"} for record in handler.records]
    common = {"level": "info", "logger": "refold.events"}
    assert fields == [
        {
            **common,
            "message": "on node a",
            "event": "started",
            "job": "train-1",
            "run": 2,
            "tenant": "default",
            "user": "ann",
        },
        {**common, "message": "GPU 0 of a", "event": "gpu warning"},
    ]
