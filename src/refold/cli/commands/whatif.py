"""`refold whatif`: estimate when a job would start and end, with variants of its request and under other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import OtherPolicy, argument, make_client, option, require_option
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
    stop_after,
)
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    call_slots,
    format_clock,
    format_interval,
    format_moment,
    plural,
    print_json,
    print_notes,
    print_tables,
    progress,
    resource_text,
)
from refold.errors import BadInput
from refold.model import format_duration

if TYPE_CHECKING:
    from refold.client.api import Submission, VariantOutcome
    from refold.core import Scheduler
    from refold.model import Job, StartEstimate
    from refold.simulator import Futures

BEST_MARK = "*"
MIN_DELAY_SECONDS = 1.0
"""A job counts as delayed if it starts later by more than this."""


def whatif(
    files: Annotated[
        list[Path], argument("[JOURNAL] JOB", "Job file, as for 'refold submit' (docs/jobs.md); the first job is used.")
    ],
    at: AtTime = None,
    gpus: Annotated[str | None, option("N,…", "Also estimate with these numbers of GPUs per instance.")] = None,
    job_class: OtherClass = None,
    policy: OtherPolicy = None,
    futures: FutureCount = None,
    arrivals: Arrivals = False,
    seed: FutureSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Estimate when a job would start and end if it were submitted now, or at a time of a journal.

    The queue is simulated in several futures, with and without the job, each with random run times drawn from their
    predicted distributions; all variants see the same run times. A job with an estimate takes that time, scaled in
    proportion for other numbers of GPUs. Estimates are medians of the futures, ranges their 5th to 95th percentile; the
    delay of other jobs is the mean over jobs that are already waiting.

    The daemon simulates its policy. With --futures, --arrivals or --policy, this command does so, which takes longer.

    With --policy another policy takes over at that time. Exit status: 1 if no variant starts.

    Examples: refold whatif job.yaml --gpus 4,8 · refold whatif out/journal.jsonl job.yaml --class best-effort
    """
    options = _WhatIfOptions(gpus, job_class, policy, ForecastOptions(True, futures, arrivals, seed))
    match files:
        case [job_file]:
            require_option("JOURNAL", {"--at": at}, "the daemon's state is always the current one")
            answer = _ask_daemon(_read_job(job_file), options)
        case [journal, job_file]:
            state = read_journal_state(journal, at)
            answer = _simulate(state, str(journal), _read_job(job_file), options)
        case _:
            raise BadInput("expected a job file: refold whatif job.yaml, or refold whatif journal.jsonl job.yaml")
    answer.print(as_json)
    raise typer.Exit(int(not any(row["start"] is not None for row in answer.rows)))


@dataclass(frozen=True, slots=True)
class _WhatIfOptions:
    gpus: str | None
    job_class: str | None
    policy: str | None
    forecast: ForecastOptions

    @property
    def need_policy(self) -> bool:
        return bool(self.policy or self.forecast.futures or self.forecast.arrivals)


@dataclass(frozen=True, slots=True)
class _JobToTry:
    """The first job of a file, and notes on ignored fields."""

    submission: Submission
    notes: tuple[str, ...]


def _read_job(path: Path) -> _JobToTry:
    from refold.client.jobspec import read_spec

    spec = read_spec(path)
    return _JobToTry(spec.submissions[0], tuple(spec.notes))


@dataclass(frozen=True, slots=True)
class _Answer:
    """Estimates of all variants, one row each. `takes_over`: it is not the policy that was used before."""

    source: str
    policy: str
    name: str
    now: float
    futures: int
    seed: int
    rows: list[dict[str, Any]]
    notes: Sequence[str]
    takes_over: bool = False

    def print(self, as_json: bool) -> None:
        if as_json:
            header = {"journal": self.source, "policy": self.policy, "now": self.now}
            rows = {"futures": self.futures, "seed": self.seed, "variants": self.rows, "notes": list(self.notes)}
            print_json({**header, **rows})
            return
        print_notes(self.notes)
        when = f"submitted at {format_clock(self.now)}"
        policy = f"policy {self.policy}{' from then on' if self.takes_over else ''}"
        title = f"{self.name}, {when}, {policy}, {plural(self.futures, 'simulated future')}"
        print_tables(_table(title, self.rows, self.now))


