"""`refold trace`: inspect, convert and generate traces."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import (
    GPUS_PER_INSTANCE,
    TraceFormatOptions,
    TraceName,
    argument,
    max_gpus_per_node,
    option,
    with_option_groups,
)
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    draw_bar,
    fact_table,
    format_number,
    format_percent,
    print_json,
    print_line,
    print_notes,
    print_tables,
)
from refold.errors import BadInput
from refold.model import format_count, format_duration

if TYPE_CHECKING:
    from refold.simulator.traces import Portion, Summary, Trace, WorkloadShape

app = typer.Typer(
    help="Inspect, convert and generate traces (job histories).", no_args_is_help=True, rich_markup_mode=None
)

OutFile = Annotated[Path, argument("OUT", "Output file; compressed if it ends in .gz.")]
MAX_TENANTS = 12
MAX_SKIPPED_ROWS = 5


@app.command()
@with_option_groups
def show(trace: TraceName, reading: TraceFormatOptions, as_json: AsJson = False) -> None:
    """Summarise a trace: jobs, sizes, durations, arrivals, tenants, and skipped rows.

    Example: refold trace show demo
    """
    from refold.simulator.traces import summarise

    summary = summarise(reading.read(trace))
    if as_json:
        print_json(summary)
    else:
        print_tables(*_tables(summary))


def _tables(summary: Summary) -> list[Table]:
    return [
        _facts(summary),
        _portions("Sizes", "GPUs", summary.sizes),
        _times(summary),
        _portions("Tenants", "tenant", summary.tenants[:MAX_TENANTS], len(summary.tenants)),
    ]


def _facts(summary: Summary) -> Table:
    facts = {
        "jobs": format_number(summary.jobs),
        "best-effort jobs": format_number(summary.best_effort),
        "submission period": format_duration(summary.span),
        "GPU-hours": format_number(summary.gpu_hours),
        "offered load, GPU-hours per hour": _format_or_dash(summary.offered_gpus),
        "skipped rows": format_number(len(summary.skipped_rows)),
    }
    more = len(summary.skipped_rows) - MAX_SKIPPED_ROWS
    skipped = [*summary.skipped_rows[:MAX_SKIPPED_ROWS], *([f"… and {more} more"] if more > 0 else [])]
    after = [*(f"note: {note}" for note in summary.notes), *(f"skipped: {row}" for row in skipped)]
    return fact_table(summary.name, facts, after, numbers=True)


def _format_or_dash(number: float | None) -> str:
    return "–" if number is None else format_number(number)


def _portions(title: str, what: str, portions: tuple[Portion, ...], total: int = 0) -> Table:
    columns: list[Column[Portion]] = [
        Column(what, lambda one: one.name),
        Column("jobs", lambda one: format_number(one.jobs), number=True),
        Column("share", lambda one: format_percent(one.share_of_jobs), number=True),
        Column("", lambda one: draw_bar(one.share_of_jobs)),
        Column("GPU-hours", lambda one: format_number(one.gpu_hours), number=True),
        Column("share", lambda one: format_percent(one.share_of_gpu_hours), number=True),
        Column("", lambda one: draw_bar(one.share_of_gpu_hours)),
    ]
    more = total - len(portions)
    return Table(title, columns, portions, after=[f"… and {more} more"] if more > 0 else [])


def _times(summary: Summary) -> Table:
    from refold.simulator.traces import QUANTILES

    kinds = {"duration": summary.durations, "time between arrivals": summary.gaps}
    known = {kind: values for kind, values in kinds.items() if values}
    columns: list[Column[tuple[str, ...]]] = [Column("", itemgetter(0))]
    columns += [Column(kind, itemgetter(index), number=True) for index, kind in enumerate(known, start=1)]
    rows = [*zip(QUANTILES, *(map(format_duration, values) for values in known.values()), strict=True)]
    return Table("Times", columns, rows, after=[] if summary.durations else ["no durations are known"])


@app.command()
@with_option_groups
def convert(
    source: Annotated[str, argument("IN", "Trace to read.")],
    out: OutFile,
    reading: TraceFormatOptions,
    as_json: AsJson = False,
) -> None:
    """Convert a trace of any format to the common CSV format.

    Example: refold trace convert cluster_log.csv jobs.csv.gz --format helios
    """
    _write(reading.read(source), out, as_json)


@app.command()
def generate(
    out: OutFile,
    jobs: Annotated[int, option("N", "Number of jobs.", min=1)] = 1000,
    seed: Annotated[int, option("N", "Random seed.", min=0)] = 0,
    like: Annotated[str | None, option("TRACE", "Use the distributions of this trace.")] = None,
    cluster: Annotated[str | None, option("CLUSTER", "Cluster file, 'demo' or shorthand such as 16x8:A100.")] = None,
    load: Annotated[
        float | None, option("FACTOR", "Offered load relative to the cluster's capacity (default: 0.9).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate a synthetic trace, with default distributions or those of a trace; for a cluster, at a given load.

    With --cluster, jobs request only GPU types of the cluster.

    Example: refold trace generate busy.csv --jobs 5000 --like demo --cluster 16x8:A100 --load 1.1
    """
    from refold.simulator.traces import generate as draw, read_cluster, relax_missing_types

    if cluster is None:
        if load is not None:
            raise BadInput("--load needs --cluster: the load is relative to its capacity, such as --cluster 16x8")
        generated = draw(_shape(jobs, like, GPUS_PER_INSTANCE), seed)
    else:
        machines = read_cluster(cluster)
        shape = _shape(jobs, like, max_gpus_per_node(machines))
        generated = relax_missing_types(draw(shape.for_load(machines, 0.9 if load is None else load), seed), machines)
    _write(generated, out, as_json)


def _shape(jobs: int, like: str | None, gpus_per_instance: int) -> WorkloadShape:
    from dataclasses import replace

    from refold.simulator.traces import everyday_workload, fit_shape, read_trace

    if not like:
        return everyday_workload(jobs)
    return replace(fit_shape(read_trace(like, gpus_per_instance=gpus_per_instance)), jobs=jobs)


def _write(trace: Trace, out: Path, as_json: bool) -> None:
    from refold.simulator.traces import write_trace

    write_trace(trace, out)
    if as_json:
        skipped_rows = [str(row) for row in trace.skipped_rows]
        print_json({"path": str(out), "jobs": len(trace.jobs), "skipped_rows": skipped_rows, "notes": trace.notes})
        return
    print_notes(trace.notes)
    skipped = f", skipped {format_count(len(trace.skipped_rows), 'row')}" if trace.skipped_rows else ""
    print_line(f"wrote {format_count(len(trace.jobs), 'job')} to {out}{skipped}")
    print_line(f"next: refold trace show {out}", err=True)


@app.command()
def formats(as_json: AsJson = False) -> None:
    """List the supported trace formats."""
    from refold.simulator.traces import FORMATS

    rows = [{"format": name, "summary": one.summary} for name, one in FORMATS.items()]
    if as_json:
        print_json(rows)
    else:
        columns: list[Column[dict[str, str]]] = [
            Column("format", lambda one: one["format"]),
            Column("description", lambda one: one["summary"]),
        ]
        print_tables(Table("Formats", columns, rows))
