"""Files in, Jobs and Clusters out.

A format is one module, with `recognises(first_line)` and `read(source, ...)`, and one line in the table.
"""

from __future__ import annotations

from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from refold.errors import BadFile, BadInput, BadValue, UnknownName
from refold.model import Cluster
from refold.traces.text_source import TextSource, open_source
from refold.traces.trace import Trace


class Format(NamedTuple):
    """A kind of trace file: the module that reads it and a line for people."""

    module: str
    summary: str


FORMATS: dict[str, Format] = {
    "common": Format("refold.traces.common_format", "plain CSV, the columns `refold trace convert` writes"),
    "helios": Format("refold.traces.helios", "SenseTime Helios, cluster_log.csv"),
    "openb": Format("refold.traces.openb", "Alibaba openb 2023, openb_pod_list_*.csv"),
    "pai": Format("refold.traces.pai", "Alibaba PAI 2020, pai_task_table.csv (and pai_job_table.csv beside it)"),
    "philly": Format("refold.traces.philly", "Microsoft Philly, cluster_job_log (JSON)"),
    "rubick": Format("refold.traces.rubick", "Rubick workload CSV, with parallel plans and steps"),
    "sacct": Format("refold.traces.sacct", "Slurm accounting, sacct --parsable2"),
}

SHIPPED = ("demo",)
"""Traces, each with its cluster, that come with the package and are read by name."""


class _TraceReader(Protocol):
    """What a module of the table offers."""

    def recognises(self, first_line: str) -> bool: ...

    def read(self, source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace: ...


def read_trace(
    path: str | Path, *, format: str | None = None, skip_bad: bool = False, gpus_per_instance: int = 8
) -> Trace:
    """The jobs of a file, in order of submission. Without a format, the file's first line tells it.

    A bad row raises `BadRow`; with `skip_bad` it is kept in the trace's `left_out` instead. Where a file only
    gives a total of GPUs, it is split into equal instances of at most `gpus_per_instance`.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName("trace format", format, FORMATS)
    if gpus_per_instance < 1:
        raise BadValue(f"an instance has at least 1 GPU, not {gpus_per_instance}")
    if not str(path).strip() or path == Path():
        raise BadInput(f"the name of the trace is empty; give a file, or one that is shipped ({', '.join(SHIPPED)})")
    if str(path) in SHIPPED and not Path(path).exists():
        with as_file(files("refold.traces") / "shipped" / f"{path}.csv") as shipped:
            source = open_source(shipped)
    else:
        source = open_source(Path(path))
    reader = _reader(format or _format_of(source))
    return reader.read(source, skip_bad=skip_bad, gpus_per_instance=gpus_per_instance)


def _reader(format: str) -> _TraceReader:
    return cast(_TraceReader, import_module(FORMATS[format].module))


def _format_of(source: TextSource) -> str:
    line = source.first_line
    for name in FORMATS:
        if _reader(name).recognises(line):
            return name
    seen = line[:80] + ("…" if len(line) > 80 else "")
    raise BadFile(
        source.path,
        f"begins with {seen!r}, which is no format we know; name one with --format ({', '.join(FORMATS)})",
    )


def write_trace(trace: Trace, path: str | Path) -> None:
    """The trace in the common columns, gzipped for .gz; `read_trace` gives the same jobs back."""
    from refold.traces import common_format

    common_format.write(trace.jobs, Path(path))


def read_cluster(path: str | Path) -> Cluster:
    """A cluster from YAML or CSV, by the name of a shipped one, or from shorthand such as '16x8:A100'."""
    from refold.traces import clusters

    return clusters.read(path)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """The cluster as YAML that people can read and change."""
    from refold.traces import clusters

    clusters.write(cluster, Path(path))
