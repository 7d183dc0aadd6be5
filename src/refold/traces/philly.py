"""Microsoft Philly (ATC'19): the original `cluster_job_log`, a JSON list of jobs with their attempts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from refold.errors import BadFile, BadRow, BadValue
from refold.model import Demand, Job
from refold.traces.common_format import equal_instances
from refold.traces.text_source import BadCell, TextSource
from refold.traces.timestamps import parse_time, parse_time_or_none, shift_to_first_submission
from refold.traces.trace import Trace, make_trace, whole_file_note


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
    jobs: list[Job] = []
    skipped_rows: list[BadRow] = []
    never_ran: Counter[str] = Counter()
    decoder = msgspec.json.Decoder(_LogEntry)
    for line, entry in _entries(source):
        try:
            job = _job(decoder.decode(entry), gpus_per_instance)
        except msgspec.ValidationError as error:
            bad = _bad_entry(source, line, entry, error)
        except BadCell as cell:
            bad = BadRow(source.path, line, cell.column, cell.found, cell.expected)
        except BadValue as error:
            bad = BadRow(source.path, line, "entry", str(error), "a valid job")
        else:
            if job is None:
                never_ran["jobs"] += 1
            else:
                jobs.append(job)
            continue
        if not skip_bad:
            raise bad
        skipped_rows.append(bad)
    jobs, notes = shift_to_first_submission(jobs)
    if never_ran["jobs"]:
        notes.append(
            whole_file_note(
                never_ran["jobs"],
                "job",
                "skipped that never ran or never ended: the log has no GPUs or no run time for them",
            )
        )
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes)


def _entries(source: TextSource) -> Iterator[tuple[int, bytes]]:
    """Yield the line number and the JSON text of each entry."""
    content = source.text.encode()
    try:
        entries = msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise BadFile(source.path, f"is not a JSON list of jobs: {error}") from None
    except RecursionError:
        raise BadFile(source.path, "is nested too deeply") from None
    line, start, end = 1, 0, 0
    for raw in entries:
        entry = bytes(raw)
        before, start = start, content.index(entry, end)
        line += content.count(b"\n", before, start)
        end = start + len(entry)
        yield line, entry


def _bad_entry(source: TextSource, line: int, entry: bytes, error: msgspec.ValidationError) -> BadRow:
    """Parse key and expected type from 'Expected `str`, got `int` - at `$.jobid`'."""
    expected, _, json_path = str(error).partition(" - at ")
    key = re.sub(r"^\$\.?", "", json_path.strip("`")) or "entry"
    excerpt = entry[:40].decode(errors="replace") + ("…" if len(entry) > 40 else "")
    return BadRow(source.path, line, key, excerpt, expected[:1].lower() + expected[1:])


def _job(entry: _LogEntry, gpus_per_instance: int) -> Job | None:
    """Return the job, or None if no attempt both started and ended."""
    submitted = parse_time(entry.submitted_time, "submitted_time")
    runs = [run for attempt in entry.attempts if (run := _run_seconds(attempt)) is not None]
    if not runs:
        return None
    gpus = next((count for attempt in reversed(entry.attempts) if (count := _gpus(attempt))), 0)
    instances, each = equal_instances(gpus, gpus_per_instance)
    return Job(
        entry.jobid, submitted, Demand(instances, each), sum(runs), tenant=entry.vc or "default", user=entry.user or ""
    )


def _gpus(attempt: _Attempt) -> int:
    return sum(len(detail.gpus) for detail in attempt.detail)


def _run_seconds(attempt: _Attempt) -> float | None:
    start = parse_time_or_none(attempt.start_time, "attempts.start_time")
    end = parse_time_or_none(attempt.end_time, "attempts.end_time")
    if start is None or end is None:
        return None
    if end < start:
        raise BadCell("attempts.end_time", attempt.end_time, f"a time ≥ {attempt.start_time}")
    return end - start
