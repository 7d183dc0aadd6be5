"""The common columns: one plain table that every other format can be written as, and read back from.

What a column cannot say (a class, a plan, a time limit) stands in `extra`, parted by `|`, as `key=JSON`
(a class stands without quotes: `class=best-effort`).
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from refold.errors import BadFile
from refold.model import WHOLE, Demand, Job, JobClass, mib_from_gib, milli_from_number
from refold.traces.text_source import (
    BadCell,
    JobOfRow,
    TextSource,
    TextTable,
    jobs_of_rows,
    number,
    number_or_none,
    type_list,
    whole,
)
from refold.traces.trace import Trace, in_order, in_whole_file

COLUMNS = (
    "job_id",
    "submit_s",
    "duration_s",
    "num_inst",
    "gpu_per_inst",
    "num_gpu",
    "gpu_milli",
    "cpu_per_inst",
    "mem_gib_per_inst",
    "gpu_type",
    "user",
    "group",
    "status",
    "truncated",
    "extra",
)
NEEDED = ("job_id", "submit_s", "num_gpu")

CLASS_OF_QOS = {
    "BE": "best-effort",
    "LS": "guaranteed",
    "LSR": "guaranteed",
    "Burstable": "guaranteed",
    "Guaranteed": "guaranteed",
}
"""Kubernetes' words for how a pod may be treated, as openb has them."""

_DEMAND_COLUMNS = (
    "num_inst",
    "gpu_per_inst",
    "num_gpu",
    "gpu_milli",
    "cpu_per_inst",
    "mem_gib_per_inst",
    "gpu_type",
)
_FIELD_OF_KEY = {
    "workload": "workload",
    "steps": "steps",
    "batch": "batch",
    "sequence": "sequence",
    "tenant": "tenant",
    "class": "job_class",
    "priority": "priority",
    "preemptible": "preemptible",
    "reshapable": "reshapable",
    "time_limit": "time_limit",
    "group": "group",
    "plan": "plan",
    "command": "command",
    "gpu_range": "gpu_range",
}
_TYPE_OF_FIELD = {field.name: field.type for field in msgspec.structs.fields(Job)}
_DEFAULTS = Job("defaults")


def recognises(first_line: str) -> bool:
    """The header has our names."""
    return set(NEEDED) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Jobs from the common columns, in any order; only job_id, submit_s and num_gpu must be there."""
    table = TextTable(source)
    for column in NEEDED:
        table.index(column)
    cut: list[str] = []
    jobs, left_out = jobs_of_rows(table, _job_reader(table, gpus_per_instance, cut), skip_bad=skip_bad)
    return in_order(source.name, jobs, left_out=left_out, notes=_notes(jobs, cut))


def _notes(jobs: list[Job], cut: list[str]) -> list[str]:
    unknown = sum(job.work is None for job in jobs)
    notes = [in_whole_file(len(cut), "duration", "cut short by the source, and read so")] if cut else []
    return notes + ([in_whole_file(unknown, "job", "without a duration")] if unknown else [])


def _job_reader(table: TextTable, gpus_per_instance: int, cut: list[str]) -> JobOfRow:
    """How to read a row; ids of jobs cut short go to `cut`. Few demands differ, so each is read once."""
    width = len(table.columns)

    def cells(*columns: str) -> Callable[[list[str]], tuple[str, ...]]:
        """These columns of a row; one that the file lacks reads as empty (the cell behind the last)."""
        found = (table.index_or_none(column) for column in columns)
        return itemgetter(*(width if index is None else index for index in found))

    own_cells = cells("job_id", "submit_s", "duration_s", "user", "group", "truncated", "extra")
    demand_cells = cells(*_DEMAND_COLUMNS)
    demands: dict[tuple[str, ...], Demand] = {}

    def job_of_row(row: list[str]) -> Job:
        row.append("")
        key = demand_cells(row)
        demand = demands.get(key)
        if demand is None:
            demand = demands[key] = _demand(gpus_per_instance, *key)
        job_id, submitted, duration, user, group, truncated, extra = own_cells(row)
        if not job_id:
            raise BadCell("job_id", job_id, "a name")
        seconds = number(submitted, "submit_s")
        work = number(duration, "duration_s") if duration else None
        if truncated == "True":
            cut.append(job_id)
        if extra:
            fields = {"tenant": group or "default", **_fields_of_extra(extra)}
            return Job(job_id, seconds, demand, work, user=user, **fields)
        return Job(job_id, seconds, demand, work, group or "default", user)

    return job_of_row


def _demand(gpus_per_instance: int, *cells: str) -> Demand:
    num_inst, gpu_per_inst, num_gpu, gpu_milli, cpu_per_inst, mem_gib_per_inst, gpu_type = cells
    total = whole(num_gpu, "num_gpu") if num_gpu or not gpu_per_inst else None
    if num_inst or gpu_per_inst:
        instances = whole(num_inst, "num_inst") if num_inst else 1
        gpus = whole(gpu_per_inst, "gpu_per_inst") if gpu_per_inst else (total or 0) // max(instances, 1)
        if instances < 1:
            raise BadCell("num_inst", num_inst, "a whole number ≥ 1")
        if total is not None and total != instances * gpus:
            raise BadCell("num_gpu", num_gpu, f"{instances} × {gpus}, as num_inst and gpu_per_inst say")
    else:
        instances, gpus = equal_instances(total or 0, gpus_per_instance)
    return Demand(
        instances,
        gpus,
        _share(gpu_milli, gpus),
        milli_from_number(number_or_none(cpu_per_inst, "cpu_per_inst") or 0.0),
        mib_from_gib(number_or_none(mem_gib_per_inst, "mem_gib_per_inst") or 0.0),
        type_list(gpu_type),
    )


def _share(gpu_milli: str, gpus: int) -> int:
    milli = whole(gpu_milli, "gpu_milli") if gpu_milli else WHOLE
    if milli == 0 and gpus == 0:
        return WHOLE
    if not 1 <= milli <= WHOLE:
        raise BadCell("gpu_milli", gpu_milli, f"a whole number from 1 to {WHOLE}")
    return milli


def equal_instances(total: int, gpus_per_instance: int) -> tuple[int, int]:
    """Instances, and GPUs of each: the largest equal parts of `total` that are ≤ `gpus_per_instance`."""
    if total == 0:
        return 1, 0
    size = next(size for size in range(min(total, gpus_per_instance), 0, -1) if total % size == 0)
    return total // size, size


def _fields_of_extra(extra: str) -> dict[str, Any]:
    """What `extra` says of a job: `key=JSON` for our keys, a QoS word, else the workload's name."""
    fields: dict[str, Any] = {}
    for part in extra.split("|"):
        key, equals, value = part.partition("=")
        field = _FIELD_OF_KEY.get(key) if equals else None
        if field:
            fields[field] = _value(field, key, value)
        elif part in CLASS_OF_QOS:
            fields["job_class"] = CLASS_OF_QOS[part]
        else:
            fields.setdefault("workload", part)
    return fields


