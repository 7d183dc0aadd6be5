"""Convert calendar times of traces to seconds from the first submission."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from refold.model import Job
from refold.simulator.traces.text_source import BadCell, parse_number

NO_TIME = frozenset({"", "None", "none", "Unknown", "N/A", "NaN", "nan"})
"""Cell values that mean that the event did not happen."""

_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def parse_time(text: str, column: str) -> float:
    """Parse '2017-10-07 01:12:09', '2024-05-01T08:00:00' or '1714550400' as seconds since 1970.

    A time without a time zone is taken as UTC; only differences are used.
    """
    try:
        time = datetime.fromisoformat(text.removesuffix(" PST").removesuffix(" PDT"))
    except ValueError:
        if text[:1].isdigit() and "-" not in text:
            return parse_number(text, column)
        raise BadCell(column, text, "a time such as 2017-10-07 01:12:09") from None
    return (time - (_EPOCH if time.tzinfo is None else _EPOCH_UTC)) / _SECOND


def parse_time_or_none(text: str | None, column: str) -> float | None:
    """Parse a time; None if the event did not happen."""
    return None if text is None or text in NO_TIME else parse_time(text, column)


def shift_to_first_submission(jobs: Iterable[Job]) -> tuple[list[Job], list[str]]:
    """Shift the jobs so that the first is submitted at time 0; return them and a note with the original time."""
    jobs = list(jobs)
    if not jobs:
        return jobs, []
    first = min(job.submitted for job in jobs)
    shifted = [msgspec.structs.replace(job, submitted=job.submitted - first) for job in jobs]
    year_2000 = 946684800.0
    when = datetime.fromtimestamp(first, UTC).isoformat(" ", "seconds")[:19] if first > year_2000 else f"{first:g}"
    return shifted, [f"time 0 is the first submission, at {when}"]
