"""Alibaba openb (2023), in its original columns: one pod per row, with GPU fractions and allowed GPU types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from operator import itemgetter

from refold.model import WHOLE, Demand, Job, JobClass
from refold.simulator.traces.text_source import (
    BadCell,
    RowParser,
    TextSource,
    TextTable,
    parse_gpu_types,
    parse_number,
    parse_rows,
    parse_whole,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace, whole_file_note

REQUIRED_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIMES = ("creation_time", "scheduled_time", "deletion_time")


def recognises(first_line: str) -> bool:
    """Return whether the header has the columns of a pod list."""
    return set(REQUIRED_COLUMNS) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:  # noqa: ARG001
    """Read one job per pod. BE pods are best-effort jobs, all others are guaranteed."""
    table = TextTable(source)
    has_times = set(TIMES) <= set(table.columns)
    counts: Counter[str] = Counter()
    parse_row = _make_timed_row_parser(table, counts) if has_times else _make_untimed_row_parser(table)
    rows, skipped_rows = parse_rows(table, parse_row, skip_bad=skip_bad)
    notes = []
    if not has_times:
        notes.append("the file has no times: pods are submitted in file order, one per second, and have no duration")
    if counts["never scheduled"]:
        notes.append(
            whole_file_note(counts["never scheduled"], "pod", "never scheduled: run time is deletion − creation")
        )
    jobs, waits = [row.job for row in rows], [row.wait for row in rows]
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes, waits=waits)


def _make_timed_row_parser(table: TextTable, counts: Counter[str]) -> RowParser[TraceJob]:
    parse_row_demand = _make_demand_parser(table)
    name, created, scheduled, deleted = (table.index(column) for column in ("name", *TIMES))
    qos = table.index_or_none("qos")

    def parse_row(row: list[str]) -> TraceJob:
        submitted = parse_number(row[created], "creation_time")
        if row[scheduled]:
            started = parse_number(row[scheduled], "scheduled_time")
        else:
            started = submitted
            counts["never scheduled"] += 1
        work = parse_number(row[deleted], "deletion_time") - started
        if work < 0:
            raise BadCell("deletion_time", row[deleted], f"a time ≥ {started:g}")
        job_class: JobClass = "best-effort" if qos is not None and row[qos] == "BE" else "guaranteed"
        job = Job(row[name], submitted, parse_row_demand(row), work, job_class=job_class)
        return TraceJob.started_at(job, started if row[scheduled] else None)

    return parse_row


def _make_untimed_row_parser(table: TextTable) -> RowParser[TraceJob]:
    parse_row_demand = _make_demand_parser(table)
    name = table.index("name")
    first_line = table.line + 1

    def parse_row(row: list[str]) -> TraceJob:
        return TraceJob(Job(row[name], float(table.line - first_line), parse_row_demand(row)), None)

    return parse_row


def _make_demand_parser(table: TextTable) -> Callable[[list[str]], Demand]:
    """Return a parser of the demand in a row. Few demands differ, so each is parsed once."""
    cells = itemgetter(*(table.index(column) for column in REQUIRED_COLUMNS[1:]))
    spec = table.index_or_none("gpu_spec")
    demand = cache(_parse_demand)
    return lambda row: demand(*cells(row), "" if spec is None else row[spec])


def _parse_demand(cpu_milli: str, memory_mib: str, num_gpu: str, gpu_milli: str, gpu_spec: str) -> Demand:
    gpus = parse_whole(num_gpu, "num_gpu")
    share = parse_whole(gpu_milli, "gpu_milli")
    if gpus and not 1 <= share <= WHOLE:
        raise BadCell("gpu_milli", gpu_milli, f"a whole number from 1 to {WHOLE}")
    return Demand(
        gpus=gpus,
        gpu_milli=share if gpus else WHOLE,
        cpu_milli=parse_whole(cpu_milli, "cpu_milli"),
        memory_mib=parse_whole(memory_mib, "memory_mib"),
        gpu_types=parse_gpu_types(gpu_spec),
    )
