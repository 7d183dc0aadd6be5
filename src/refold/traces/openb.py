"""Alibaba openb (2023), in its original columns: one pod a row, with GPU fractions and allowed GPU types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from operator import itemgetter

from refold.model import WHOLE, Demand, Job, JobClass
from refold.traces.text_source import BadCell, JobOfRow, TextSource, TextTable, jobs_of_rows, number, type_list, whole
from refold.traces.trace import Trace, in_order, in_whole_file

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIMES = ("creation_time", "scheduled_time", "deletion_time")


def recognises(first_line: str) -> bool:
    """The header has a pod list's names."""
    return set(NEEDED) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:  # noqa: ARG001
    """One job per pod. BE pods are best-effort, all others guaranteed."""
    table = TextTable(source)
    has_times = set(TIMES) <= set(table.columns)
    counts: Counter[str] = Counter()
    job_of_row = _timed_job_reader(table, counts) if has_times else _untimed_job_reader(table)
    jobs, left_out = jobs_of_rows(table, job_of_row, skip_bad=skip_bad)
    notes = []
    if not has_times:
        notes.append("the file has no times: pods are submitted one a second, in its order, and have no duration")
    if counts["never scheduled"]:
        notes.append(in_whole_file(counts["never scheduled"], "pod", "never scheduled: work is deletion − creation"))
    return in_order(source.name, jobs, left_out=left_out, notes=notes)


def _timed_job_reader(table: TextTable, counts: Counter[str]) -> JobOfRow:
    demand_of_row = _demand_reader(table)
    name, created, scheduled, deleted = (table.index(column) for column in ("name", *TIMES))
    qos = table.index_or_none("qos")

    def job_of_row(row: list[str]) -> Job:
        submitted = number(row[created], "creation_time")
        if row[scheduled]:
            started = number(row[scheduled], "scheduled_time")
        else:
            started = submitted
            counts["never scheduled"] += 1
        work = number(row[deleted], "deletion_time") - started
        if work < 0:
            raise BadCell("deletion_time", row[deleted], f"a time that is not before {started:g}")
        job_class: JobClass = "best-effort" if qos is not None and row[qos] == "BE" else "guaranteed"
        return Job(row[name], submitted, demand_of_row(row), work, job_class=job_class)

    return job_of_row


def _untimed_job_reader(table: TextTable) -> JobOfRow:
    demand_of_row = _demand_reader(table)
    name = table.index("name")
    first_line = table.line + 1

    def job_of_row(row: list[str]) -> Job:
        return Job(row[name], float(table.line - first_line), demand_of_row(row))

    return job_of_row


def _demand_reader(table: TextTable) -> Callable[[list[str]], Demand]:
    """The demand in a row; few of them differ, so each is read once."""
    cells = itemgetter(*(table.index(column) for column in NEEDED[1:]))
    spec = table.index_or_none("gpu_spec")
    demand = cache(_demand)
    return lambda row: demand(*cells(row), "" if spec is None else row[spec])


def _demand(cpu_milli: str, memory_mib: str, num_gpu: str, gpu_milli: str, gpu_spec: str) -> Demand:
    gpus = whole(num_gpu, "num_gpu")
    share = whole(gpu_milli, "gpu_milli")
    if gpus and not 1 <= share <= WHOLE:
        raise BadCell("gpu_milli", gpu_milli, f"a whole number from 1 to {WHOLE}")
    return Demand(
        gpus=gpus,
        gpu_milli=share if gpus else WHOLE,
        cpu_milli=whole(cpu_milli, "cpu_milli"),
        memory_mib=whole(memory_mib, "memory_mib"),
        gpu_types=type_list(gpu_spec),
    )
