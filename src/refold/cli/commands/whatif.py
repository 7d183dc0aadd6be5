"""`refold whatif`: estimate when a job would start and end, with variants of its request and under other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import OtherPolicy, make_client, require_option
from refold.cli.inputs import (
    Arrivals,
    AtTime,
    ForecastOptions,
    FutureCount,
    FutureSeed,
    JournalState,
    OtherClass,
    make_scheduler_factory,
    parse_job_class,
    read_daemon_state,
    read_journal_state,
)
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    format_clock,
    format_interval,
    format_moment,
    plural,
    print_json,
    print_notes,
    print_tables,
    progress,
)

if TYPE_CHECKING:
    from refold.core import Scheduler
    from refold.model import Job, StartEstimate
    from refold.simulator import Futures

BEST_MARK = "*"
MIN_DELAY_SECONDS = 1.0
"""A job counts as delayed if it starts later by more than this."""


def whatif(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[JOURNAL] JOB",
            help="Job file, as for 'refold submit' (docs/jobs.md); the first job is used.",
        ),
    ],
    at: AtTime = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N,…", help="Also estimate with these numbers of GPUs per instance.")
    ] = None,
    job_class: OtherClass = None,
    policy: OtherPolicy = None,
    futures: FutureCount = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Estimate when a job would start and end if it were submitted now, or at a time of a journal.

    The policy is simulated in several futures, with and without the job, each with random run times drawn from their
    predicted distributions; all variants see the same run times. A job with an estimate takes that time, scaled in
    proportion for other numbers of GPUs. Estimates are medians of the futures, ranges their 5th to 95th percentile; the
    delay of other jobs is the mean over jobs that are already waiting.

    With --policy another policy takes over at that time. Exit status: 1 if no variant starts.

    Examples: refold whatif job.yaml --gpus 4,8 · refold whatif out/journal.jsonl job.yaml --class best-effort
    """
    from refold.errors import BadInput

    options = _WhatIfOptions(gpus, job_class, policy, ForecastOptions(True, futures, arrivals, seed))
    match files:
        case [job_file]:
            require_option("JOURNAL", {"--at": at}, "the daemon's state is always the current one")
            job, notes = _read_first_job(job_file)
            with read_daemon_state(make_client()) as state:
                starts = _print_estimates(state, "the daemon", job, options, notes, as_json)
        case [journal, job_file]:
            state = read_journal_state(journal, at)
            job, notes = _read_first_job(job_file)
            starts = _print_estimates(state, str(journal), job, options, notes, as_json)
        case _:
            raise BadInput("expected a job file: refold whatif job.yaml, or refold whatif journal.jsonl job.yaml")
    raise typer.Exit(int(not starts))


@dataclass(frozen=True, slots=True)
class _WhatIfOptions:
    gpus: str | None
    job_class: str | None
    policy: str | None
    forecast: ForecastOptions


def _print_estimates(
    state: JournalState, source: str, job: Job, options: _WhatIfOptions, notes: Sequence[str], as_json: bool
) -> bool:
    """Print the estimates of all variants of the job; return whether any of them starts."""
    variants = _make_variants(state, job, options.gpus, options.job_class)
    rows = _estimate(state, variants, make_scheduler_factory(state, options.policy), options.forecast)
    notes = [options.forecast.note, *_scaling_notes(variants), *notes]
    policy, count = options.policy, options.forecast.count
    if as_json:
        header = {"journal": source, "policy": policy or state.header.policy, "now": state.displayed_now}
        print_json({**header, "futures": count, "seed": options.forecast.seed, "variants": rows, "notes": notes})
    else:
        print_notes(notes)
        policy_text = f"policy {policy} from then on" if policy else f"policy {state.header.policy}"
        when = f"submitted at {format_clock(state.displayed_now)}"
        title = f"{variants[0].job.id}, {when}, {policy_text}, {plural(count, 'simulated future')}"
        print_tables(_table(title, rows, state.displayed_now))
    return any(row["start"] is not None for row in rows)


