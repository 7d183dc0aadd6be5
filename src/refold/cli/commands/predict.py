"""`refold predict`: evaluate run-time predictions on a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from refold.cli import TraceName, TraceOptions, option, with_option_groups
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    format_percent,
    plural,
    print_json,
    print_line,
    print_notes,
    print_tables,
    progress,
)
from refold.errors import BadFile, BadInput
from refold.model import format_duration

if TYPE_CHECKING:
    from refold.model import Job
    from refold.predict import Evaluation, Score
    from refold.simulator.traces import Trace

Row = TypeVar("Row")
OUR_METHOD = "refold"
PARTS = {"whole": "all jobs", "second_half": "the second half"}
MAX_OVERSTATEMENT = 10.0
"""Largest ratio of a random time limit to the run time."""


@dataclass(frozen=True, slots=True)
class _Method:
    """A prediction method: its scores on all jobs and on the second half, and its CPU time."""

    name: str
    whole: Score
    second_half: Score
    microseconds_per_query: float
    microseconds_per_update: float


@with_option_groups
def predict(
    *,
    trace: TraceName,
    reading: TraceOptions,
    draw_limits: Annotated[
        int | None,
        option(
            "SEED",
            "Give jobs without a time limit a random one, 1 to 10 times their run time, with this random seed.",
            min=0,
        ),
    ] = None,
    out: Annotated[Path | None, option("DIR", "Write predictions.csv to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate run-time predictions on a trace, compared with simpler methods.

    Jobs are processed in order of time, as if each started when submitted: a method predicts quantiles when a job is
    submitted, and learns the run time when it ends.

    Example: refold predict demo
    """
    jobs_read = _with_limits(_read_trace(trace, reading), draw_limits)
    methods, own_evaluation = _evaluate_methods(jobs_read.jobs)
    while_running = _evaluate_while_running(jobs_read.jobs)
    written = _write_predictions(out, jobs_read.jobs, own_evaluation) if out else None
    if as_json:
        print_json(_document(jobs_read, methods, while_running, written))
        return
    print_notes(jobs_read.notes)
    print_tables(*(_table(jobs_read, methods, part) for part in PARTS), *_while_running_tables(while_running))
    if written:
        print_line(f"predictions: {written}")


def _read_trace(trace: str, options: TraceOptions) -> Trace:
    """Read a trace without jobs of unknown run time."""
    from dataclasses import replace

    read, limit = options.read(trace), options.limit
    known = tuple(job for job in read.jobs[:limit] if job.work is not None)
    if not known:
        raise BadInput(f"no job of {read.name} has a duration, so predictions cannot be evaluated")
    skipped = len(read.jobs[:limit]) - len(known)
    notes = (*read.notes, f"skipped {plural(skipped, 'job')} without a duration") if skipped else read.notes
    return replace(read, jobs=known, notes=notes)


def _with_limits(trace: Trace, seed: int | None) -> Trace:
    """Add random time limits as users state them: 1 to 10 times the run time, log-uniformly distributed."""
    from dataclasses import replace

    import msgspec
    import numpy as np

    if seed is None:
        return trace
    factors = MAX_OVERSTATEMENT ** np.random.default_rng(seed).random(len(trace.jobs))
    jobs = tuple(
        job
        if job.time_limit is not None
        else msgspec.structs.replace(job, time_limit=max(job.work or 0.0, 1.0) * float(factor))
        for job, factor in zip(trace.jobs, factors, strict=True)
    )
    without = sum(job.time_limit is None for job in trace.jobs)
    note = f"random time limits for {plural(without, 'job')}, random seed {seed}"
    return replace(trace, jobs=jobs, notes=(*trace.notes, note))


def _evaluate_methods(jobs: Sequence[Job]) -> tuple[list[_Method], Evaluation]:
    """Evaluate every method on the same jobs; return also our own evaluation. Limits only if jobs have them."""
    from time import process_time

    from refold.predict import COMPARATORS, PredictorQuantiles, evaluate_at_submission

    limited = any(job.time_limit is not None for job in jobs)
    others = {name: make for name, make in COMPARATORS.items() if limited or not name.startswith("limit")}
    with progress("predicting", len(others) + 2) as advance:
        own_evaluation = evaluate_at_submission(jobs, PredictorQuantiles(), process_time)
        advance(2)
        methods = [_score_method(OUR_METHOD, own_evaluation)]
        for name, make in others.items():
            methods.append(_score_method(name, evaluate_at_submission(jobs, make(), process_time)))
            advance()
    return methods, own_evaluation


