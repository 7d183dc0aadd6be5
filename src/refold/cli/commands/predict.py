"""`refold predict`: how well the durations of a trace are foreseen, beside simpler ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import FormatName, Limit, TraceName
from refold.cli.commands.trace import GPUS_PER_INSTANCE, GpusPerInstance, SkipBad
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    percent,
    plural,
    print_json,
    print_tables,
    progress,
    say,
    tell,
)

if TYPE_CHECKING:
    from refold.model import Job
    from refold.research import Evaluation, Score
    from refold.traces import Trace

OURS = "refold"
HALVES = {"whole": "all jobs", "second_half": "the second half"}
MOST_TIMES_OVERSTATED = 10.0


@dataclass(frozen=True, slots=True)
class _Method:
    """One way to foresee: how good it was on all jobs and on the second half of them, and what it cost."""

    name: str
    whole: Score
    second_half: Score
    microseconds_per_query: float
    microseconds_per_update: float


def predict(
    trace: TraceName,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    gpus_per_instance: GpusPerInstance = None,
    limit: Limit = None,
    draw_limits: Annotated[
        int | None,
        typer.Option(
            "--draw-limits",
            min=0,
            metavar="SEED",
            help="Give jobs without a time limit one that is overstated 1 to 10 times, drawn by this seed.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write predictions.csv into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how well the durations of a trace are foreseen, beside simpler ways.

    The trace is played causally, as if each job started when it was submitted: of each job, quantiles are asked for
    when it comes, and its duration is told when it ends.

    Example: refold predict demo
    """
    read = _with_limits(_read(trace, format, skip_bad, gpus_per_instance, limit), draw_limits)
    methods, ours = _all_played(read.jobs)
    later = _asked_later(read.jobs)
    written = _written(out, read.jobs, ours) if out else None
    if as_json:
        print_json(_document(read, methods, later, written))
        return
    tell(read.notes)
    print_tables(*(_table(read, methods, half) for half in HALVES), *_later_tables(later))
    if written:
        say(f"predictions: {written}")


def _read(trace: str, format: str | None, skip_bad: bool, gpus_per_instance: int | None, limit: int | None) -> Trace:
    from dataclasses import replace

    from refold.errors import BadInput
    from refold.traces import read_trace

    each = gpus_per_instance or GPUS_PER_INSTANCE
    with progress(f"reading {trace}"):
        read = read_trace(trace, format=format, skip_bad=skip_bad, gpus_per_instance=each)
    known = tuple(job for job in read.jobs[:limit] if job.work is not None)
    if not known:
        raise BadInput(f"no job of {read.name} has a duration, so nothing can be compared with what is foreseen")
    without = len(read.jobs[:limit]) - len(known)
    notes = (*read.notes, f"left out {plural(without, 'job')} without a duration") if without else read.notes
    return replace(read, jobs=known, notes=notes)


def _with_limits(trace: Trace, seed: int | None) -> Trace:
    """The trace with limits as users state them: 1 to 10 times too long, log-uniformly."""
    from dataclasses import replace

    import msgspec
    import numpy as np

    if seed is None:
        return trace
    times = MOST_TIMES_OVERSTATED ** np.random.default_rng(seed).random(len(trace.jobs))
    jobs = tuple(
        job
        if job.time_limit is not None
        else msgspec.structs.replace(job, time_limit=max(job.work or 0.0, 1.0) * float(overstated))
        for job, overstated in zip(trace.jobs, times, strict=True)
    )
    drawn = sum(job.time_limit is None for job in trace.jobs)
    return replace(trace, jobs=jobs, notes=(*trace.notes, f"limits of {plural(drawn, 'job')} are drawn, seed {seed}"))


def _all_played(jobs: Sequence[Job]) -> tuple[list[_Method], Evaluation]:
    """Every method on the same jobs, and what ours said; the limit only where jobs have one."""
    from time import process_time

    from refold.research import COMPARATORS, PredictorQuantiles, play

    limited = any(job.time_limit is not None for job in jobs)
    others = {name: made for name, made in COMPARATORS.items() if limited or not name.startswith("limit")}
    _compile()
    with progress("foreseeing", len(others) + 2) as advance:
        ours = play(jobs, PredictorQuantiles(), process_time)
        advance(2)
        methods = [_method(OURS, ours)]
        for name, made in others.items():
            methods.append(_method(name, play(jobs, made(), process_time)))
            advance()
    return methods, ours


