"""`refold trace`: look into job histories, convert them, make new ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import FormatName, TraceName
from refold.cli.views import AsJson, Column, Table, bar, count, percent, print_json, print_tables, say, tell

if TYPE_CHECKING:
    from refold.model import Cluster
    from refold.traces import Portion, Summary, Trace, WorkloadShape

app = typer.Typer(
    help="Look into job histories, convert them, make new ones.", no_args_is_help=True, rich_markup_mode=None
)

OutFile = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; gzipped when it ends in .gz.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read, and count them.")]
GpusPerInstance = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-instance",
        min=1,
        help="Where only a total of GPUs is given: at most this many on one node [those of the largest node, else 8].",
    ),
]

GPUS_PER_INSTANCE = 8
"""Where no cluster is known."""

MOST_TENANTS = 12
MOST_LEFT_OUT = 5


@app.command()
def show(
    trace: TraceName,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    gpus_per_instance: GpusPerInstance = None,
    as_json: AsJson = False,
) -> None:
    """Say what a trace holds: jobs, sizes, durations, arrivals, tenants, and rows that were left out.

    Example: refold trace show demo
    """
    from refold.traces import read_trace, summarise

    each = gpus_per_instance or GPUS_PER_INSTANCE
    summary = summarise(read_trace(trace, format=format, skip_bad=skip_bad, gpus_per_instance=each))
    if as_json:
        print_json(summary)
    else:
        print_tables(*_tables(summary))


def _tables(summary: Summary) -> list[Table]:
    return [
        _facts(summary),
        _portions("Sizes", "GPUs", summary.sizes),
        _times(summary),
        _portions("Tenants", "tenant", summary.tenants[:MOST_TENANTS], len(summary.tenants)),
    ]


def _facts(summary: Summary) -> Table:
    from refold.model import text_from_seconds

    facts = {
        "jobs": count(summary.jobs),
        "of these best-effort": count(summary.best_effort),
        "submitted over": text_from_seconds(summary.span),
        "GPU-hours": count(summary.gpu_hours),
        "offered load: GPU-hours of work per hour of submissions": _count_or_dash(summary.offered_gpus),
        "rows left out": count(len(summary.left_out)),
    }
    more = len(summary.left_out) - MOST_LEFT_OUT
    left_out = [*summary.left_out[:MOST_LEFT_OUT], *([f"… and {more} more"] if more > 0 else [])]
    return Table(
        summary.name,
        {"fact": Column(""), "value": Column("", number=True)},
        [{"fact": fact, "value": value} for fact, value in facts.items()],
        after=[*(f"note: {note}" for note in summary.notes), *(f"left out: {row}" for row in left_out)],
    )


def _count_or_dash(number: float | None) -> str:
    return "–" if number is None else count(number)


def _portions(title: str, what: str, portions: tuple[Portion, ...], of_all: int = 0) -> Table:
    columns = {
        "name": Column(what),
        "jobs": Column("jobs", count, number=True),
        "share_of_jobs": Column("of all", percent, number=True),
        "jobs_bar": Column("", bar),
        "gpu_hours": Column("GPU-hours", count, number=True),
        "share_of_gpu_hours": Column("of all", percent, number=True),
        "hours_bar": Column("", bar),
    }
    rows = [
        {
            "name": one.name,
            "jobs": one.jobs,
            "share_of_jobs": one.share_of_jobs,
            "jobs_bar": one.share_of_jobs,
            "gpu_hours": one.gpu_hours,
            "share_of_gpu_hours": one.share_of_gpu_hours,
            "hours_bar": one.share_of_gpu_hours,
        }
        for one in portions
    ]
    more = of_all - len(portions)
    return Table(title, columns, rows, after=[f"… and {more} more"] if more > 0 else [])


def _times(summary: Summary) -> Table:
    from refold.model import text_from_seconds
    from refold.traces import QUANTILES

    kinds = {"duration": summary.durations, "between arrivals": summary.gaps}
    known = {kind: values for kind, values in kinds.items() if values}
    columns = {"quantile": Column("")} | {kind: Column(kind, text_from_seconds, number=True) for kind in known}
    rows = [
        {"quantile": name} | {kind: values[place] for kind, values in known.items()}
        for place, name in enumerate(QUANTILES)
    ]
    return Table("Times", columns, rows, after=[] if summary.durations else ["no durations are known"])


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="The trace to read.")],
    out: OutFile,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    gpus_per_instance: GpusPerInstance = None,
    as_json: AsJson = False,
) -> None:
    """Write a trace of any format in the common columns, a plain CSV that spreadsheets read too.

    Example: refold trace convert cluster_log.csv jobs.csv.gz --format helios
    """
    from refold.traces import read_trace

    each = gpus_per_instance or GPUS_PER_INSTANCE
    trace = read_trace(source, format=format, skip_bad=skip_bad, gpus_per_instance=each)
    _write(trace, out, as_json)


@app.command()
def generate(
    out: OutFile,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many jobs.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Chance: the same seed gives the same jobs.")] = 0,
    like: Annotated[str | None, typer.Option("--like", metavar="TRACE", help="Learn the mix from it.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file, 'demo' or shorthand such as 16x8:A100.")
    ] = None,
    load: Annotated[
        float | None, typer.Option("--load", help="GPU time to ask for, as a part of the cluster's [0.9].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a workload: of the usual kind, or like a trace you have; for a cluster, at a load.

    For a cluster, jobs ask for its GPU types only.

    Example: refold trace generate busy.csv --jobs 5000 --like demo --cluster 16x8:A100 --load 1.1
    """
    from refold.errors import BadInput
    from refold.traces import generate as draw, read_cluster, with_types_of

    if cluster is None:
        if load is not None:
            raise BadInput("--load needs --cluster: a load is a part of something, such as --cluster 16x8")
        made = draw(_shape(jobs, like, GPUS_PER_INSTANCE), seed)
    else:
        machines = read_cluster(cluster)
        shape = _shape(jobs, like, most_gpus_of_a_node(machines))
        made = with_types_of(draw(shape.for_load(machines, 0.9 if load is None else load), seed), machines)
    _write(made, out, as_json)