def _score_method(name: str, evaluation: Evaluation) -> _Method:
    from refold.predict import score

    half = len(evaluation.durations) // 2
    return _Method(
        name,
        score(evaluation.durations, evaluation.quantiles),
        score(evaluation.durations[half:], evaluation.quantiles[half:]),
        evaluation.microseconds_per_query,
        evaluation.microseconds_per_update,
    )


def _evaluate_while_running(jobs: Sequence[Job]) -> dict[str, Score]:
    """Score predictions of the total run time of running jobs, by their elapsed time; without empty groups."""
    from refold.predict import RECHECK_SECONDS, evaluate_while_running, score

    evaluations = {format_duration(elapsed): evaluate_while_running(jobs, elapsed) for elapsed in RECHECK_SECONDS}
    return {elapsed: score(one.durations, one.quantiles) for elapsed, one in evaluations.items() if len(one.durations)}


def _document(
    trace: Trace, methods: Sequence[_Method], while_running: dict[str, Score], written: Path | None
) -> object:
    return {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "skipped_rows": len(trace.skipped_rows),
        "notes": trace.notes,
        "methods": methods,
        "while_running": while_running,
        "predictions": written and str(written),
    }


def _measure_columns(score_of: Callable[[Row], Score]) -> list[Column[Row]]:
    return [
        Column("pinball loss, log10 s", lambda row: f"{score_of(row).pinball_log10:.4f}", number=True),
        Column("pinball loss, h", lambda row: f"{score_of(row).pinball_hours:.3f}", number=True),
        Column("coverage 50 %", lambda row: format_percent(score_of(row).coverage_50), number=True),
        Column("coverage 80 %", lambda row: format_percent(score_of(row).coverage_80), number=True),
        Column("coverage 95 %", lambda row: format_percent(score_of(row).coverage_95), number=True),
        Column("median relative error", lambda row: format_percent(score_of(row).median_relative_error), number=True),
        Column("rank correlation", lambda row: f"{score_of(row).rank_correlation:.3f}", number=True),
    ]


def _table(trace: Trace, methods: Sequence[_Method], part: str) -> Table:
    columns: list[Column[_Method]] = [
        Column("method", lambda method: method.name, whole=True),
        *_measure_columns(attrgetter(part)),
        Column("µs per query", lambda method: f"{method.microseconds_per_query:.1f}", number=True),
        Column("µs per update", lambda method: f"{method.microseconds_per_update:.1f}", number=True),
    ]
    title = f"{trace.name}: {PARTS[part]}, {plural(getattr(methods[0], part).jobs, 'job')}"
    after = ["a point prediction without past errors is scored as a distribution without spread"]
    return Table(title, columns, methods, after)


def _while_running_tables(while_running: dict[str, Score]) -> list[Table]:
    if not while_running:
        return []
    measures: list[Column[tuple[str, Score]]] = _measure_columns(lambda row: row[1])
    columns: list[Column[Any]] = [
        Column("elapsed", lambda row: row[0], whole=True),
        Column("jobs", lambda row: str(row[1].jobs), number=True),
        *measures,
    ]
    return [Table(f"{OUR_METHOD}: predictions for running jobs", columns, [*while_running.items()])]


def _write_predictions(folder: Path, jobs: Sequence[Job], evaluation: Evaluation) -> Path:
    """Write the predicted quantiles of each job as CSV."""
    import csv

    from refold.predict import QUANTILE_LEVELS

    path = folder / "predictions.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["job_id", "submit_s", "duration_s", *(f"q{100 * level:g}" for level in QUANTILE_LEVELS)])
            for job, quantiles in zip(jobs, evaluation.quantiles, strict=True):
                writer.writerow([job.id, job.submitted, job.work, *(f"{seconds:.3f}" for seconds in quantiles)])
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
    return path