def _ask_daemon(job: _JobToTry, options: _WhatIfOptions) -> _Answer:
    """Let the daemon estimate the variants; simulate the policy here if that was requested."""
    client = make_client()
    info = client.info()
    call_slots(info.slots)
    if not options.need_policy:
        variants = _make_variants(job.submission, options.gpus, options.job_class)
        seed = options.forecast.seed
        outcome = client.whatif([variant.submission for variant in variants], seed)
        rows = [
            {"variant": each.name} | _outcome_row(found, outcome.now)
            for each, found in zip(variants, outcome.variants, strict=True)
        ]
        notes = [options.forecast.note, *_scaling_notes(variants), *job.notes]
        return _Answer(
            "the daemon", info.policy, job.submission.name, outcome.now, outcome.futures, seed, _mark_best(rows), notes
        )
    with read_daemon_state(client) as state:
        return _simulate(state, "the daemon", job, options)


def _outcome_row(outcome: VariantOutcome, now: float) -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(outcome)
    for what in ("start", "end"):
        if row[what] is not None:
            row[what] = {"at": None, "soonest": None, "latest": None} | row[what]
    return row | {"wait": None if outcome.start is None else outcome.start.at - now}


def _simulate(state: JournalState, source: str, job: _JobToTry, options: _WhatIfOptions) -> _Answer:
    """Simulate the policy of a journal, or another one, with each variant of the job."""
    variants = _make_variants(job.submission, options.gpus, options.job_class)
    name = _unused_id(state, job.submission.name)
    make_scheduler = make_scheduler_factory(state, options.policy)
    rows, futures = _estimate(state, name, variants, make_scheduler, options.forecast)
    policy = options.policy or state.header.policy
    notes = [options.forecast.note, *_scaling_notes(variants), *job.notes]
    return _Answer(
        source,
        policy,
        name,
        state.displayed_now,
        futures,
        options.forecast.seed,
        rows,
        notes,
        takes_over=options.policy is not None,
    )


# Variants of the job.


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant of the job. `scaled`: its estimate was scaled in proportion to its GPUs."""

    name: str
    submission: Submission
    scaled: bool = False

    def job(self, job_id: str, now: float) -> Job:
        """Return the job as if it were submitted now."""
        return self.submission.to_job(job_id, self.submission.tenant or "default", "", now)


def _make_variants(given: Submission, gpus: str | None, job_class: str | None) -> list[_Variant]:
    """Return the job as given, with each number of GPUs, and all of these again with the other job class."""
    import msgspec

    demand = _Variant("", given).job(given.name, 0.0).demand
    variants = [_Variant(f"as given: {demand}", given), *(_with_gpus(given, text) for text in _split_list(gpus))]
    if job_class is not None:
        other = parse_job_class(job_class)
        variants += [
            _Variant(f"{one.name}, {other}", msgspec.structs.replace(one.submission, job_class=other), one.scaled)
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


def _with_gpus(given: Submission, text: str) -> _Variant:
    import msgspec

    from refold.client.jobspec import parse_gpu_request

    before = _Variant("", given).job(given.name, 0.0).demand
    try:
        request = parse_gpu_request(text)
        if request.types or request.minimum != request.maximum:
            raise ValueError
        other = msgspec.structs.replace(given, gpus=request.minimum, gpu_share=request.share, gpu_range=None)
        demand = _Variant("", other).job(given.name, 0.0).demand
    except ValueError:
        raise BadInput(f"--gpus {text}: expected a whole number ≥ 0, or a fraction of one GPU such as 0.5") from None
    scales = given.estimate is not None and bool(before.total_gpu_milli and demand.total_gpu_milli)
    if given.estimate is not None and scales:
        scaled = given.estimate * before.total_gpu_milli / demand.total_gpu_milli
        other = msgspec.structs.replace(other, estimate=scaled)
    return _Variant(str(demand), other, scales)


def _scaling_notes(variants: Sequence[_Variant]) -> list[str]:
    scaled = any(variant.scaled for variant in variants)
    return ["run time is assumed to be inversely proportional to the number of GPUs"] if scaled else []


# Estimates.


def _estimate(
    state: JournalState,
    name: str,
    variants: Sequence[_Variant],
    make_scheduler: Callable[[], Scheduler],
    options: ForecastOptions,
) -> tuple[list[dict[str, Any]], int]:
    """Simulate the futures without the job and with each variant; return a row per variant, and how many futures."""
    from refold.cli.inputs import parse_charging
    from refold.simulator import simulate_futures

    charge = parse_charging(None, None).charge(state.header.cluster)
    with progress("simulating futures", options.future_count * (len(variants) + 1)) as advance:

        def simulate(*new_jobs: Job) -> Futures:
            return simulate_futures(
                state.present,
                make_scheduler,
                futures=options.future_count,
                seed=options.seed,
                charge=charge,
                new_jobs=new_jobs,
                arrivals=options.arrivals,
                factors=state.range_factors,
                advance=advance,
                should_stop=stop_after(options.time_limit(state.is_live) / (len(variants) + 1)),
            )

        without = simulate()
        tried = [(variant, variant.job(name, state.now)) for variant in variants]
        results = [(variant, job, simulate(job)) for variant, job in tried]
    rows = [_row(state, variant, job, with_job, without) for variant, job, with_job in results]
    return _mark_best(rows), min(futures.count for _, _, futures in results)


def _mark_best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the variant that ends first, if there are several."""
    ends = [row["end"]["at"] if row["end"] else inf for row in rows]
    first = ends.index(min(ends))
    return [{**row, "best": len(rows) > 1 and index == first and ends[index] < inf} for index, row in enumerate(rows)]


