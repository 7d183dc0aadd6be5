"""`refold queue`: who waits at a moment of a journal, why, and when they may start."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli.output import AsJson, Column, Table, plural, print_json, print_tables, progress, tell
from refold.cli.why import clock, gpus_text

if TYPE_CHECKING:
    from refold.core import Entry, Header
    from refold.model import Expected, Job, Wait
    from refold.simulator.ahead import Futures
    from refold.simulator.present import Present

FUTURES = 40
"""In how many futures is looked, where nobody says."""

MOST_FUTURES = 10_000

NOW = "now"
"""The moment of a journal that is being written at which it is read."""

LOOK_AGAIN_AFTER = 2.0
"""Seconds between two looks of --watch."""

NOBODY_ELSE = "in these futures nobody else arrives; who comes later may come first (--arrivals)"
AS_IN_THE_PAST = "in these futures others arrive as they did in the past"
"""What everybody should know of looking ahead."""

Journal = Annotated[
    Path, typer.Argument(metavar="JOURNAL", help="A journal.jsonl, plain or .gz; it may still be written.")
]
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


def queue(
    journal: Journal,
    at: AtMoment = None,
    start: Annotated[bool, typer.Option("--start", help="Say when they may start.")] = False,
    futures: InFutures = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    running: Annotated[bool, typer.Option("--running", help="List who runs as well, and when that may end.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="JOBS", help="Only so many, the first ones.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List who waits at a moment of a journal, since when and why; with --start, when they may start.

    What the policy has promised is told as it was. To whom it has promised nothing, or with --futures to everybody, the
    policy's own further decisions are told: it goes on from there in several futures, in which every job takes as long
    as was drawn from what is predicted of it. The times are half of the futures', and bounds for 5 % and 95 % of them.

    Example: refold queue out/journal.jsonl --start
    """
    from refold.errors import BadInput

    if arrivals and not start and futures is None:
        raise BadInput("--arrivals needs --start: it is about when jobs may start")
    if watch and (at is not None or as_json):
        raise BadInput(
            f"--watch looks at the end of the journal, again and again: leave {'--json' if as_json else '--at'} out"
        )
    asked = _Asked(start or futures is not None, futures, arrivals, seed, running, limit)
    while True:
        standing = standing_at(journal, NOW if watch else at)
        shown = _shown(standing, asked)
        if as_json:
            print_json(shown.document(standing))
        else:
            if watch:
                _clear_screen()
            shown.tell(standing)
        if not watch:
            return
        _sleep(LOOK_AGAIN_AFTER)


