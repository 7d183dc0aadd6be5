"""The common format: a CSV table that every trace can be converted to.

Job fields without a column of their own (class, plan, time limit and so on) are stored in `extra` as `key=JSON`,
separated by `|`. The class is written without quotes: `class=best-effort`.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from refold.errors import BadFile, BadValue
from refold.model import WHOLE, Demand, Job, JobClass, Seconds, TopologyRequest, mib_from_gib, milli_from_number
from refold.simulator.traces.text_source import (
    BadCell,
    RowParser,
    TextSource,
    TextTable,
    int_if_whole,
    parse_gpu_types,
    parse_number,
    parse_number_or_none,
    parse_rows,
    parse_whole,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace, whole_file_note

_DEMAND_COLUMNS = ("num_inst", "gpu_per_inst", "num_gpu", "gpu_milli", "cpu_per_inst", "mem_gib_per_inst", "gpu_type")
COLUMNS = ("job_id", "submit_s", "duration_s", *_DEMAND_COLUMNS, "user", "group", "status", "truncated", "extra")
REQUIRED_COLUMNS = ("job_id", "submit_s", "num_gpu")

CLASS_OF_QOS = {
    "BE": "best-effort",
    "LS": "guaranteed",
    "LSR": "guaranteed",
    "Burstable": "guaranteed",
    "Guaranteed": "guaranteed",
}
"""The job class of each quality-of-service class in openb."""

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
    "topology": "topology",
}
_TYPE_OF_FIELD = {field.name: field.type for field in (*msgspec.structs.fields(Job), *msgspec.structs.fields(Demand))}
_DEFAULTS = Job("defaults")


def recognises(first_line: str) -> bool:
    """Return whether the header has the required columns."""
    return set(REQUIRED_COLUMNS) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read the jobs; columns may be in any order, and only job_id, submit_s and num_gpu are required."""
    table = TextTable(source)
    for column in REQUIRED_COLUMNS:
        table.index(column)
    truncated_ids: list[str] = []
    rows, skipped_rows = parse_rows(table, _make_row_parser(table, gpus_per_instance, truncated_ids), skip_bad=skip_bad)
    jobs, waits = [row.job for row in rows], [row.wait for row in rows]
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=_notes(jobs, truncated_ids), waits=waits)


def _notes(jobs: list[Job], truncated_ids: list[str]) -> list[str]:
    unknown = sum(job.work is None for job in jobs)
    notes = []
    if truncated_ids:
        notes.append(whole_file_note(len(truncated_ids), "duration", "truncated by the source, used as given"))
    return notes + ([whole_file_note(unknown, "job", "without a duration")] if unknown else [])


def _make_row_parser(table: TextTable, gpus_per_instance: int, truncated_ids: list[str]) -> RowParser[TraceJob]:
    """Return a parser of rows that adds the ids of truncated jobs to `truncated_ids`.

    Few demands differ, so each is parsed once.
    """
    width = len(table.columns)

    def cells(*columns: str) -> Callable[[list[str]], tuple[str, ...]]:
        """Return a getter of these columns; missing columns read the empty cell that is added to each row."""
        indices = (table.index_or_none(column) for column in columns)
        return itemgetter(*(width if index is None else index for index in indices))

    job_cells = cells("job_id", "submit_s", "duration_s", "wait_s", "user", "group", "truncated", "extra")
    demand_cells = cells(*_DEMAND_COLUMNS)
    demands: dict[tuple[str, ...], Demand] = {}

    def parse_row(row: list[str]) -> TraceJob:
        row.append("")
        key = demand_cells(row)
        demand = demands.get(key)
        if demand is None:
            demand = demands[key] = _parse_demand(gpus_per_instance, *key)
        job_id, submitted, duration, waited, user, group, truncated, extra = job_cells(row)
        if not job_id:
            raise BadCell("job_id", job_id, "a name")
        seconds = parse_number(submitted, "submit_s")
        work = parse_number(duration, "duration_s") if duration else None
        wait = parse_number(waited, "wait_s") if waited else None
        if truncated == "True":
            truncated_ids.append(job_id)
        if extra:
            fields = {"tenant": group or "default", **_parse_extra(extra)}
            if "topology" in fields:
                demand = _with_topology(demand, extra, fields.pop("topology"))
            return TraceJob(Job(job_id, seconds, demand, work, user=user, **fields), wait)
        return TraceJob(Job(job_id, seconds, demand, work, group or "default", user), wait)

    return parse_row


