"""`refold whatif`: when would this job start, with 4 GPUs, with 8, as best-effort, under another policy?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from refold.cli.options import OtherPolicy
from refold.cli.output import AsJson, Column, Table, plural, print_json, print_tables, progress, tell
from refold.cli.queue import (
    AS_IN_THE_PAST,
    FUTURES,
    NOBODY_ELSE,
    Arrivals,
    AtMoment,
    FutureSeed,
    InFutures,
    Journal,
    Standing,
    between_text,
    moment_text,
    standing_at,
)
from refold.cli.why import clock, gpus_text

if TYPE_CHECKING:
    from refold.core import Scheduler
    from refold.model import Expected, Job
    from refold.simulator.ahead import Futures

BEST = "*"
NOTICED = 1.0
"""Seconds by which a job has to start later for somebody to notice."""


def _classes_beginning(incomplete: str) -> list[str]:
    from refold.model import JobClass

    return [name for name in get_args(JobClass) if name.startswith(incomplete)]


def whatif(
    journal: Journal,
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A YAML file as for 'refold run'; its first job.")],
    at: AtMoment = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N,…", help="Also with so many GPUs (per instance) instead.")
    ] = None,
    job_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="Also as guaranteed, or as best-effort.",
            autocompletion=_classes_beginning,
        ),
    ] = None,
    policy: OtherPolicy = None,
    futures: InFutures = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    as_json: AsJson = False,
) -> None:
    """When would a job start and end, if it were submitted at a moment of a journal? As it is, and in other ways.

    The policy of the journal goes on from there in several futures, with the job and without it, in which every job
    takes as long as was drawn from what is predicted of it; the same for each way that is asked about. A job that says
    its work takes that long; on other GPUs it is taken to be faster or slower in proportion. The times are half of the
    futures', and bounds for 5 % and 95 % of them; the others' delay is the mean over those who wait already.

    With --policy another policy takes over at that moment. Exit status: 1 where no way fits the cluster.

    Example: refold whatif out/journal.jsonl job.yaml --gpus 4,8 --class best-effort
    """
    standing = standing_at(journal, at)
    ways = _ways(standing, _first_job(job), gpus, job_class)
    go_on = _going_on(standing, policy)
    count = futures or FUTURES
    rows = _answers(standing, ways, go_on, count, seed, arrivals)
    notes = [AS_IN_THE_PAST if arrivals else NOBODY_ELSE, *_notes(ways)]
    who = f"under {policy}, from then on" if policy else f"under {standing.header.policy}"
    if as_json:
        asked = {"journal": str(journal), "policy": policy or standing.header.policy, "now": standing.now}
        print_json({**asked, "futures": count, "seed": seed, "ways": rows, "notes": notes})
    else:
        tell(notes)
        title = f"{ways[0].job.id}, if it were submitted at {clock(standing.now)}, {who}; in {plural(count, 'future')}"
        print_tables(_table(title, rows))
    raise typer.Exit(int(all(row["start"] is None for row in rows)))


# What is asked about.


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to submit the job; `scaled`: its work is taken to be in proportion to its GPUs."""

    name: str
    job: Job
    scaled: bool = False


def _first_job(path: Path) -> Job:
    from refold.live import read_jobs

    return read_jobs(path)[0]


def _ways(standing: Standing, given: Job, gpus: str | None, job_class: str | None) -> list[_Way]:
    """As given, with each other number of GPUs, and all that in another class."""
    import msgspec

    job = msgspec.structs.replace(given, id=_free_id(standing, given.id), submitted=standing.now)
    ways = [_Way(f"as given: {job.demand}", job), *(_with_gpus(job, text) for text in _parts(gpus))]
    if job_class is not None:
        kind = _class_from(job_class)
        ways += [
            _Way(f"{way.name}, {kind}", msgspec.structs.replace(way.job, job_class=kind), way.scaled) for way in ways
        ]
    return ways


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _free_id(standing: Standing, name: str) -> str:
    """The name, or the nearest that no job of the journal has."""
    taken = standing.present.names
    others = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in others if other not in taken)


def _with_gpus(job: Job, text: str) -> _Way:
    import msgspec

    from refold.errors import BadInput
    from refold.live.jobs_file import KEYS

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
    return _Way(str(demand), msgspec.structs.replace(job, demand=demand, work=work, gpu_range=None), scales)


