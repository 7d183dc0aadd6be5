"""Microsoft Philly (ATC'19): the original `cluster_job_log`, a JSON list of jobs with their attempts."""

from __future__ import annotations

from collections import Counter

import msgspec

from refold.model import Demand, Job
from refold.simulator.traces.common_format import equal_instances
from refold.simulator.traces.text_source import (
    BadCell,
    TextSource,
    decode_document,
    parse_entries,
    parse_time,
    parse_time_or_none,
    shift_to_first_submission,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace, whole_file_note


class _Detail(msgspec.Struct):
    gpus: list[str]
    ip: str | None = None


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _LogEntry(msgspec.Struct):
    jobid: str
    submitted_time: str
    attempts: list[_Attempt]
    vc: str | None = None
    user: str | None = None
    status: str | None = None


def recognises(first_line: str) -> bool:
    """Return whether the line begins a JSON list."""
    return first_line.startswith("[")


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read one job per entry: the GPUs of its last attempt, the run time of all; tenants are virtual clusters."""
    never_ran: Counter[str] = Counter()

    def parse(entry: _LogEntry) -> TraceJob | None:
        recorded = _read_job(entry, gpus_per_instance)
        never_ran["jobs"] += recorded is None
        return recorded

    entries = decode_document(source, list[msgspec.Raw], "a JSON list of jobs")
    read_jobs, skipped_rows = parse_entries(source, entries, _LogEntry, parse)
    if skipped_rows and not skip_bad:
        raise skipped_rows[0]
    jobs, notes = shift_to_first_submission(each.job for each in read_jobs)
    if never_ran["jobs"]:
        notes.append(
            whole_file_note(
                never_ran["jobs"],
                "job",
                "skipped that never ran or never ended: the log has no GPUs or no run time for them",
            )
        )
    waits = [each.wait for each in read_jobs]
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes, waits=waits)


def _read_job(entry: _LogEntry, gpus_per_instance: int) -> TraceJob | None:
    """Return the job, or None if no attempt both started and ended. It waited when it did not run."""
    submitted = parse_time(entry.submitted_time, "submitted_time")
    runs = [run for attempt in entry.attempts if (run := _run(attempt)) is not None]
    if not runs:
        return None
    work = sum(end - start for start, end in runs)
    gpus = next((count for attempt in reversed(entry.attempts) if (count := _gpus(attempt))), 0)
    instances, each = equal_instances(gpus, gpus_per_instance)
    job = Job(entry.jobid, submitted, Demand(instances, each), work, entry.vc or "default", entry.user or "")
    return TraceJob.started_at(job, max(end for _, end in runs) - work)


def _gpus(attempt: _Attempt) -> int:
    return sum(len(detail.gpus) for detail in attempt.detail)


def _run(attempt: _Attempt) -> tuple[float, float] | None:
    start = parse_time_or_none(attempt.start_time, "attempts.start_time")
    end = parse_time_or_none(attempt.end_time, "attempts.end_time")
    if start is None or end is None:
        return None
    if end < start:
        raise BadCell("attempts.end_time", attempt.end_time, f"a time ≥ {attempt.start_time}")
    return start, end
