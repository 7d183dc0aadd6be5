"""SenseTime Helios (SC'21): the original `cluster_log.csv` of one of its clusters."""

from __future__ import annotations

from functools import cache

from refold.model import Demand, Job
from refold.simulator.traces.common_format import equal_instances
from refold.simulator.traces.text_source import (
    RowParser,
    TextSource,
    TextTable,
    parse_number,
    parse_rows,
    parse_time,
    parse_time_or_none,
    parse_whole,
    shift_to_first_submission,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace

REQUIRED_COLUMNS = ("job_id", "gpu_num", "cpu_num", "node_num", "submit_time", "duration")


def recognises(first_line: str) -> bool:
    """Return whether the header has the columns of Helios."""
    return set(REQUIRED_COLUMNS) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read one job per row, with one instance per node if the GPUs divide evenly; the tenant is the virtual cluster."""
    table = TextTable(source)
    rows, skipped_rows = parse_rows(table, _make_row_parser(table, gpus_per_instance), skip_bad=skip_bad)
    jobs, notes = shift_to_first_submission(row.job for row in rows)
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes, waits=[row.wait for row in rows])


def _make_row_parser(table: TextTable, gpus_per_instance: int) -> RowParser[TraceJob]:
    name, gpus, cpus, nodes, submitted, duration = (table.index(column) for column in REQUIRED_COLUMNS)
    user, cluster, job_name, started = (
        table.index_or_none(column) for column in ("user", "vc", "jobname", "start_time")
    )

    @cache
    def demand(gpu_num: str, cpu_num: str, node_num: str) -> Demand:
        return demand_on_nodes(
            parse_whole(gpu_num, "gpu_num"),
            max(parse_whole(node_num, "node_num"), 1),
            gpus_per_instance,
            cpu_milli=round(parse_number(cpu_num, "cpu_num") * 1000),
        )

    def parse_row(row: list[str]) -> TraceJob:
        job = Job(
            row[name],
            parse_time(row[submitted], "submit_time"),
            demand(row[gpus], row[cpus], row[nodes]),
            parse_number(row[duration], "duration"),
            tenant=(row[cluster] if cluster is not None else "") or "default",
            user=row[user] if user is not None else "",
            group=row[job_name] if job_name is not None else "",
        )
        return TraceJob.started_at(job, None if started is None else parse_time_or_none(row[started], "start_time"))

    return parse_row


def demand_on_nodes(
    gpus: int,
    nodes: int,
    gpus_per_instance: int,
    *,
    cpu_milli: int = 0,
    memory_mib: int = 0,
    gpu_types: tuple[str, ...] = (),
) -> Demand:
    """Split totals over `nodes` into equal instances: one per node if the GPUs divide evenly."""
    if gpus % nodes == 0:
        instances, each = nodes, gpus // nodes
    else:
        instances, each = equal_instances(gpus, gpus_per_instance)
    return Demand(
        instances,
        each,
        cpu_milli=-(-cpu_milli // instances),
        memory_mib=-(-memory_mib // instances),
        gpu_types=gpu_types,
    )
