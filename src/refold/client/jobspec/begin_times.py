"""Begin times of jobs (`--begin`): delays, times of day and dates, in Slurm's notation and ours."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from refold.client.api import MAX_TIME_SECONDS
from refold.errors import BadValue
from refold.model import DAY, HOUR, MINUTE, Seconds, parse_duration

EXPECTED_BEGIN = "a time within ten years, such as now+10m, 16:00, tomorrow or 2026-12-31T08:00"

_UNITS = {"second": 1.0, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY}
_COUNT = re.compile(r"(\d{1,9})(second|minute|hour|day|week)s?", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?", re.ASCII)
_HOURS = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}


def parse_begin(text: str, now: datetime) -> Seconds:
    """Return the seconds from `now` (with a time zone) until a begin time; 0 if it has passed."""
    delay = _parse(text, now)
    if not 0 <= delay <= MAX_TIME_SECONDS:
        raise BadValue(f"{text!r} is more than ten years from now")
    return delay


def _parse(text: str, now: datetime) -> Seconds:
    text = _HOURS.get(text, text)
    word, plus, delay = text.partition("+")
    if text in ("now", "today"):
        return 0.0
    if word == "now" and plus:
        return _parse_delay(delay)
    if text == "tomorrow":
        return (now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) - now).total_seconds()
    if _TIME_OF_DAY.fullmatch(text):
        return _until_time_of_day(text, now)
    if "-" in text:
        return _until_date(text, now)
    return _parse_delay(text)


def _parse_delay(text: str) -> Seconds:
    """Parse '10m', '600' (seconds), or '10minutes' as Slurm has it."""
    if match := _COUNT.fullmatch(text):
        return int(match[1]) * _UNITS[match[2]]
    return parse_duration(text)


def _until_time_of_day(text: str, now: datetime) -> Seconds:
    """Return the seconds until the next time that a clock shows this time."""
    try:
        hour, minute, *second = map(int, text.split(":"))
        moment = now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
    except ValueError:
        raise BadValue(f"{text!r} is not a time of day") from None
    return (moment - now + timedelta(days=moment < now)).total_seconds()


def _until_date(text: str, now: datetime) -> Seconds:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone()  # as a time of the local time zone
    except (ValueError, OverflowError, OSError):
        raise BadValue(f"{text!r} is not a date") from None
    return max(0.0, (moment - now).total_seconds())
