"""Begin times: delays, times of day and dates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from refold.client.jobspec.job_fields import parse_begin
from refold.errors import BadValue

NOW = datetime(2026, 11, 16, 14, 30, tzinfo=timezone(timedelta(hours=1)))
HOUR = 3600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0.0),
        ("today", 0.0),
        ("now+10m", 600.0),
        ("now+90", 90.0),
        ("now+1hour", HOUR),
        ("now+2days", 48 * HOUR),
        ("1h30m", 1.5 * HOUR),
        ("10s", 10.0),
        ("15:00", 0.5 * HOUR),
        ("14:30", 0.0),
        ("14:29:59", 24 * HOUR - 1),
        ("8:00", 17.5 * HOUR),
        ("midnight", 9.5 * HOUR),
        ("noon", 21.5 * HOUR),
        ("teatime", 1.5 * HOUR),
        ("tomorrow", 9.5 * HOUR),
        ("2026-11-16T15:30+01:00", HOUR),
        ("2026-11-16T13:30Z", 0.0),
        ("2026-11-18T13:30:00+00:00", 48 * HOUR),
        ("2020-01-01T00:00Z", 0.0),
    ],
)
def test_a_time_is_read_as_the_seconds_until_then(text: str, seconds: float) -> None:
    assert parse_begin(text, NOW) == seconds


def test_a_date_without_a_time_zone_is_local() -> None:
    text = "2026-12-01T08:00"
    assert parse_begin(text, NOW) == (datetime.fromisoformat(text).astimezone() - NOW).total_seconds()


@pytest.mark.parametrize(
    "text", ["", "soon", "now+", "now-1h", "25:00", "12:61", "2026-13-01", "now+1fortnight", "+5", "2026-12-01T", "-5"]
)
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises((BadValue, ValueError)):
        parse_begin(text, NOW)