# Variants of the job.


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant of the job. `scaled`: its work was scaled in proportion to its GPUs."""

    name: str
    job: Job
    scaled: bool = False


def _read_first_job(path: Path) -> tuple[Job, tuple[str, ...]]:
    """Return the first job of a file, and notes on ignored fields."""
    from refold.jobspec import read_spec

    spec = read_spec(path)
    first = spec.submissions[0]
    return first.to_job(first.name, first.tenant or "default", "", 0.0), tuple(spec.notes)


def _make_variants(state: JournalState, given: Job, gpus: str | None, job_class: str | None) -> list[_Variant]:
    """Return the job as given, with each number of GPUs, and all of these again with the other job class."""
    import msgspec

    job = msgspec.structs.replace(given, id=_unused_id(state, given.id), submitted=state.now)
    variants = [_Variant(f"as given: {job.demand}", job), *(_with_gpus(job, text) for text in _split_list(gpus))]
    if job_class is not None:
        other = parse_job_class(job_class)
        variants += [
            _Variant(f"{one.name}, {other}", msgspec.structs.replace(one.job, job_class=other), one.scaled)
            for one in variants
        ]
    return variants


def _split_list(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _unused_id(state: JournalState, name: str) -> str:
    """Return the name, or 'name (2)' and so on if a job of the journal has it."""
    taken = state.present.used_ids
    others = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in others if other not in taken)


def _with_gpus(job: Job, text: str) -> _Variant:
    import msgspec

    from refold.errors import BadInput
    from refold.jobspec import parse_gpu_request
    from refold.model import milli_from_number

    try:
        request = parse_gpu_request(text)
        if request.types or request.minimum != request.maximum:
            raise ValueError
        milli = milli_from_number(request.share)
        demand = msgspec.structs.replace(job.demand, gpus=request.minimum, gpu_milli=milli)
    except ValueError:
        raise BadInput(f"--gpus {text}: expected a whole number ≥ 0, or a fraction of one GPU such as 0.5") from None
    work = job.work
    scales = work is not None and bool(job.demand.total_gpu_milli and demand.total_gpu_milli)
    if work is not None and scales:
        work *= job.demand.total_gpu_milli / demand.total_gpu_milli
    return _Variant(str(demand), msgspec.structs.replace(job, demand=demand, work=work, gpu_range=None), scales)


def _scaling_notes(variants: Sequence[_Variant]) -> list[str]:
    scaled = any(variant.scaled for variant in variants)
    return ["run time is assumed to be inversely proportional to the number of GPUs"] if scaled else []


# Estimates.


def _estimate(
    state: JournalState,
    variants: Sequence[_Variant],
    make_scheduler: Callable[[], Scheduler],
    options: ForecastOptions,
) -> list[dict[str, Any]]:
    """Simulate the futures without the job and with each variant; return a row per variant."""
    from refold.cli.inputs import parse_charging
    from refold.simulator import simulate_futures

    charge = parse_charging(None, None).charge(state.header.cluster)
    with progress("simulating futures", options.count * (len(variants) + 1)) as advance:

        def simulate(*new_jobs: Job) -> Futures:
            return simulate_futures(
                state.present,
                make_scheduler,
                futures=options.count,
                seed=options.seed,
                charge=charge,
                new_jobs=new_jobs,
                arrivals=options.arrivals,
                advance=advance,
            )

        without = simulate()
        rows = [_row(state, variant, simulate(variant.job), without) for variant in variants]
    ends = [row["end"]["at"] if row["end"] else inf for row in rows]
    first = ends.index(min(ends))
    return [{**row, "best": len(rows) > 1 and index == first and ends[index] < inf} for index, row in enumerate(rows)]


def _row(state: JournalState, variant: _Variant, with_job: Futures, without: Futures) -> dict[str, Any]:
    start, end = with_job.start(variant.job.id), with_job.end(variant.job.id)
    delays = {job_id: _delay(job_id, with_job, without) for job_id in state.present.view.waiting}
    known = [delay for delay in delays.values() if delay is not None]
    return {
        "variant": variant.name,
        "start": _estimate_document(start, state.clock_offset),
        "end": _estimate_document(end, state.clock_offset),
        "wait": None if start is None else start.at - state.now,
        "mean_delay_of_others": sum(known) / len(known) if known else 0.0,
        "delayed_jobs": sum(delay > MIN_DELAY_SECONDS for delay in known),
        "fits": _fits(state, variant.job),
        "reason": "" if start is not None else _no_start_reason(state, variant.job),
    }


def _estimate_document(estimate: StartEstimate | None, offset: float) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    times = {"at": estimate.at, "soonest": estimate.soonest, "latest": estimate.latest}
    return {name: None if time is None else time + offset for name, time in times.items()}


def _delay(job_id: str, with_job: Futures, without: Futures) -> float | None:
    """Return the mean delay of a job's start over the futures in which it starts both with and without the new job."""
    import numpy as np

    delayed, undelayed = with_job.starts(job_id), without.starts(job_id)
    both = np.isfinite(delayed) & np.isfinite(undelayed)
    return float((delayed - undelayed)[both].mean()) if both.any() else None


def _fits(state: JournalState, job: Job) -> bool:
    from refold.packing import FreeResources

    return FreeResources(state.header.cluster).fits_when_empty(job.demand)


def _no_start_reason(state: JournalState, job: Job) -> str:
    from refold.packing import FreeResources

    if not _fits(state, job):
        return f"infeasible: {FreeResources(state.header.cluster).shortage(job.demand).text(job.demand)}"
    return "does not start in half of the futures"


def _table(title: str, rows: Sequence[dict[str, Any]], now: float) -> Table:
    from refold.model import format_duration

    def interval(row: dict[str, Any], what: str) -> str:
        estimate = row[what] or {}
        return format_interval((estimate.get("soonest"), estimate.get("latest")), now)

    def end(row: dict[str, Any]) -> str:
        return f"{format_moment((row['end'] or {}).get('at'), now)} {BEST_MARK if row['best'] else ' '}"

    def delay(row: dict[str, Any]) -> str:
        return format_duration(row["mean_delay_of_others"]) if row["start"] else "–"

    columns: list[Column[dict[str, Any]]] = [
        Column("", lambda row: row["variant"], whole=True),
        Column("start estimate", lambda row: format_moment((row["start"] or {}).get("at"), now), number=True),
        Column("range", lambda row: interval(row, "start"), number=True),
        Column("end estimate", end, number=True),
        Column("range", lambda row: interval(row, "end"), number=True),
        Column("mean delay of others", delay, number=True),
        Column("delayed jobs", lambda row: str(row["delayed_jobs"]) if row["start"] else "–", number=True),
        Column("reason" if any(row["reason"] for row in rows) else "", lambda row: row["reason"]),
    ]
    best = any(row["best"] for row in rows)
    return Table(title, columns, rows, [f"{BEST_MARK} earliest end"] if best else [])