def _clear_screen() -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[2J\x1b[H")


def _sleep(seconds: float) -> None:
    from time import sleep

    sleep(seconds)


# A moment of a journal.


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand at a moment of a journal."""

    path: Path
    header: Header
    present: Present

    @property
    def now(self) -> float:
        """That moment; of a journal in which nothing has happened yet, its beginning."""
        return self.present.now

    def entries(self) -> Iterator[Entry]:
        """The journal's entries, from its first on."""
        from refold.journal import read_journal

        return read_journal(self.path)[1]


def standing_at(path: Path, at: str | None) -> Standing:
    """Read a journal up to a moment of it, or to its end."""
    from refold.errors import BadInput
    from refold.journal import read_journal
    from refold.simulator.present import Present

    moment = None if at in (None, NOW) else moment_from_text(at or "")
    header, entries = read_journal(path)
    seen = _Seen(entries)
    with progress(f"reading {path.name}"):
        present = Present.of(header.cluster, iter(seen), moment)
    if moment is not None and not seen.first <= moment <= seen.last:
        there = f"goes from {clock(seen.first)} to {clock(seen.last)}" if seen.last > -inf else "has no entries yet"
        raise BadInput(f"--at {at}: {path} {there}")
    if at == NOW and present.entries:
        present.now += _seconds_since_written(path)
    return Standing(path, header, present)


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
    """'90', '2d3h', and what tables show: '02:30:00', '1 d 02:30:00'."""
    from refold.errors import BadValue
    from refold.model.units import seconds_from_text

    found = _CLOCK.fullmatch(text.strip())
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    try:
        return seconds_from_text(text)
    except BadValue:
        raise BadValue(f"{text!r} is not a moment; write it as 90s, 2d3h, 02:30:00 or '1 d 02:30:00'") from None


def _futures_of(standing: Standing, about: list[str], count: int, seed: int, arrivals: bool) -> Futures:
    """The policy of the journal goes on, until those that it is about have started."""
    from refold.cli.charging import charging_from
    from refold.cli.guarded import make_guarded
    from refold.simulator.ahead import going_on, look_ahead

    header, present = standing.header, standing.present
    with progress(f"replaying {standing.path.name}"):
        go_on = going_on(
            present, header.cluster, standing.entries, lambda: make_guarded(header.policy, header.settings)
        )
    charge = charging_from(None, None).charge(header.cluster)
    with progress("looking ahead", count) as advance:
        return look_ahead(
            present, go_on, futures=count, seed=seed, charge=charge, about=about, arrivals=arrivals, advance=advance
        )


# What is shown of it.


@dataclass(frozen=True, slots=True)
class _Asked:
    start: bool
    futures: int | None
    arrivals: bool
    seed: int
    running: bool
    limit: int | None


@dataclass(frozen=True, slots=True)
class _Shown:
    waiting: list[dict[str, Any]]
    running: list[dict[str, Any]] | None
    starts: bool
    left_out: int
    notes: list[str]

    def document(self, standing: Standing) -> dict[str, Any]:
        view = standing.present.view
        return {
            "journal": str(standing.path),
            "policy": standing.header.policy,
            "now": standing.now,
            "free_gpus": view.free_gpus,
            "gpus": standing.header.cluster.gpus,
            "waiting": self.waiting,
            **({} if self.running is None else {"running": self.running}),
            "notes": self.notes,
        }

    def tell(self, standing: Standing) -> None:
        view, header = standing.present.view, standing.header
        waiting = _jobs_wait(len(view.waiting) + len(view.never))
        free = f"{view.free_gpus:g} of {header.cluster.gpus:,} GPUs free"
        title = f"{waiting} at {clock(standing.now)}, under {header.policy}; {plural(len(view.runs), 'run')}, {free}"
        after = [f"… and {plural(self.left_out, 'job')} more"] if self.left_out else []
        tell(self.notes)
        print_tables(Table(title, _waiting_columns(self.starts), self.waiting, after))
        if self.running is not None:
            print_tables(Table("Running", _running_columns(), self.running))


def _jobs_wait(count: int) -> str:
    return "nobody waits" if not count else f"{plural(count, 'job')} wait{'s' * (count == 1)}"


def _shown(standing: Standing, asked: _Asked) -> _Shown:
    view = standing.present.view
    jobs = [*view.waiting.values(), *view.never.values()]
    rows = [_waiting_row(standing, job, place) for place, job in enumerate(jobs[: asked.limit], start=1)]
    notes: list[str] = []
    if asked.start:
        notes = _add_starts(standing, asked, rows)
    running = _running_rows(standing)[: asked.limit] if asked.running else None
    return _Shown(rows, running, asked.start, len(jobs) - len(rows), notes)


def _waiting_row(standing: Standing, job: Job, place: int) -> dict[str, Any]:
    present = standing.present
    wait = present.view.reason(job.id)
    since = present.waiting_since.get(job.id, job.submitted)
    return {
        "place": place,
        "job": job.id,
        "demand": str(job.demand),
        "gpus": job.demand.total_gpus,
        "tenant": job.tenant,
        "since": since,
        "waited": standing.now - since,
        "reason": wait.reason.value,
        "why": _why_text(wait, job),
    }


def _why_text(wait: Wait, job: Job) -> str:
    """'(Resources: 0 of 12 nodes fit: 12 × less than 8 GPUs free)'."""
    if wait.shortage is not None:
        return f"({wait.reason.value}: {wait.shortage.text(gpus_text(job.demand.gpus))})"
    return f"({wait.reason.value}: {plural(wait.ahead, 'job')} before it)" if wait.ahead else f"({wait.reason.value})"


def _add_starts(standing: Standing, asked: _Asked, rows: list[dict[str, Any]]) -> list[str]:
    """When each may start, and who says so; and what to know of that."""
    view = standing.present.view
    promised = {row["job"]: view.expected(row["job"]) for row in rows}
    without = [job for job in promised if job in view.waiting and (asked.futures or not promised[job])]
    count = asked.futures or FUTURES
    futures = _futures_of(standing, without, count, asked.seed, asked.arrivals) if without else None
    told_ahead = set(without)
    for row in rows:
        if row["job"] in told_ahead and futures is not None:
            _add_start(row, futures.start(row["job"]), plural(count, "future"))
        else:
            expected = promised[row["job"]]
            _add_start(row, expected, _promise_text(expected, standing.now))
    return [AS_IN_THE_PAST if asked.arrivals else NOBODY_ELSE] if without else []


def _promise_text(promised: Expected | None, now: float) -> str:
    """Who is not told anything, is not; else it is a promise, of which the expected time or the bound may be over."""
    if promised is None:
        return ""
    if promised.latest is not None and promised.latest < now:
        return "promise, passed"
    return "promise, late" if promised.at < now else "promise"


def _add_start(row: dict[str, Any], expected: Expected | None, by: str) -> None:
    row |= {
        "expected": expected and expected.at,
        "soonest": expected and expected.soonest,
        "latest": expected and expected.latest,
        "by": by,
    }
    row["between"] = (row["soonest"], row["latest"])


def _running_rows(standing: Standing) -> list[dict[str, Any]]:
    from refold.cli.replay import allocation_text

    present = standing.present
    rows: list[dict[str, Any]] = []
    for run in present.view.runs.values():
        job, end = present.view.active[run.job], present.end(run)
        rows.append(
            {
                "job": run.job,
                "demand": str(job.demand),
                "gpus": run.allocation.gpu_milli / 1000,
                "tenant": job.tenant,
                "since": run.since,
                "ran": standing.now - run.since,
                "where": allocation_text(run.allocation, standing.header.cluster),
                "stopping": run.stopping,
                "expected": end.at,
                "soonest": end.soonest,
                "latest": end.latest,
                "between": (end.soonest, end.latest),
            }
        )
    return sorted(rows, key=lambda row: (row["expected"], row["job"]))


def moment_text(moment: float | None) -> str:
    """A moment of a journal; one that is not known is a dash."""
    return "–" if moment is None else clock(moment)


def between_text(between: tuple[float | None, float | None]) -> str:
    """'02:30:00 – 05:00:00'; one of them may be open."""
    soonest, latest = between
    if soonest is None and latest is None:
        return "–"
    return f"{'' if soonest is None else clock(soonest)} – {'' if latest is None else clock(latest)}".strip()


def _duration(seconds: float) -> str:
    from refold.model.units import text_from_seconds

    return text_from_seconds(seconds)


def _waiting_columns(starts: bool) -> dict[str, Column]:
    when = {
        "expected": Column("may start", moment_text, number=True),
        "between": Column("between", between_text, number=True),
        "by": Column("by", whole=True),
    }
    return {
        "place": Column("", number=True),
        "job": Column("job", whole=True),
        "demand": Column("GPUs", whole=True),
        "tenant": Column("tenant", whole=True),
        "waited": Column("waits for", _duration, number=True),
        **(when if starts else {}),
        "why": Column("reason"),
    }


def _running_columns() -> dict[str, Column]:
    return {
        "job": Column("job", whole=True),
        "demand": Column("GPUs", whole=True),
        "tenant": Column("tenant", whole=True),
        "ran": Column("runs for", _duration, number=True),
        "expected": Column("may end", moment_text, number=True),
        "between": Column("between", between_text, number=True),
        "where": Column("on"),
    }
