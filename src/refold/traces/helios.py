"""SenseTime Helios (SC'21), the original `cluster_log.csv` of one of its clusters."""

from __future__ import annotations

from functools import cache

from refold.model import Demand, Job
from refold.traces.common_format import equal_instances
from refold.traces.text_source import JobOfRow, TextSource, TextTable, jobs_of_rows, number, whole
from refold.traces.timestamps import from_first_submission, moment
from refold.traces.trace import Trace, in_order

NEEDED = ("job_id", "gpu_num", "cpu_num", "node_num", "submit_time", "duration")


def recognises(first_line: str) -> bool:
    """The header has Helios' names."""
    return set(NEEDED) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """One job a row, one instance a node where the GPUs divide evenly; the tenant is the virtual cluster."""
    table = TextTable(source)
    jobs, left_out = jobs_of_rows(table, _job_reader(table, gpus_per_instance), skip_bad=skip_bad)
    jobs, notes = from_first_submission(jobs)
    return in_order(source.name, jobs, left_out=left_out, notes=notes)


def _job_reader(table: TextTable, gpus_per_instance: int) -> JobOfRow:
    name, gpus, cpus, nodes, submitted, duration = (table.index(column) for column in NEEDED)
    user, cluster, job_name = (table.index_or_none(column) for column in ("user", "vc", "jobname"))

    @cache
    def demand(gpu_num: str, cpu_num: str, node_num: str) -> Demand:
        return demand_on_nodes(
            whole(gpu_num, "gpu_num"),
            max(whole(node_num, "node_num"), 1),
            gpus_per_instance,
            cpu_milli=round(number(cpu_num, "cpu_num") * 1000),
        )

    def job_of_row(row: list[str]) -> Job:
        return Job(
            row[name],
            moment(row[submitted], "submit_time"),
            demand(row[gpus], row[cpus], row[nodes]),
            number(row[duration], "duration"),
            tenant=(row[cluster] if cluster is not None else "") or "default",
            user=row[user] if user is not None else "",
            group=row[job_name] if job_name is not None else "",
        )

    return job_of_row


def demand_on_nodes(
    gpus: int,
    nodes: int,
    gpus_per_instance: int,
    *,
    cpu_milli: int = 0,
    memory_mib: int = 0,
    gpu_types: tuple[str, ...] = (),
) -> Demand:
    """Totals that were spread over `nodes`, as equal instances: one a node where the GPUs divide evenly."""
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
