"""Who waits at a moment of a journal, why, and when they may start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.inputs import ForecastOptions, JournalState, futures_of, journal_state_at
from refold.cli.views.output import Column, Table, plural, print_json, print_tables, tell
from refold.cli.views.times import between_text, clock, duration, gpus_text, moment_text

if TYPE_CHECKING:
    from refold.model import Job, StartEstimate, Wait


@dataclass(frozen=True, slots=True)
class JournalQueueOptions:
    """What is to be told."""

    ahead: ForecastOptions
    running: bool = False
    limit: int | None = None


def show_journal(journal: Path, at: str | None, asked: JournalQueueOptions, as_json: bool) -> None:
    """Tell how things stand at a moment of a journal."""
    state = journal_state_at(journal, at)
    shown = _shown_at(state, asked)
    if as_json:
        print_json(shown.document(state))
    else:
        shown.tell(state)


@dataclass(frozen=True, slots=True)
class _DisplayedQueue:
    waiting: list[dict[str, Any]]
    running: list[dict[str, Any]] | None
    starts: bool
    left_out: int
    notes: list[str]

    def document(self, state: JournalState) -> dict[str, Any]:
        view = state.present.view
        return {
            "journal": str(state.path),
            "policy": state.header.policy,
            "now": state.now,
            "free_gpus": view.free_gpus,
            "gpus": state.header.cluster.gpus,
            "waiting": self.waiting,
            **({} if self.running is None else {"running": self.running}),
            "notes": self.notes,
        }

    def tell(self, state: JournalState) -> None:
        view, header = state.present.view, state.header
        waiting = _jobs_wait(len(view.waiting) + len(view.infeasible))
        free = f"{view.free_gpus:g} of {header.cluster.gpus:,} GPUs free"
        title = f"{waiting} at {clock(state.now)}, under {header.policy}; {plural(len(view.runs), 'run')}, {free}"
        after = [f"… and {plural(self.left_out, 'job')} more"] if self.left_out else []
        tell(self.notes)
        print_tables(Table(title, _waiting_columns(self.starts), self.waiting, after))
        if self.running is not None:
            print_tables(Table("Running", _running_columns(), self.running))


def _jobs_wait(count: int) -> str:
    return "nobody waits" if not count else f"{plural(count, 'job')} wait{'s' * (count == 1)}"


def _shown_at(state: JournalState, asked: JournalQueueOptions) -> _DisplayedQueue:
    view = state.present.view
    jobs = [*view.waiting.values(), *view.infeasible.values()]
    rows = [_waiting_row(state, job, place) for place, job in enumerate(jobs[: asked.limit], start=1)]
    notes: list[str] = []
    if asked.ahead.wanted:
        notes = _add_starts(state, asked, rows)
    running = _running_rows(state)[: asked.limit] if asked.running else None
    return _DisplayedQueue(rows, running, asked.ahead.wanted, len(jobs) - len(rows), notes)


def _waiting_row(state: JournalState, job: Job, place: int) -> dict[str, Any]:
    present = state.present
    wait = present.view.reason(job.id)
    since = present.waiting_since.get(job.id, job.submitted)
    if state.header.snapshot:  # which begins where everybody has waited for a while
        since = job.submitted
    return {
        "place": place,
        "job": job.id,
        "demand": str(job.demand),
        "gpus": job.demand.total_gpus,
        "tenant": job.tenant,
        "since": since,
        "waited": state.now - since,
        "reason": wait.reason.value,
        "why": _why_text(wait, job),
    }


def _why_text(wait: Wait, job: Job) -> str:
    """'(Resources: 0 of 12 nodes fit: 12 × less than 8 GPUs free)'."""
    if wait.shortage is not None:
        return f"({wait.reason.value}: {wait.shortage.text(gpus_text(job.demand.gpus))})"
    return f"({wait.reason.value}: {plural(wait.ahead, 'job')} before it)" if wait.ahead else f"({wait.reason.value})"


def _add_starts(state: JournalState, asked: JournalQueueOptions, rows: list[dict[str, Any]]) -> list[str]:
    """When each may start, and who says so; and what to know of that."""
    view = state.present.view
    promised = {row["job"]: view.start_estimate(row["job"]) for row in rows}
    ahead = asked.ahead
    without = [job for job in promised if job in view.waiting and (ahead.futures or not promised[job])]
    futures = futures_of(state, without, ahead) if without else None
    told_ahead = set(without)
    for row in rows:
        if row["job"] in told_ahead and futures is not None:
            _add_start(row, futures.start(row["job"]), plural(ahead.count, "future"))
        else:
            expected = promised[row["job"]]
            _add_start(row, expected, _promise_text(expected, state.now))
    return [ahead.note] if without else []


def _promise_text(promised: StartEstimate | None, now: float) -> str:
    """Who is not told anything, is not; else it is a promise, of which the expected time or the bound may be over."""
    if promised is None:
        return ""
    if promised.latest is not None and promised.latest < now:
        return "promise, passed"
    return "promise, late" if promised.at < now else "promise"


def _add_start(row: dict[str, Any], expected: StartEstimate | None, by: str) -> None:
    row |= {
        "expected": expected and expected.at,
        "soonest": expected and expected.soonest,
        "latest": expected and expected.latest,
        "by": by,
    }
    row["between"] = (row["soonest"], row["latest"])


def _running_rows(state: JournalState) -> list[dict[str, Any]]:

    present = state.present
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
                "ran": state.now - run.since,
                "where": run.allocation.text(state.header.cluster),
                "stopping": run.stopping,
                "expected": end.at,
                "soonest": end.soonest,
                "latest": end.latest,
                "between": (end.soonest, end.latest),
            }
        )
    return sorted(rows, key=lambda row: (row["expected"], row["job"]))


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
        "waited": Column("waits for", duration, number=True),
        **(when if starts else {}),
        "why": Column("reason"),
    }


def _running_columns() -> dict[str, Column]:
    return {
        "job": Column("job", whole=True),
        "demand": Column("GPUs", whole=True),
        "tenant": Column("tenant", whole=True),
        "ran": Column("runs for", duration, number=True),
        "expected": Column("may end", moment_text, number=True),
        "between": Column("between", between_text, number=True),
        "where": Column("on"),
    }
