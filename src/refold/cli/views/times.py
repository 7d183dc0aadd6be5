"""Formatting of times and durations. Journals of simulations start at 0; the daemon uses calendar time."""

from __future__ import annotations

from refold.model import format_duration, format_memory

CALENDAR_SECONDS = 1e9
"""Times from this value on are seconds since 1970, since no simulation spans thirty years."""


def format_clock(seconds: float) -> str:
    """Format '00:01:30', '2 d 03:00:00'; calendar times as '2026-11-15 08:30:00' in local time."""
    if seconds >= CALENDAR_SECONDS:
        return _format_calendar_time(seconds, "%Y-%m-%d %H:%M:%S")
    days, rest = divmod(round(seconds), 86_400)
    time = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {time}" if days else time


def format_clock_near(seconds: float, now: float) -> str:
    """Format a calendar time: '08:30:00' on the same day as `now`, else '2026-11-15 08:30'."""
    same_day = _format_calendar_time(seconds, "%Y-%m-%d") == _format_calendar_time(now, "%Y-%m-%d")
    return _format_calendar_time(seconds, "%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def _format_calendar_time(seconds: float, pattern: str) -> str:
    from datetime import datetime

    try:
        return datetime.fromtimestamp(seconds).strftime(pattern)
    except (OverflowError, ValueError, OSError):  # outside the range of datetime
        return "–"


def format_moment(moment: float | None, now: float = 0.0) -> str:
    """Format a time as short as its distance from `now` allows; None as a dash."""
    if moment is None:
        return "–"
    return format_clock_near(moment, now) if moment >= CALENDAR_SECONDS <= now else format_clock(moment)


def format_interval(interval: tuple[float | None, float | None], now: float = 0.0) -> str:
    """Format '02:30:00 – 05:00:00'; None: unbounded on that side."""
    soonest, latest = interval
    if soonest is None and latest is None:
        return "–"
    bounds = ("" if bound is None else format_moment(bound, now) for bound in interval)
    return " – ".join(bounds).strip()


def format_elapsed(seconds: float) -> str:
    """Format a duration as '1 h 30 min'."""
    return format_duration(seconds)


def format_peak(mib: int | None) -> str:
    """Format an amount of memory, '512 MiB' or '4 GiB'; '–' if it is not known."""
    return "–" if mib is None else format_memory(mib)


def format_gpus(gpus: float) -> str:
    """Format '2 GPUs', '1 GPU', '0.5 GPU'."""
    return f"{gpus:g} GPU{'' if 0 < gpus <= 1 else 's'}"
