"""How moments and durations read: of a journal, and of the daemon, whose times are those of the calendar."""

from __future__ import annotations

CALENDAR = 1e9
"""Seconds from which on a moment is one of the calendar: no simulated cluster lives for thirty years."""


def clock(seconds: float) -> str:
    """'00:01:30', '2 d 03:00:00'; of the calendar '2026-11-15 08:30:00', as the clocks here show it."""
    if seconds >= CALENDAR:
        return _of_calendar(seconds, "%Y-%m-%d %H:%M:%S")
    days, rest = divmod(round(seconds), 86_400)
    time = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {time}" if days else time


def clock_near(seconds: float, now: float) -> str:
    """A moment of the calendar: '08:30:00' on the same day, else '2026-11-15 08:30'."""
    same_day = _of_calendar(seconds, "%Y-%m-%d") == _of_calendar(now, "%Y-%m-%d")
    return _of_calendar(seconds, "%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def _of_calendar(seconds: float, form: str) -> str:
    from datetime import datetime

    try:
        return datetime.fromtimestamp(seconds).strftime(form)
    except (OverflowError, ValueError, OSError):  # beyond the years that a calendar has
        return "–"


def moment_text(moment: float | None, now: float = 0.0) -> str:
    """A moment, as short as its distance from now allows; one that is not known is a dash."""
    if moment is None:
        return "–"
    return clock_near(moment, now) if moment >= CALENDAR <= now else clock(moment)


def between_text(between: tuple[float | None, float | None], now: float = 0.0) -> str:
    """'02:30:00 – 05:00:00'; one of them may be open."""
    soonest, latest = between
    if soonest is None and latest is None:
        return "–"
    ends = ("" if moment is None else moment_text(moment, now) for moment in between)
    return " – ".join(ends).strip()


def duration(seconds: float) -> str:
    """'1 h 30 min'."""
    from refold.model import text_from_seconds

    return text_from_seconds(seconds)


def gpus_text(gpus: float) -> str:
    """'1 GPU', '0.5 GPUs'."""
    return f"{gpus:g} GPU{'s' * (gpus != 1)}"
