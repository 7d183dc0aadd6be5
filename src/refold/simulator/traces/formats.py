"""Read traces and clusters from files, and write them.

A trace format is a module with `recognises(first_line)` and `read(source, ...)`, listed in `FORMATS`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from refold.errors import BadFile, BadInput, BadValue, UnknownName
from refold.model import Cluster
from refold.simulator.traces.text_source import TextSource, open_source
from refold.simulator.traces.trace import Trace


class Format(NamedTuple):
    """A trace format: the module that reads it, and a one-line description."""

    module: str
    summary: str


FORMATS: dict[str, Format] = {
    "common": Format("refold.simulator.traces.common_format", "CSV, as written by `refold trace convert`"),
    "helios": Format("refold.simulator.traces.helios", "SenseTime Helios, cluster_log.csv"),
    "openb": Format("refold.simulator.traces.openb", "Alibaba openb 2023, openb_pod_list_*.csv"),
    "pai": Format(
        "refold.simulator.traces.pai",
        "Alibaba PAI 2020, pai_task_table.csv (with pai_job_table.csv in the same folder)",
    ),
    "philly": Format("refold.simulator.traces.philly", "Microsoft Philly, cluster_job_log (JSON)"),
    "rubick": Format("refold.simulator.traces.rubick", "Rubick workload CSV, with parallel plans and steps"),
    "sacct": Format("refold.simulator.traces.sacct", "Slurm accounting, sacct --parsable2"),
}

SHIPPED = ("demo",)
"""Traces that ship with the package, each with its cluster, and can be read by name."""


class _TraceReader(Protocol):
    """The interface of a format's module."""

    def recognises(self, first_line: str) -> bool: ...

    def read(self, source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace: ...


def read_trace(
    path: str | Path, *, format: str | None = None, skip_bad: bool = False, gpus_per_instance: int = 8
) -> Trace:
    """Read the jobs of a file, in order of submission. The format is detected from the first line if not given.

    A bad row raises `BadRow`; with `skip_bad` it is recorded in `Trace.skipped_rows` instead. If the file gives only
    the total number of GPUs of a job, they are split into equal instances of at most `gpus_per_instance`.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName("trace format", format, FORMATS)
    if gpus_per_instance < 1:
        raise BadValue(f"gpus_per_instance is {gpus_per_instance}, expected at least 1 GPU")
    if not str(path).strip() or path == Path():
        raise BadInput(f"the trace name is empty; give a file or the name of a shipped trace ({', '.join(SHIPPED)})")
    if str(path) in SHIPPED and not Path(path).exists():
        with as_file(files("refold.simulator.traces") / "shipped" / f"{path}.csv") as shipped:
            source = open_source(shipped)
    else:
        source = open_source(Path(path))
    reader = _reader(format or _detect_format(source))
    return reader.read(source, skip_bad=skip_bad, gpus_per_instance=gpus_per_instance)


def _reader(format: str) -> _TraceReader:
    return cast(_TraceReader, import_module(FORMATS[format].module))


def _detect_format(source: TextSource) -> str:
    line = source.first_line
    for name in FORMATS:
        if _reader(name).recognises(line):
            return name
    start = line[:80] + ("…" if len(line) > 80 else "")
    raise BadFile(
        source.path, f"unknown format: the file begins with {start!r}; choose one with --format ({', '.join(FORMATS)})"
    )


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the trace in the common format, gzipped for .gz; `read_trace` returns the same jobs."""
    from refold.simulator.traces import common_format

    common_format.write(trace.jobs, Path(path), trace.waits)


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster from YAML or CSV, by the name of a shipped cluster, or from shorthand such as '16x8:A100'."""
    from refold.simulator.traces import clusters

    return clusters.read(path)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    from refold.simulator.traces import clusters

    clusters.write(cluster, Path(path))