def _value(field: str, key: str, value: str) -> object:
    try:
        if field == "job_class":
            return msgspec.convert(value, JobClass)
        return msgspec.json.decode(value, type=_TYPE_OF_FIELD[field])
    except (msgspec.DecodeError, ValueError) as error:
        raise BadCell("extra", f"{key}={value}", f"{key} as JSON ({error})") from None


def write(jobs: Iterable[Job], path: Path) -> None:
    """The jobs as a table, gzipped when the name ends in .gz. GPU types may hold no '|', names no '\\r'."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows(map(_row, jobs))
    content = text.getvalue().encode()
    try:
        # No time in the gzip header, so that the same jobs give the same bytes.
        path.write_bytes(gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def _row(job: Job) -> tuple[object, ...]:
    demand = job.demand
    return (
        job.id,
        _plain(job.submitted),
        "" if job.work is None else _plain(job.work),
        demand.instances,
        demand.gpus,
        demand.instances * demand.gpus,
        demand.gpu_milli,
        _plain(demand.cpu_milli / WHOLE),
        _plain(demand.memory_mib / 1024),
        "|".join(demand.gpu_types),
        job.user,
        "" if job.tenant == "default" else job.tenant,
        "",
        "",
        _extra(job),
    )


def _plain(value: float) -> int | float:
    """Whole numbers without '.0'; all others with every digit they need."""
    return int(value) if value == int(value) else value


def _extra(job: Job) -> str:
    parts = []
    for key, field in _FIELD_OF_KEY.items():
        value = getattr(job, field)
        if value == getattr(_DEFAULTS, field) or (field == "tenant" and value):
            continue
        if field == "workload" and _stands_for_itself(value):
            parts.append(value)
        elif field == "job_class":
            parts.append(f"{key}={value}")
        else:
            # A bar can only stand inside a JSON string, where it may be written by its number.
            parts.append(f"{key}={msgspec.json.encode(value).decode().replace('|', chr(92) + 'u007c')}")
    return "|".join(parts)


def _stands_for_itself(workload: str) -> bool:
    return "|" not in workload and workload not in CLASS_OF_QOS and workload.partition("=")[0] not in _FIELD_OF_KEY
