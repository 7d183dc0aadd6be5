"""Microsoft Philly (ATC'19), the original `cluster_job_log`: a JSON list of jobs with their attempts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from refold.errors import BadFile, BadRow, BadValue
from refold.model import Demand, Job
from refold.traces.common_format import equal_instances
from refold.traces.text_source import BadCell, TextSource
from refold.traces.timestamps import from_first_submission, moment, moment_or_none
from refold.traces.trace import Trace, in_order, in_whole_file


class _Detail(msgspec.Struct):
    gpus: list[str]
    ip: str | None = None


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _Logged(msgspec.Struct):
    jobid: str
    submitted_time: str
    attempts: list[_Attempt]
    vc: str | None = None
    user: str | None = None
    status: str | None = None


def recognises(first_line: str) -> bool:
    """It is a JSON list."""
    return first_line.startswith("[")


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """One job per entry: the GPUs of its last attempt, the run time of all; tenants are virtual clusters."""
    jobs: list[Job] = []
    left_out: list[BadRow] = []
    never_ran: Counter[str] = Counter()
    decoder = msgspec.json.Decoder(_Logged)
    for line, entry in _entries(source):
        try:
            job = _job(decoder.decode(entry), gpus_per_instance)
        except msgspec.ValidationError as error:
            bad = _bad_entry(source, line, entry, error)
        except BadCell as wrong:
            bad = BadRow(source.path, line, wrong.column, wrong.found, wrong.expected)
        except BadValue as error:
            bad = BadRow(source.path, line, "entry", str(error), "a job that can be built")
        else:
            if job is None:
                never_ran["jobs"] += 1
            else:
                jobs.append(job)
            continue
        if not skip_bad:
            raise bad
        left_out.append(bad)
    jobs, notes = from_first_submission(jobs)
    if never_ran["jobs"]:
        notes.append(
            in_whole_file(
                never_ran["jobs"],
                "job",
                "left out that never ran, or never ended: the log does not say what was asked for, or for how long",
            )
        )
    return in_order(source.name, jobs, left_out=left_out, notes=notes)


def _entries(source: TextSource) -> Iterator[tuple[int, bytes]]:
    """Each entry of the list, still as JSON, and the line it begins on."""
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
    """'Expected `str`, got `int` - at `$.jobid`' says which key, and what was expected there."""
    expected, _, place = str(error).partition(" - at ")
    key = re.sub(r"^\$\.?", "", place.strip("`")) or "entry"
    found = entry[:40].decode(errors="replace") + ("…" if len(entry) > 40 else "")
    return BadRow(source.path, line, key, found, expected[:1].lower() + expected[1:])


def _job(logged: _Logged, gpus_per_instance: int) -> Job | None:
    """The job, or None when no attempt of it both began and ended."""
    submitted = moment(logged.submitted_time, "submitted_time")
    runs = [run for attempt in logged.attempts if (run := _run_seconds(attempt)) is not None]
    if not runs:
        return None
    gpus = next((count for attempt in reversed(logged.attempts) if (count := _gpus(attempt))), 0)
    instances, each = equal_instances(gpus, gpus_per_instance)
    return Job(
        logged.jobid,
        submitted,
        Demand(instances, each),
        sum(runs),
        tenant=logged.vc or "default",
        user=logged.user or "",
    )


def _gpus(attempt: _Attempt) -> int:
    return sum(len(detail.gpus) for detail in attempt.detail)


def _run_seconds(attempt: _Attempt) -> float | None:
    start = moment_or_none(attempt.start_time, "attempts.start_time")
    end = moment_or_none(attempt.end_time, "attempts.end_time")
    if start is None or end is None:
        return None
    if end < start:
        raise BadCell("attempts.end_time", attempt.end_time, f"a time that is not before {attempt.start_time}")
    return end - start
