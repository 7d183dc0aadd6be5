"""How things stand at a moment of a journal, and how its policy may go on: what `queue` and `whatif` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.views import clock, progress

if TYPE_CHECKING:
    from refold.client import Client
    from refold.core import Entry, Header, Scheduler
    from refold.simulator import Futures, StateAt

FUTURES = 40
"""In how many futures is looked, where nobody says."""

MOST_FUTURES = 10_000

NOW = "now"
"""The moment of a journal that is being written at which it is read."""

NOBODY_ELSE = "in these futures nobody else arrives; who comes later may come first (--arrivals)"
AS_IN_THE_PAST = "in these futures others arrive as they did in the past"

AtMoment = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Such as 2d3h or 02:30:00 of the journal, or now [its end].")
]
InFutures = Annotated[
    int | None,
    typer.Option("--futures", min=1, max=MOST_FUTURES, metavar="N", help=f"Look ahead in so many [{FUTURES}]."),
]
Arrivals = Annotated[
    bool, typer.Option("--arrivals", help="In the futures others arrive, as they did in the past; else nobody does.")
]
FutureSeed = Annotated[int, typer.Option("--seed", min=0, max=2**62, help="Chance of the futures.")]


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """Whether it is asked when jobs may start, and how that is seen; None of `futures`: where nobody has promised."""

    wanted: bool = False
    futures: int | None = None
    arrivals: bool = False
    seed: int = 0

    @property
    def count(self) -> int:
        """In how many futures is looked."""
        return self.futures or FUTURES

    @property
    def note(self) -> str:
        """What everybody should know of looking ahead."""
        return AS_IN_THE_PAST if self.arrivals else NOBODY_ELSE


@dataclass(frozen=True, slots=True)
class JournalState:
    """How things stand at a moment of a journal. `later`: by so much the clock of people is ahead of the journal's."""

    path: Path
    header: Header
    present: StateAt
    later: float = 0.0

    @property
    def now(self) -> float:
        """That moment; of a journal in which nothing has happened yet, its beginning."""
        return self.present.now

    def entries(self) -> Iterator[Entry]:
        """The journal's entries, from its first on."""
        from refold.journal import read_journal

        return read_journal(self.path)[1]

    @property
    def shown_now(self) -> float:
        """That moment by the clock of people."""
        return self.now + self.later


def journal_state_at(path: Path, at: str | None) -> JournalState:
    """Read a journal up to a moment of it, or to its end."""
    from refold.errors import BadInput
    from refold.journal import read_journal
    from refold.simulator import StateAt

    moment = None if at in (None, NOW) else moment_from_text(at or "")
    header, entries = read_journal(path)
    seen = _Seen(entries)
    with progress(f"reading {path.name}"):
        present = StateAt.of(header.cluster, iter(seen), moment)
    if moment is not None and not seen.first <= moment <= seen.last:
        there = f"goes from {clock(seen.first)} to {clock(seen.last)}" if seen.last > -inf else "has no entries yet"
        raise BadInput(f"--at {at}: {path} {there}")
    if at == NOW and present.entries:
        present.now += _seconds_since_written(path)
    return JournalState(path, header, present)


def _seconds_since_written(path: Path) -> float:
    """How long nothing has happened: a live scheduler writes down at once what does."""
    from time import time

    return max(0.0, time() - path.stat().st_mtime)


class _Seen:
    """Entries, with the times of the first and the last that have passed."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = entries
        self.first, self.last = inf, -inf

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.first, self.last = min(self.first, entry.now), entry.now
            yield entry


_CLOCK = re.compile(r"(?:(\d+)\s*d\s*)?(\d+):([0-5]\d)(?::([0-5]\d))?")


def moment_from_text(text: str) -> float:
    """'90', '2d3h', and what tables show: '02:30:00', '1 d 02:30:00', '2026-11-15 02:30:00'."""
    from refold.errors import BadValue
    from refold.model import seconds_from_text

    if (at := _of_calendar(text.strip())) is not None:
        return at
    found = _CLOCK.fullmatch(text.strip())
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    try:
        return seconds_from_text(text)
    except BadValue:
        raise BadValue(f"{text!r} is not a moment; write it as 90s, 2d3h, 02:30:00 or '1 d 02:30:00'") from None


def _of_calendar(text: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp() if text.count("-") == 2 else None
    except (ValueError, OverflowError):
        return None


def futures_of(state: JournalState, about: list[str], ahead: ForecastOptions) -> Futures:
    """The policy of the journal goes on, until those that it is about have started."""
    from refold.cli.inputs.charges import charging_from
    from refold.simulator import look_ahead

    go_on = schedulers_from(state)
    charge = charging_from(None, None).charge(state.header.cluster)
    with progress("looking ahead", ahead.count) as advance:
        return look_ahead(
            state.present,
            go_on,
            futures=ahead.count,
            seed=ahead.seed,
            charge=charge,
            about=about,
            arrivals=ahead.arrivals,
            advance=advance,
        )


def schedulers_from(state: JournalState, policy: str | None = None) -> Callable[[], Scheduler]:
    """Schedulers that go on from there, one per call: with the journal's policy, or another that takes over.

    A snapshot has no decisions to replay: its own policy takes over.
    """
    from refold.cli import make_guarded
    from refold.cli.inputs.policy_choice import chosen_policy
    from refold.simulator import going_on, taking_over

    header, present = state.header, state.present
    with progress(f"replaying {state.path.name}"):
        if policy is None and not header.snapshot:
            return going_on(
                present, header.cluster, state.entries, lambda: make_guarded(header.policy, header.settings)
            )
        choice = chosen_policy(policy, {}) if policy is not None else header
        return taking_over(present, header.cluster, state.entries, lambda: make_guarded(choice.policy, choice.settings))


@contextmanager
def state_of_daemon(client: Client) -> Iterator[JournalState]:
    """How things stand with the daemon now, from a snapshot that is kept as long as this is in use."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="refold-") as folder:
        state = journal_state_at(client.snapshot(Path(folder) / "snapshot.jsonl"), None)
        yield replace(state, later=client.about().now - state.now)