def _compile() -> None:
    """Have what is compiled ready, so that its compilation is not measured."""
    from refold.model import Job
    from refold.research import PredictorQuantiles

    foreseen, job = PredictorQuantiles(), Job("first")
    foreseen.quantiles(job, 0.0)
    foreseen.finished(job, 1.0, 1.0)


def _method(name: str, played: Evaluation) -> _Method:
    from refold.research import score

    half = len(played.lasted) // 2
    return _Method(
        name,
        score(played.lasted, played.said),
        score(played.lasted[half:], played.said[half:]),
        played.microseconds_per_query,
        played.microseconds_per_update,
    )


def _asked_later(jobs: Sequence[Job]) -> dict[str, Score]:
    """How well the whole life of jobs is foreseen that have run for a while, by how long; where any has."""
    from refold.model import text_from_seconds
    from refold.research import LATER, play_running, score

    asked = {text_from_seconds(elapsed): play_running(jobs, elapsed) for elapsed in LATER}
    return {elapsed: score(played.lasted, played.said) for elapsed, played in asked.items() if len(played.lasted)}


def _document(trace: Trace, methods: Sequence[_Method], later: dict[str, Score], written: Path | None) -> object:
    return {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "left_out": len(trace.left_out),
        "notes": trace.notes,
        "methods": methods,
        "after": later,
        "predictions": written and str(written),
    }


_MEASURES = {
    "pinball_log10": Column("pinball loss, log10 s", lambda loss: f"{loss:.4f}", number=True),
    "pinball_hours": Column("hours", lambda loss: f"{loss:.3f}", number=True),
    "coverage_50": Column("in 50 %", percent, number=True),
    "coverage_80": Column("in 80 %", percent, number=True),
    "coverage_95": Column("in 95 %", percent, number=True),
    "median_relative_error": Column("median error", percent, number=True),
    "rank_correlation": Column("rank corr.", lambda correlation: f"{correlation:.3f}", number=True),
}


def _measures(score: Score) -> dict[str, Any]:
    return {name: getattr(score, name) for name in _MEASURES}


def _table(trace: Trace, methods: Sequence[_Method], half: str) -> Table:
    columns = {
        "method": Column("foreseen by", whole=True),
        **_MEASURES,
        "query": Column("µs a query", lambda cost: f"{cost:.1f}", number=True),
        "update": Column("µs an end", lambda cost: f"{cost:.1f}", number=True),
    }
    rows = [
        {
            "method": method.name,
            **_measures(getattr(method, half)),
            "query": method.microseconds_per_query,
            "update": method.microseconds_per_update,
        }
        for method in methods
    ]
    jobs = getattr(methods[0], half).jobs
    return Table(
        f"{trace.name}: {HALVES[half]}, {plural(jobs, 'job')}",
        columns,
        rows,
        after=["one number, without its past errors, counts as a certainty"],
    )


def _later_tables(later: dict[str, Score]) -> list[Table]:
    if not later:
        return []
    columns = {"elapsed": Column("after", whole=True), "jobs": Column("jobs", number=True), **_MEASURES}
    rows = [{"elapsed": elapsed, "jobs": score.jobs, **_measures(score)} for elapsed, score in later.items()]
    return [Table(f"{OURS}, asked again of jobs that still run", columns, rows)]


def _written(folder: Path, jobs: Sequence[Job], played: Evaluation) -> Path:
    """What was foreseen of each job, as a table."""
    import csv

    from refold.errors import BadFile
    from refold.research import CHANCES

    path = folder / "predictions.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["job_id", "submit_s", "duration_s", *(f"q{100 * chance:g}" for chance in CHANCES)])
            for job, said in zip(jobs, played.said, strict=True):
                lines.writerow([job.id, job.submitted, job.work, *(f"{seconds:.3f}" for seconds in said)])
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
    return path
