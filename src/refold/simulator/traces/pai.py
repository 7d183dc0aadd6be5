"""Alibaba PAI (cluster-trace-gpu-v2020): the task table, and the job table if it is in the same folder."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path

from refold.model import WHOLE, Demand, Job, mib_from_gib
from refold.simulator.traces.text_source import (
    BadCell,
    RowParser,
    TextSource,
    TextTable,
    open_source,
    parse_number_or_none,
    parse_rows,
    parse_whole,
    shift_to_first_submission,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace, whole_file_note

TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
STATES = frozenset({"Terminated", "Failed", "Running", "Waiting", "Interrupted"})


def recognises(first_line: str) -> bool:
    """Return whether the line has ten cells with a state in the fourth, or is the header that some copies have."""
    cells = first_line.split(",")
    return len(cells) == len(TASK_COLUMNS) and (cells == list(TASK_COLUMNS) or cells[3] in STATES)


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:  # noqa: ARG001
    """Read one job per task: `inst_num` instances, each with its planned CPUs, memory and GPUs."""
    table = TextTable(source, columns=None if _has_header(source) else TASK_COLUMNS)
    submissions = _read_job_table(source.path)
    counts: Counter[str] = Counter()
    rows, skipped_rows = parse_rows(table, _make_row_parser(table, submissions, counts), skip_bad=skip_bad)
    jobs, notes = shift_to_first_submission(row.job for row in rows)
    notes.append("gpu_type is the type that a task ran on; it is used as the requested type")
    if not submissions:
        notes.append("no job table in the same folder: submission times are start times, and users are unknown")
    if counts["unfinished"]:
        notes.append(whole_file_note(counts["unfinished"], "task", "skipped that had not started or not ended"))
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes, waits=[row.wait for row in rows])


def _has_header(source: TextSource) -> bool:
    return source.first_line.startswith("job_name,")


def _read_job_table(path: Path) -> dict[str, tuple[str, str]]:
    """Return user and submission time by job name from the job table; empty if there is no job table."""
    for name in ("pai_job_table.csv", "pai_job_table.csv.gz"):
        job_table = path.with_name(name)
        if job_table.exists() and job_table != path:
            source = open_source(job_table)
            table = TextTable(source, columns=None if _has_header(source) else JOB_COLUMNS)
            job, user, start = (table.index(column) for column in ("job_name", "user", "start_time"))
            return {row[job]: (row[user], row[start]) for row in table.rows() if len(row) > max(job, user, start)}
    return {}


def _make_row_parser(
    table: TextTable, submissions: dict[str, tuple[str, str]], counts: Counter[str]
) -> RowParser[TraceJob]:
    job_name, task_name, inst_num, start, end, cpu, mem, gpu, gpu_type = (
        table.index(column) for column in TASK_COLUMNS if column != "status"
    )
    demand = cache(_parse_demand)

    def parse_row(row: list[str]) -> TraceJob | None:
        started = parse_number_or_none(row[start], "start_time")
        ended = parse_number_or_none(row[end], "end_time")
        if started is None or ended is None:
            counts["unfinished"] += 1
            return None
        if ended < started:
            raise BadCell("end_time", row[end], f"a time ≥ {row[start]}")
        user, submitted = submissions.get(row[job_name], ("", ""))
        job = Job(
            row[job_name],
            min(parse_number_or_none(submitted, "start_time") or started, started),
            demand(row[inst_num], row[cpu], row[mem], row[gpu], row[gpu_type]),
            ended - started,
            user=user,
            workload=row[task_name],
        )
        return TraceJob.started_at(job, started if submitted else None)

    return parse_row


def _parse_demand(inst_num: str, plan_cpu: str, plan_mem: str, plan_gpu: str, gpu_type: str) -> Demand:
    """Parse the planned resources, which are in percent.

    A plan_cpu of 600 is 6 CPUs; a plan_gpu of 50 is half of one GPU, and 150 is three quarters of each of two GPUs.
    """
    instances = parse_whole(inst_num, "inst_num") if inst_num else 1
    if instances < 1:
        raise BadCell("inst_num", inst_num, "a whole number ≥ 1")
    percent = parse_number_or_none(plan_gpu, "plan_gpu") or 0.0
    gpus = math.ceil(percent / 100)
    return Demand(
        instances,
        gpus,
        max(1, round(percent * 10 / gpus)) if gpus else WHOLE,
        round((parse_number_or_none(plan_cpu, "plan_cpu") or 0.0) * 10),
        mib_from_gib(parse_number_or_none(plan_mem, "plan_mem") or 0.0),
        (gpu_type,) if gpus and gpu_type not in ("", "CPU") else (),
    )
