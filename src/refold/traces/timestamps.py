"""Calendar times, which some traces have, as seconds from the first submission, which is what a Job has."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from refold.model import Job
from refold.traces.text_source import BadCell, number

NEVER = frozenset({"", "None", "none", "Unknown", "N/A", "NaN", "nan"})
"""How traces write that something did not happen."""


_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def moment(text: str, column: str) -> float:
    """'2017-10-07 01:12:09', '2024-05-01T08:00:00' or '1714550400' as seconds since 1970.

    A clock without a zone is read as if it were UTC: only differences are used.
    """
    try:
        time = datetime.fromisoformat(text.removesuffix(" PST").removesuffix(" PDT"))
    except ValueError:
        if text[:1].isdigit() and "-" not in text:
            return number(text, column)
        raise BadCell(column, text, "a time such as 2017-10-07 01:12:09") from None
    return (time - (_EPOCH if time.tzinfo is None else _EPOCH_UTC)) / _SECOND


def moment_or_none(text: str | None, column: str) -> float | None:
    """The same, and None for what did not happen."""
    return None if text is None or text in NEVER else moment(text, column)


def from_first_submission(jobs: Iterable[Job]) -> tuple[list[Job], list[str]]:
    """The jobs with time 0 at the first submission, and a note of when that was."""
    jobs = list(jobs)
    if not jobs:
        return jobs, []
    first = min(job.submitted for job in jobs)
    moved = [msgspec.structs.replace(job, submitted=job.submitted - first) for job in jobs]
    year_2000 = 946684800.0
    when = datetime.fromtimestamp(first, UTC).isoformat(" ", "seconds")[:19] if first > year_2000 else f"{first:g}"
    return moved, [f"time 0 is the first submission, at {when}"]
