"""The jobs of the last weeks from Slurm's accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import msgspec

from refold.engines.slurm.cluster import SlurmCluster
from refold.engines.slurm.programs import Run
from refold.errors import BadInput
from refold.model import Job, Seconds, format_count
from refold.simulator.traces import Trace, parse_sacct

COLUMNS = (
    "JobID",
    "Partition",
    "User",
    "Account",
    "State",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "Timelimit",
    "NNodes",
    "NCPUS",
    "ReqMem",
    "ReqTRES",
    "AllocTRES",
    "NodeList",
    "JobName",
)
"""What is asked of `sacct`. The name comes last: it may contain the separator.

A job counts as submitted when it was first eligible: its begin time had come, and its dependencies had ended.
"""


class RecordedStart(NamedTuple):
    """When and where the last run of a job started. `at`: in the time of the trace."""

    at: Seconds
    nodes: str


class SlurmHistory(NamedTuple):
    """The jobs with GPUs that ran, with the GPU types that they could use, and how they started."""

    trace: Trace
    starts: dict[str, RecordedStart]


def read_history(run: Run, cluster: SlurmCluster, since: Seconds) -> SlurmHistory:
    """Read the jobs that ran since a time, in seconds since 1970."""
    text = run(
        "sacct",
        "--allusers",
        "--allocations",
        "--duplicates",
        "--parsable2",
        f"--starttime={datetime.fromtimestamp(since):%Y-%m-%dT%H:%M:%S}",
        "--endtime=now",
        f"--format={','.join(COLUMNS)}",
    )
    if text.count("\n") < 2:
        raise BadInput("Slurm's accounting has no jobs in this time")
    trace = parse_sacct(text.replace("|Eligible|", "|Submit|", 1), cluster.cluster.max_node_gpus)
    rows = _rows(text)
    partitions = {name: tuple(row["Partition"].split(",")) for name, row in rows.items()}
    jobs = [_with_types(job, partitions.get(job.id, ()), cluster) for job in trace.jobs if job.demand.gpus]
    others = len(trace.jobs) - len(jobs)
    notes = [f"{format_count(others, 'job')} without GPUs skipped"] if others else []
    if trace.jobs and not jobs:
        notes.append("no job has GPUs: AccountingStorageTRES in slurm.conf must include gres/gpu")
    return SlurmHistory(replace(trace, jobs=tuple(jobs), notes=(*trace.notes, *notes)), _starts(jobs, rows))


def _rows(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the last row of each job: a requeued job has one per run."""
    rows = (line.split("|", len(COLUMNS) - 1) for line in text.splitlines()[1:])
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows if len(row) == len(COLUMNS)}


def _starts(jobs: Sequence[Job], rows: Mapping[str, Mapping[str, str]]) -> dict[str, RecordedStart]:
    known = {job.id: rows[job.id] for job in jobs if job.id in rows and rows[job.id]["Start"].isdecimal()}
    offsets = [
        float(known[job.id]["Eligible"]) - job.submitted
        for job in jobs
        if job.id in known and known[job.id]["Eligible"].isdecimal()
    ]
    if not offsets:
        return {}
    begin = min(offsets)  # that of requeued jobs is larger: they were submitted before their last row
    return {name: RecordedStart(float(row["Start"]) - begin, row["NodeList"]) for name, row in known.items()}


def _with_types(job: Job, partitions: tuple[str, ...], cluster: SlurmCluster) -> Job:
    """Return the job with the GPU types of its partition; as it is if that has gone."""
    types = cluster.accepted_types(partitions, job.demand.gpu_types)
    if not types:
        return job
    accepted = () if types == cluster.cluster.type_names else types
    return msgspec.structs.replace(job, demand=msgspec.structs.replace(job.demand, gpu_types=accepted))
