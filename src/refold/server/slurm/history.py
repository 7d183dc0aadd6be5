"""The jobs of the last weeks from Slurm's accounting."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import msgspec

from refold.backends.slurm import Run, SlurmCluster
from refold.errors import BadInput
from refold.model import Job, Seconds
from refold.traces import Trace, format_count, parse_sacct

COLUMNS = (
    "JobID",
    "Partition",
    "User",
    "Account",
    "State",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "Timelimit",
    "NNodes",
    "NCPUS",
    "ReqMem",
    "ReqTRES",
    "AllocTRES",
    "JobName",
)
"""What is asked of `sacct`. The name comes last: it may contain the separator."""


def read_history(run: Run, cluster: SlurmCluster, since: Seconds) -> Trace:
    """Read the jobs with GPUs that ran since a time, in seconds since 1970, with the GPU types that they could use."""
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
    trace = parse_sacct(text, cluster.cluster.max_node_gpus)
    partitions = _partitions(text)
    jobs = [_with_types(job, partitions.get(job.id, ()), cluster) for job in trace.jobs if job.demand.gpus]
    others = len(trace.jobs) - len(jobs)
    notes = [f"{format_count(others, 'job')} without GPUs skipped"] if others else []
    if trace.jobs and not jobs:
        notes.append("no job has GPUs: AccountingStorageTRES in slurm.conf must include gres/gpu")
    return replace(trace, jobs=tuple(jobs), notes=(*trace.notes, *notes))


def _partitions(text: str) -> dict[str, tuple[str, ...]]:
    rows = (line.split("|", 2) for line in text.splitlines()[1:])
    return {row[0]: tuple(row[1].split(",")) for row in rows if len(row) > 2}


def _with_types(job: Job, partitions: tuple[str, ...], cluster: SlurmCluster) -> Job:
    """Return the job with the GPU types of its partition; as it is if that has gone."""
    types = cluster.accepted_types(partitions, job.demand.gpu_types)
    if not types:
        return job
    accepted = () if types == cluster.cluster.type_names else types
    return msgspec.structs.replace(job, demand=msgspec.structs.replace(job.demand, gpu_types=accepted))