def _row(state: JournalState, variant: _Variant, job: Job, with_job: Futures, without: Futures) -> dict[str, Any]:
    start, end = with_job.start(job.id), with_job.end(job.id)
    delays = {job_id: _delay(job_id, with_job, without) for job_id in state.present.view.waiting}
    known = [delay for delay in delays.values() if delay is not None]
    return {
        "variant": variant.name,
        "start": _estimate_document(start, state.clock_offset),
        "end": _estimate_document(end, state.clock_offset),
        "wait": None if start is None else start.at - state.now,
        "mean_delay_of_others": sum(known) / len(known) if known else 0.0,
        "delayed_jobs": sum(delay > MIN_DELAY_SECONDS for delay in known),
        "fits": _fits(state, job),
        "reason": "" if start is not None else _no_start_reason(state, job),
    }


def _estimate_document(estimate: StartEstimate | None, offset: float) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    times = {"at": estimate.at, "soonest": estimate.soonest, "latest": estimate.latest}
    return {name: None if time is None else time + offset for name, time in times.items()}


def _delay(job_id: str, with_job: Futures, without: Futures) -> float | None:
    """Return the mean delay of a job's start over the futures in which it starts both with and without the new job."""
    import numpy as np

    count = min(with_job.count, without.count)
    delayed, undelayed = with_job.starts(job_id)[:count], without.starts(job_id)[:count]
    both = np.isfinite(delayed) & np.isfinite(undelayed)
    return float((delayed - undelayed)[both].mean()) if both.any() else None


def _fits(state: JournalState, job: Job) -> bool:
    from refold.placement import FreeResources

    return FreeResources(state.header.cluster).fits_when_empty(job.demand)


def _no_start_reason(state: JournalState, job: Job) -> str:
    from refold.placement import FreeResources

    if not _fits(state, job):
        return f"infeasible: {FreeResources(state.header.cluster).shortage(job.demand).text(job.demand)}"
    return "does not start in half of the futures"


def _table(title: str, rows: Sequence[dict[str, Any]], now: float) -> Table:
    def interval(row: dict[str, Any], what: str) -> str:
        estimate = row[what] or {}
        return format_interval((estimate.get("soonest"), estimate.get("latest")), now)

    def end(row: dict[str, Any]) -> str:
        return f"{format_moment((row['end'] or {}).get('at'), now)} {BEST_MARK if row['best'] else ' '}"

    def delay(row: dict[str, Any]) -> str:
        return format_duration(row["mean_delay_of_others"]) if row["start"] else "–"

    columns: list[Column[dict[str, Any]]] = [
        Column("", lambda row: resource_text(row["variant"]), whole=True),
        Column("start estimate", lambda row: format_moment((row["start"] or {}).get("at"), now), number=True),
        Column("range", lambda row: interval(row, "start"), number=True),
        Column("end estimate", end, number=True),
        Column("range", lambda row: interval(row, "end"), number=True),
        Column("mean delay of others", delay, number=True),
        Column("delayed jobs", lambda row: str(row["delayed_jobs"]) if row["start"] else "–", number=True),
        Column("reason" if any(row["reason"] for row in rows) else "", lambda row: resource_text(row["reason"])),
    ]
    best = any(row["best"] for row in rows)
    return Table(title, columns, rows, [f"{BEST_MARK} earliest end"] if best else [])
