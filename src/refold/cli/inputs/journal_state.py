"""The state at a time of a journal, and simulated futures from there: shared by `queue` and `whatif`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.forecast_options import ForecastOptions
from refold.cli.views import format_clock, progress
from refold.errors import BadInput, BadValue
from refold.model import parse_duration

if TYPE_CHECKING:
    from refold.client import Client
    from refold.core import Entry, Header, Scheduler
    from refold.simulator import Futures, RangeFactors, StateAt

NOW = "now"
"""Value of --at: the time at which a journal that is still being written is read."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """The state at a time of a journal. `clock_offset`: seconds to add to journal times to get displayed times.

    `is_live`: it is the current state of the daemon.
    """

    path: Path
    header: Header
    present: StateAt
    clock_offset: float = 0.0
    is_live: bool = False

    @property
    def now(self) -> float:
        """The time of the state in journal time; 0 for a journal without entries."""
        return self.present.now

    def entries(self) -> Iterator[Entry]:
        from refold.journal import read_journal

        return read_journal(self.path)[1]

    @property
    def range_factors(self) -> RangeFactors:
        """By what ranges of starts differ from those of simulated futures."""
        from refold.simulator import AS_SIMULATED, OTHER_SCHEDULER

        return OTHER_SCHEDULER if self.header.scheduler else AS_SIMULATED

    @property
    def displayed_now(self) -> float:
        return self.now + self.clock_offset


def read_journal_state(path: Path, at: str | None) -> JournalState:
    """Read a journal up to a time, or to its end."""
    from refold.journal import read_journal
    from refold.simulator import StateAt

    time = None if at in (None, NOW) else parse_time(at or "")
    header, entries = read_journal(path)
    tracked = _TimeTracker(entries)
    with progress(f"reading {path.name}"):
        present = StateAt.from_entries(header.cluster, iter(tracked), time)
    if time is not None and not tracked.first <= time <= tracked.last:
        is_empty = tracked.last == -inf
        span = (
            "has no entries yet"
            if is_empty
            else f"covers {format_clock(tracked.first)} to {format_clock(tracked.last)}"
        )
        raise BadInput(f"--at {at}: {path} {span}")
    if at == NOW and present.entries:
        present.now += _seconds_since_written(path)
    return JournalState(path, header, present)


def _seconds_since_written(path: Path) -> float:
    """Return the time since the last entry: a live scheduler writes every event at once."""
    from time import time

    return max(0.0, time() - path.stat().st_mtime)


class _TimeTracker:
    """An iterable of entries that records the times of the first and the last entry read."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = entries
        self.first, self.last = inf, -inf

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.first, self.last = min(self.first, entry.now), entry.now
            yield entry


_CLOCK_TIME = re.compile(r"(?:(\d+)\s*d\s*)?(\d+):([0-5]\d)(?::([0-5]\d))?")


def parse_time(text: str) -> float:
    """Parse '90', '2d3h', and the formats of tables: '02:30:00', '1 d 02:30:00', '2026-11-15 02:30:00'."""
    if (at := _parse_calendar_time(text.strip())) is not None:
        return at
    found = _CLOCK_TIME.fullmatch(text.strip())
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    try:
        return parse_duration(text)
    except BadValue:
        raise BadValue(
            f"{text!r} is not a time; expected a time such as 90s, 2d3h, 02:30:00 or '1 d 02:30:00'"
        ) from None


def _parse_calendar_time(text: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp() if text.count("-") == 2 else None
    except (ValueError, OverflowError):
        return None


def forecast_starts(state: JournalState, job_ids: list[str], options: ForecastOptions) -> Futures:
    """Continue the journal's policy in several simulated futures until the given jobs have started.

    For the daemon fewer futures are simulated if they take long, unless their number was given.
    """
    from refold.cli.inputs.charges import parse_charging
    from refold.simulator import simulate_futures

    make_scheduler = make_scheduler_factory(state)
    charge = parse_charging(None, None).charge(state.header.cluster)
    with progress("simulating futures", options.future_count) as advance:
        return simulate_futures(
            state.present,
            make_scheduler,
            futures=options.future_count,
            seed=options.seed,
            charge=charge,
            job_ids=job_ids,
            arrivals=options.arrivals,
            factors=state.range_factors,
            advance=advance,
            should_stop=stop_after(options.time_limit(state.is_live)),
        )


def stop_after(seconds: float) -> Callable[[], bool]:
    """Return a function that returns True when this time has passed."""
    from time import perf_counter

    end = perf_counter() + seconds
    return lambda: perf_counter() > end


def make_scheduler_factory(state: JournalState, policy: str | None = None) -> Callable[[], Scheduler]:
    """Return a function that makes schedulers which continue from the state, with the journal's or another policy.

    The journal's policy is replayed up to the state; another policy starts there without memory, as does the policy of
    a snapshot, which contains no decisions to replay.
    """
    from refold.cli import make_guarded_policy
    from refold.cli.inputs.policy_choice import parse_policy
    from refold.simulator import continue_with_new_policy, continue_with_own_policy, without_start_estimates

    header, present = state.header, state.present
    with progress(f"replaying {state.path.name}"):
        choice = parse_policy(policy, {}) if policy is not None else header
        settings = without_start_estimates(choice.settings)
        is_own = policy is None and not header.snapshot
        continue_with = continue_with_own_policy if is_own else continue_with_new_policy
        return continue_with(
            present, header.cluster, state.entries, lambda: make_guarded_policy(choice.policy, settings)
        )


@contextmanager
def read_daemon_state(client: Client) -> Iterator[JournalState]:
    """Read the current state of the daemon from a snapshot, in a temporary file that exists inside the context."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder:
        state = read_journal_state(client.snapshot(Path(folder) / "snapshot.jsonl"), None)
        yield replace(state, clock_offset=client.info().now - state.now, is_live=True)