def _parse_demand(gpus_per_instance: int, *cells: str) -> Demand:
    num_inst, gpu_per_inst, num_gpu, gpu_milli, cpu_per_inst, mem_gib_per_inst, gpu_type = cells
    total = parse_whole(num_gpu, "num_gpu") if num_gpu or not gpu_per_inst else None
    if num_inst or gpu_per_inst:
        instances = parse_whole(num_inst, "num_inst") if num_inst else 1
        gpus = parse_whole(gpu_per_inst, "gpu_per_inst") if gpu_per_inst else (total or 0) // max(instances, 1)
        if instances < 1:
            raise BadCell("num_inst", num_inst, "a whole number ≥ 1")
        if total is not None and total != instances * gpus:
            raise BadCell("num_gpu", num_gpu, f"{instances} × {gpus}, the product of num_inst and gpu_per_inst")
    else:
        instances, gpus = equal_instances(total or 0, gpus_per_instance)
    return Demand(
        instances,
        gpus,
        _parse_gpu_milli(gpu_milli, gpus),
        milli_from_number(parse_number_or_none(cpu_per_inst, "cpu_per_inst") or 0.0),
        mib_from_gib(parse_number_or_none(mem_gib_per_inst, "mem_gib_per_inst") or 0.0),
        parse_gpu_types(gpu_type),
    )


def _with_topology(demand: Demand, extra: str, topology: TopologyRequest) -> Demand:
    try:
        return msgspec.structs.replace(demand, topology=topology)
    except BadValue as error:
        raise BadCell("extra", extra, f"a topology that suits the job: {error}") from None


def _parse_gpu_milli(gpu_milli: str, gpus: int) -> int:
    milli = parse_whole(gpu_milli, "gpu_milli") if gpu_milli else WHOLE
    if milli == 0 and gpus == 0:
        return WHOLE
    if not 1 <= milli <= WHOLE:
        raise BadCell("gpu_milli", gpu_milli, f"a whole number from 1 to {WHOLE}")
    return milli


def equal_instances(total: int, gpus_per_instance: int) -> tuple[int, int]:
    """Split `total` GPUs into instances of equal size, as large as possible but at most `gpus_per_instance`.

    Return the number of instances and the GPUs of each.
    """
    if total == 0:
        return 1, 0
    size = next(size for size in range(min(total, gpus_per_instance), 0, -1) if total % size == 0)
    return total // size, size


def _parse_extra(extra: str) -> dict[str, Any]:
    """Parse `extra`: `key=JSON` for known keys, a quality-of-service class, or else the name of the workload."""
    fields: dict[str, Any] = {}
    for part in extra.split("|"):
        key, equals, value = part.partition("=")
        field = _FIELD_OF_KEY.get(key) if equals else None
        if field:
            fields[field] = _parse_value(field, key, value)
        elif part in CLASS_OF_QOS:
            fields["job_class"] = CLASS_OF_QOS[part]
        else:
            fields.setdefault("workload", part)
    return fields


def _parse_value(field: str, key: str, value: str) -> object:
    try:
        if field == "job_class":
            return msgspec.convert(value, JobClass)
        return msgspec.json.decode(value, type=_TYPE_OF_FIELD[field])
    except (msgspec.DecodeError, ValueError) as error:
        raise BadCell("extra", f"{key}={value}", f"{key} as JSON ({error})") from None


def write(jobs: Iterable[Job], path: Path, waits: Mapping[str, Seconds] | None = None) -> None:
    """Write the jobs as a table, gzipped if the name ends in .gz; with `waits` by id, how long they waited.

    GPU types must not contain '|', and names no '\\r'.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS, "wait_s") if waits else COLUMNS)
    for job in jobs:
        writer.writerow((*_format_row(job), *([waits.get(job.id, "")] if waits else [])))
    content = text.getvalue().encode()
    try:
        # No time stamp in the gzip header: the same jobs give the same bytes.
        path.write_bytes(gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def _format_row(job: Job) -> tuple[object, ...]:
    demand = job.demand
    return (
        job.id,
        int_if_whole(job.submitted),
        "" if job.work is None else int_if_whole(job.work),
        demand.instances,
        demand.gpus,
        demand.instances * demand.gpus,
        demand.gpu_milli,
        int_if_whole(demand.cpu_milli / WHOLE),
        int_if_whole(demand.memory_mib / 1024),
        "|".join(demand.gpu_types),
        job.user,
        "" if job.tenant == "default" else job.tenant,
        "",
        "",
        _format_extra(job),
    )


def _format_extra(job: Job) -> str:
    parts = []
    for key, field in _FIELD_OF_KEY.items():
        value: Any = job.demand.topology if field == "topology" else getattr(job, field)
        if value == getattr(_DEFAULTS, field, None) or (field == "tenant" and value):
            continue
        if field == "workload" and _needs_no_key(value):
            parts.append(value)
        elif field == "job_class":
            parts.append(f"{key}={value}")
        else:
            # A bar can only occur inside a JSON string, where it can be escaped.
            parts.append(f"{key}={msgspec.json.encode(value).decode().replace('|', chr(92) + 'u007c')}")
    return "|".join(parts)


def _needs_no_key(workload: str) -> bool:
    return "|" not in workload and workload not in CLASS_OF_QOS and workload.partition("=")[0] not in _FIELD_OF_KEY