def _class_from(text: str) -> Any:
    from refold.errors import UnknownName
    from refold.model import JobClass

    if text not in get_args(JobClass):
        raise UnknownName("class", text, get_args(JobClass))
    return text


def _notes(ways: Sequence[_Way]) -> list[str]:
    scaled = any(way.scaled for way in ways)
    return ["on other GPUs its work is taken to be in proportion to them"] if scaled else []


# What comes of it.


def _going_on(standing: Standing, policy: str | None) -> Callable[[], Scheduler]:
    from refold.cli.choices import chosen_policy
    from refold.cli.guarded import make_guarded
    from refold.simulator.ahead import going_on, taking_over

    header, present = standing.header, standing.present
    with progress(f"replaying {standing.path.name}"):
        if policy is None:
            return going_on(
                present, header.cluster, standing.entries, lambda: make_guarded(header.policy, header.settings)
            )
        choice = chosen_policy(policy, {})
        return taking_over(
            present, header.cluster, standing.entries, lambda: make_guarded(choice.policy, choice.settings)
        )


def _answers(
    standing: Standing, ways: Sequence[_Way], go_on: Callable[[], Scheduler], count: int, seed: int, arrivals: bool
) -> list[dict[str, Any]]:
    from refold.cli.charging import charging_from
    from refold.simulator.ahead import look_ahead

    charge = charging_from(None, None).charge(standing.header.cluster)
    with progress("looking ahead", count * (len(ways) + 1)) as advance:

        def ahead(*asked: Job) -> Futures:
            return look_ahead(
                standing.present,
                go_on,
                futures=count,
                seed=seed,
                charge=charge,
                asked=asked,
                arrivals=arrivals,
                advance=advance,
            )

        without = ahead()
        rows = [_row(standing, way, ahead(way.job), without) for way in ways]
    ends = [row["end"]["at"] if row["end"] else inf for row in rows]
    first = ends.index(min(ends))
    return [{**row, "best": len(rows) > 1 and place == first and ends[place] < inf} for place, row in enumerate(rows)]


def _row(standing: Standing, way: _Way, with_it: Futures, without: Futures) -> dict[str, Any]:
    start, end = with_it.start(way.job.id), with_it.end(way.job.id)
    delays = {job_id: _delay(job_id, with_it, without) for job_id in standing.present.view.waiting}
    known = [delay for delay in delays.values() if delay is not None]
    return {
        "way": way.name,
        "start": _told(start),
        "end": _told(end),
        "in": None if start is None else start.at - standing.now,
        "others_delayed": sum(known) / len(known) if known else 0.0,
        "delayed": sum(delay > NOTICED for delay in known),
        "fits": _fits(standing, way.job),
        "why": "" if start is not None else _why_not(standing, way.job),
    }


def _told(expected: Expected | None) -> dict[str, float | None] | None:
    if expected is None:
        return None
    return {"at": expected.at, "soonest": expected.soonest, "latest": expected.latest}


def _delay(job_id: str, with_it: Futures, without: Futures) -> float | None:
    """By how much later a job starts, in the mean over the futures in which it does either way."""
    import numpy as np

    later, before = with_it.starts(job_id), without.starts(job_id)
    both = np.isfinite(later) & np.isfinite(before)
    return float((later - before)[both].mean()) if both.any() else None


def _fits(standing: Standing, job: Job) -> bool:
    from refold.packing import Free

    return Free(standing.header.cluster).fits_when_empty(job.demand)


def _why_not(standing: Standing, job: Job) -> str:
    from refold.packing import Free

    if not _fits(standing, job):
        return f"never fits: {Free(standing.header.cluster).shortage(job.demand).text(gpus_text(job.demand.gpus))}"
    return "does not start in half of the futures"


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
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
    return Table(title, columns, [_texts(row) for row in rows], [f"{BEST} ends first"] if best else [])


def _texts(row: dict[str, Any]) -> dict[str, str]:
    from refold.model.units import text_from_seconds

    start, end = row["start"] or {}, row["end"] or {}
    return {
        "way": row["way"],
        "start": moment_text(start.get("at")),
        "starts": between_text((start.get("soonest"), start.get("latest"))),
        "end": f"{moment_text(end.get('at'))} {BEST if row['best'] else ' '}",
        "ends": between_text((end.get("soonest"), end.get("latest"))),
        "others": text_from_seconds(row["others_delayed"]) if row["start"] else "–",
        "delayed": str(row["delayed"]) if row["start"] else "–",
        "why": row["why"],
    }
