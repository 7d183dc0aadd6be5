"""`refold whatif`: when would this job start, with 4 GPUs, with 8, as best-effort, under another policy?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import OtherPolicy, daemon, refuse_without
from refold.cli.inputs import (
    Arrivals,
    AtMoment,
    ForecastOptions,
    FutureSeed,
    InFutures,
    JournalState,
    OtherClass,
    class_from,
    journal_state_at,
    schedulers_from,
    state_of_daemon,
)
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    between_text,
    clock,
    gpus_text,
    moment_text,
    plural,
    print_json,
    print_tables,
    progress,
    tell,
)

if TYPE_CHECKING:
    from refold.core import Scheduler
    from refold.model import Job, StartEstimate
    from refold.simulator import Futures

BEST = "*"
NOTICED = 1.0
"""Seconds by which a job has to start later for somebody to notice."""


def whatif(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[JOURNAL] JOB",
            help="The first job of a file as for 'refold submit'; with a journal, as for 'refold run'.",
        ),
    ],
    at: AtMoment = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N,…", help="Also with so many GPUs (per instance) instead.")
    ] = None,
    job_class: OtherClass = None,
    policy: OtherPolicy = None,
    futures: InFutures = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    as_json: AsJson = False,
) -> None:
    """When would a job start and end, if it were submitted now, or at a moment of a journal? As it is, and otherwise.

    The policy goes on from there in several futures, with the job and without it, in which every job takes as long as
    was drawn from what is predicted of it; the same for each way that is asked about. A job that says its work takes
    that long; on other GPUs it is taken to be faster or slower in proportion. The times are half of the futures', and
    bounds for 5 % and 95 % of them; the others' delay is the mean over those who wait already.

    With --policy another policy takes over at that moment. Exit status: 1 where no way fits the cluster.

    Examples: refold whatif job.yaml --gpus 4,8 · refold whatif out/journal.jsonl job.yaml --class best-effort
    """
    from refold.errors import BadInput

    asked = _WhatIfRequest(gpus, job_class, policy, ForecastOptions(True, futures, arrivals, seed))
    match files:
        case [job]:
            refuse_without("JOURNAL", {"--at": at}, "the daemon is asked about now")
            wanted, notes = _submitted(job)
            with state_of_daemon(daemon()) as state:
                fits = _tell(state, "the daemon", wanted, asked, notes, as_json)
        case [journal, job]:
            fits = _tell(journal_state_at(journal, at), str(journal), _first_job(job), asked, [], as_json)
        case _:
            raise BadInput("which job? Such as refold whatif job.yaml, or refold whatif journal.jsonl job.yaml")
    raise typer.Exit(int(not fits))


@dataclass(frozen=True, slots=True)
class _WhatIfRequest:
    gpus: str | None
    job_class: str | None
    policy: str | None
    ahead: ForecastOptions


def _tell(
    state: JournalState, source: str, job: Job, asked: _WhatIfRequest, notes: Sequence[str], as_json: bool
) -> bool:
    """Say what would become of the job, and whether anything would."""
    ways = _ways(state, job, asked.gpus, asked.job_class)
    rows = _answers(state, ways, schedulers_from(state, asked.policy), asked.ahead)
    notes = [asked.ahead.note, *_notes(ways), *notes]
    policy, count = asked.policy, asked.ahead.count
    if as_json:
        about = {"journal": source, "policy": policy or state.header.policy, "now": state.shown_now}
        print_json({**about, "futures": count, "seed": asked.ahead.seed, "ways": rows, "notes": notes})
    else:
        tell(notes)
        who = f"under {policy}, from then on" if policy else f"under {state.header.policy}"
        when = f"if it were submitted at {clock(state.shown_now)}"
        title = f"{ways[0].job.id}, {when}, {who}; in {plural(count, 'future')}"
        print_tables(_table(title, rows, state.shown_now))
    return any(row["start"] is not None for row in rows)


# What is asked about.


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way to submit the job; `scaled`: its work is taken to be in proportion to its GPUs."""

    name: str
    job: Job
    scaled: bool = False


def _first_job(path: Path) -> Job:
    from refold.jobspec import read_jobs

    return read_jobs(path)[0]


def _submitted(path: Path) -> tuple[Job, tuple[str, ...]]:
    """The first job of a file as `refold submit` reads it, and what of the file is not honoured."""
    from refold.jobspec import read_spec

    read = read_spec(path)
    first = read.submissions[0]
    return first.to_job(first.name, first.tenant or "default", "", 0.0), tuple(read.notes)


def _ways(state: JournalState, given: Job, gpus: str | None, job_class: str | None) -> list[_Variant]:
    """As given, with each other number of GPUs, and all that in another class."""
    import msgspec

    job = msgspec.structs.replace(given, id=_free_id(state, given.id), submitted=state.now)
    ways = [_Variant(f"as given: {job.demand}", job), *(_with_gpus(job, text) for text in _parts(gpus))]
    if job_class is not None:
        kind = class_from(job_class)
        ways += [
            _Variant(f"{way.name}, {kind}", msgspec.structs.replace(way.job, job_class=kind), way.scaled)
            for way in ways
        ]
    return ways


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _free_id(state: JournalState, name: str) -> str:
    """The name, or the nearest that no job of the journal has."""
    taken = state.present.names
    others = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in others if other not in taken)