def most_gpus_of_a_node(cluster: Cluster) -> int:
    """How many GPUs an instance may have at most; where no node has any, as if there were no cluster."""
    return max(node.gpus for node in cluster.nodes) or GPUS_PER_INSTANCE


def _shape(jobs: int, like: str | None, gpus_per_instance: int) -> WorkloadShape:
    from dataclasses import replace

    from refold.traces import calibrated, everyday, read_trace

    if not like:
        return everyday(jobs)
    return replace(calibrated(read_trace(like, gpus_per_instance=gpus_per_instance)), jobs=jobs)


def _write(trace: Trace, out: Path, as_json: bool) -> None:
    from refold.traces import counted, write_trace

    write_trace(trace, out)
    if as_json:
        left_out = [str(row) for row in trace.left_out]
        print_json({"path": str(out), "jobs": len(trace.jobs), "left_out": left_out, "notes": trace.notes})
        return
    tell(trace.notes)
    left_out_too = f", left out {counted(len(trace.left_out), 'row')}" if trace.left_out else ""
    say(f"wrote {counted(len(trace.jobs), 'job')} to {out}{left_out_too}")
    say(f"next: refold trace show {out}", err=True)


@app.command()
def formats(as_json: AsJson = False) -> None:
    """List the formats that can be read."""
    from refold.traces import FORMATS

    rows = [{"format": name, "summary": one.summary} for name, one in FORMATS.items()]
    if as_json:
        print_json(rows)
    else:
        print_tables(Table("Formats", {"format": Column("format"), "summary": Column("what it is")}, rows))
