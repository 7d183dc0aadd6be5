"""Alibaba PAI (cluster-trace-gpu-v2020): the task table, and the job table where it lies beside it."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path

from refold.model import WHOLE, Demand, Job, mib_from_gib
from refold.traces.text_source import (
    BadCell,
    JobOfRow,
    TextSource,
    TextTable,
    jobs_of_rows,
    number_or_none,
    open_source,
    whole,
)
from refold.traces.timestamps import from_first_submission
from refold.traces.trace import Trace, in_order, in_whole_file

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
    """Ten cells with a state in the fourth; the files have no header, but some copies were given one."""
    cells = first_line.split(",")
    return len(cells) == len(TASK_COLUMNS) and (cells == list(TASK_COLUMNS) or cells[3] in STATES)


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:  # noqa: ARG001
    """One job per task: `inst_num` instances, each with the CPUs, memory and GPUs it planned to use."""
    table = TextTable(source, columns=None if _has_header(source) else TASK_COLUMNS)
    submissions = _submissions_beside(source.path)
    counts: Counter[str] = Counter()
    jobs, left_out = jobs_of_rows(table, _job_reader(table, submissions, counts), skip_bad=skip_bad)
    jobs, notes = from_first_submission(jobs)
    notes.append("gpu_type, which says where a task ran, is read as the type it asked for")
    if not submissions:
        notes.append("no job table lies beside the file: tasks are submitted when they started, by nobody known")
    if counts["unfinished"]:
        notes.append(in_whole_file(counts["unfinished"], "task", "left out that had not started or not ended"))
    return in_order(source.name, jobs, left_out=left_out, notes=notes)


def _has_header(source: TextSource) -> bool:
    return source.first_line.startswith("job_name,")


def _submissions_beside(path: Path) -> dict[str, tuple[str, str]]:
    """User and submission time by job, from the job table; empty where there is none."""
    for name in ("pai_job_table.csv", "pai_job_table.csv.gz"):
        beside = path.with_name(name)
        if beside.exists() and beside != path:
            source = open_source(beside)
            table = TextTable(source, columns=None if _has_header(source) else JOB_COLUMNS)
            job, user, start = (table.index(column) for column in ("job_name", "user", "start_time"))
            return {row[job]: (row[user], row[start]) for row in table.rows() if len(row) > max(job, user, start)}
    return {}


def _job_reader(table: TextTable, submissions: dict[str, tuple[str, str]], counts: Counter[str]) -> JobOfRow:
    job_name, task_name, inst_num, start, end, cpu, mem, gpu, gpu_type = (
        table.index(column) for column in TASK_COLUMNS if column != "status"
    )
    demand = cache(_demand)

    def job_of_row(row: list[str]) -> Job | None:
        started = number_or_none(row[start], "start_time")
        ended = number_or_none(row[end], "end_time")
        if started is None or ended is None:
            counts["unfinished"] += 1
            return None
        if ended < started:
            raise BadCell("end_time", row[end], f"a time that is not before {row[start]}")
        user, submitted = submissions.get(row[job_name], ("", ""))
        return Job(
            row[job_name],
            min(number_or_none(submitted, "start_time") or started, started),
            demand(row[inst_num], row[cpu], row[mem], row[gpu], row[gpu_type]),
            ended - started,
            user=user,
            workload=row[task_name],
        )

    return job_of_row


def _demand(inst_num: str, plan_cpu: str, plan_mem: str, plan_gpu: str, gpu_type: str) -> Demand:
    """600 of plan_cpu is 6 CPUs; 50 of plan_gpu is half a GPU; 150 is three quarters of two."""
    instances = whole(inst_num, "inst_num") if inst_num else 1
    if instances < 1:
        raise BadCell("inst_num", inst_num, "a whole number ≥ 1")
    percent = number_or_none(plan_gpu, "plan_gpu") or 0.0
    gpus = math.ceil(percent / 100)
    return Demand(
        instances,
        gpus,
        max(1, round(percent * 10 / gpus)) if gpus else WHOLE,
        round((number_or_none(plan_cpu, "plan_cpu") or 0.0) * 10),
        mib_from_gib(number_or_none(plan_mem, "plan_mem") or 0.0),
        (gpu_type,) if gpus and gpu_type not in ("", "CPU") else (),
    )