def _with_gpus(job: Job, text: str) -> _Variant:
    import msgspec

    from refold.errors import BadInput
    from refold.jobspec import KEYS

    read, expected = KEYS["gpus"]
    try:
        gpus, milli = read(float(text))
        demand = msgspec.structs.replace(job.demand, gpus=gpus, gpu_milli=milli)
    except ValueError:
        raise BadInput(f"--gpus {text}: expected {expected}") from None
    work = job.work
    scales = work is not None and bool(job.demand.total_gpu_milli and demand.total_gpu_milli)
    if work is not None and scales:
        work *= job.demand.total_gpu_milli / demand.total_gpu_milli
    return _Variant(str(demand), msgspec.structs.replace(job, demand=demand, work=work, gpu_range=None), scales)


def _notes(ways: Sequence[_Variant]) -> list[str]:
    scaled = any(way.scaled for way in ways)
    return ["on other GPUs its work is taken to be in proportion to them"] if scaled else []


# What comes of it.


def _answers(
    state: JournalState, ways: Sequence[_Variant], go_on: Callable[[], Scheduler], looking: ForecastOptions
) -> list[dict[str, Any]]:
    from refold.cli.inputs import charging_from
    from refold.simulator import look_ahead

    charge = charging_from(None, None).charge(state.header.cluster)
    with progress("looking ahead", looking.count * (len(ways) + 1)) as advance:

        def ahead(*asked: Job) -> Futures:
            return look_ahead(
                state.present,
                go_on,
                futures=looking.count,
                seed=looking.seed,
                charge=charge,
                asked=asked,
                arrivals=looking.arrivals,
                advance=advance,
            )

        without = ahead()
        rows = [_row(state, way, ahead(way.job), without) for way in ways]
    ends = [row["end"]["at"] if row["end"] else inf for row in rows]
    first = ends.index(min(ends))
    return [{**row, "best": len(rows) > 1 and place == first and ends[place] < inf} for place, row in enumerate(rows)]


def _row(state: JournalState, way: _Variant, with_it: Futures, without: Futures) -> dict[str, Any]:
    start, end = with_it.start(way.job.id), with_it.end(way.job.id)
    delays = {job_id: _delay(job_id, with_it, without) for job_id in state.present.view.waiting}
    known = [delay for delay in delays.values() if delay is not None]
    return {
        "way": way.name,
        "start": _told(start, state.later),
        "end": _told(end, state.later),
        "in": None if start is None else start.at - state.now,
        "others_delayed": sum(known) / len(known) if known else 0.0,
        "delayed": sum(delay > NOTICED for delay in known),
        "fits": _fits(state, way.job),
        "why": "" if start is not None else _why_not(state, way.job),
    }


def _told(expected: StartEstimate | None, later: float) -> dict[str, float | None] | None:
    if expected is None:
        return None
    moments = {"at": expected.at, "soonest": expected.soonest, "latest": expected.latest}
    return {name: None if moment is None else moment + later for name, moment in moments.items()}


def _delay(job_id: str, with_it: Futures, without: Futures) -> float | None:
    """By how much later a job starts, in the mean over the futures in which it does either way."""
    import numpy as np

    later, before = with_it.starts(job_id), without.starts(job_id)
    both = np.isfinite(later) & np.isfinite(before)
    return float((later - before)[both].mean()) if both.any() else None


def _fits(state: JournalState, job: Job) -> bool:
    from refold.packing import Free

    return Free(state.header.cluster).fits_when_empty(job.demand)


def _why_not(state: JournalState, job: Job) -> str:
    from refold.packing import Free

    if not _fits(state, job):
        return f"never fits: {Free(state.header.cluster).shortage(job.demand).text(gpus_text(job.demand.gpus))}"
    return "does not start in half of the futures"


def _table(title: str, rows: Sequence[dict[str, Any]], now: float) -> Table:
    columns = {
        "way": Column("", whole=True),
        "start": Column("may start", number=True),
        "starts": Column("between", number=True),
        "end": Column("may end", number=True),
        "ends": Column("between", number=True),
        "others": Column("others start later by", number=True),
        "delayed": Column("jobs delayed", number=True),
        "why": Column(""),
    }
    best = any(row["best"] for row in rows)
    return Table(title, columns, [_texts(row, now) for row in rows], [f"{BEST} ends first"] if best else [])


def _texts(row: dict[str, Any], now: float) -> dict[str, str]:
    from refold.model import text_from_seconds

    start, end = row["start"] or {}, row["end"] or {}
    return {
        "way": row["way"],
        "start": moment_text(start.get("at"), now),
        "starts": between_text((start.get("soonest"), start.get("latest")), now),
        "end": f"{moment_text(end.get('at'), now)} {BEST if row['best'] else ' '}",
        "ends": between_text((end.get("soonest"), end.get("latest")), now),
        "others": text_from_seconds(row["others_delayed"]) if row["start"] else "–",
        "delayed": str(row["delayed"]) if row["start"] else "–",
        "why": row["why"],
    }
