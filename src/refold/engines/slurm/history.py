"""The jobs of the last weeks from Slurm's accounting, and what Slurm did with them as the entries of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import msgspec

from refold.core import Entry, JobSubmitted, RunFinished, RunStarted, StartRun
from refold.engines.slurm.nodes import SlurmCluster, expand_hosts
from refold.engines.slurm.programs import Run
from refold.errors import BadInput, BadValue
from refold.model import Allocation, Job, Seconds, Share, format_count
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
    "QOS",
    "Priority",
    "JobName",
)
"""What is asked of `sacct`. The name comes last: it may contain the separator.

A job counts as submitted when it was first eligible: its begin time had come, and its dependencies had ended.
"""

SHORTEST_RUN: Seconds = 1e-3
"""Slurm records whole seconds; a run that took less ends after its start all the same."""


class RecordedStart(NamedTuple):
    """When and where the last run of a job started. `at`: in the time of the trace. `priority`: at that time."""

    at: Seconds
    nodes: str
    qos: str = ""
    priority: int = 0


class SlurmHistory(NamedTuple):
    """The jobs with GPUs that ran, with the GPU types that they could use, and how they started.

    `begin`: time 0 of the trace, in seconds since 1970.
    """

    trace: Trace
    starts: dict[str, RecordedStart]
    begin: Seconds = 0.0


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
    trace = parse_sacct(text, cluster.cluster.max_node_gpus)
    rows = _rows(text)
    partitions = {name: tuple(row["Partition"].split(",")) for name, row in rows.items()}
    jobs = [_with_types(job, partitions.get(job.id, ()), cluster) for job in trace.jobs if job.demand.gpus]
    others = len(trace.jobs) - len(jobs)
    notes = [f"{format_count(others, 'job')} without GPUs skipped"] if others else []
    if trace.jobs and not jobs:
        notes.append("no job has GPUs: AccountingStorageTRES in slurm.conf must include gres/gpu")
    begin, starts = _starts(jobs, rows)
    return SlurmHistory(replace(trace, jobs=tuple(jobs), notes=(*trace.notes, *notes)), starts, begin)


def _rows(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the last row of each job: a requeued job has one per run."""
    rows = (line.split("|", len(COLUMNS) - 1) for line in text.splitlines()[1:])
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows if len(row) == len(COLUMNS)}


def _starts(jobs: Sequence[Job], rows: Mapping[str, Mapping[str, str]]) -> tuple[Seconds, dict[str, RecordedStart]]:
    """Return time 0 of the trace, and the starts."""
    known = {job.id: rows[job.id] for job in jobs if job.id in rows and rows[job.id]["Start"].isdecimal()}
    offsets = [
        float(known[job.id]["Eligible"]) - job.submitted
        for job in jobs
        if job.id in known and known[job.id]["Eligible"].isdecimal()
    ]
    if not offsets:
        return 0.0, {}
    begin = min(offsets)  # that of requeued jobs is larger: they were submitted before their last row
    return begin, {name: _recorded_start(row, begin) for name, row in known.items()}


def _recorded_start(row: Mapping[str, str], begin: Seconds) -> RecordedStart:
    priority = int(row["Priority"]) if row["Priority"].isdecimal() else 0
    return RecordedStart(float(row["Start"]) - begin, row["NodeList"], row["QOS"], priority)


def _with_types(job: Job, partitions: tuple[str, ...], cluster: SlurmCluster) -> Job:
    """Return the job with the GPU types of its partition; as it is if that has gone."""
    types = cluster.accepted_types(partitions, job.demand.gpu_types)
    if not types:
        return job
    accepted = () if types == cluster.cluster.type_names else types
    return msgspec.structs.replace(job, demand=msgspec.structs.replace(job.demand, gpu_types=accepted))


def recorded_entries(
    jobs: Sequence[Job], starts: Mapping[str, RecordedStart], cluster: SlurmCluster
) -> tuple[list[Entry], int]:
    """Return submissions, starts and ends in the order of time, and how many jobs could not be placed.

    Slurm does not record which GPUs a job had, and nodes may have changed since: a job whose nodes do not have its GPUs
    is placed on others.
    """
    steps = [(job.submitted, 1, job) for job in jobs]
    for job in jobs:
        if job.id in starts:
            began = max(starts[job.id].at, job.submitted)
            steps += [(began, 2, job), (began + max(job.work or 0.0, SHORTEST_RUN), 0, job)]
    board = _Board(cluster)
    entries: list[Entry] = []
    for now, kind, job in sorted(steps, key=lambda step: step[:2]):
        if kind == 1:
            entries.append(Entry(now, (JobSubmitted(job),)))
        elif kind == 2 and (placement := board.place(job, starts[job.id].nodes)):
            entries.append(Entry(now, orders=(StartRun(job.id, 1, Allocation(placement)),)))
            entries.append(Entry(now, (RunStarted(job.id, 1),)))
        elif kind == 0 and board.release(job):
            entries.append(Entry(now, (RunFinished(job.id, 1),)))
    return entries, len(jobs) - board.placed


class _Board:
    """The free GPUs of each node, and the jobs on the others."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._indices: dict[str, list[int]] = {}
        for index, group in enumerate(cluster.groups):
            self._indices.setdefault(group.node.name, []).append(index)
        self._free = [list(range(group.gpus)) for group in cluster.groups]
        self._placements: dict[str, tuple[Share, ...]] = {}
        self.placed = 0

    def place(self, job: Job, nodes: str) -> tuple[Share, ...]:
        """Take the GPUs of a job, on its nodes if possible; () if there are none."""
        shares: list[Share] = []
        for index in self._candidates(nodes):
            if len(shares) == job.demand.instances:
                break
            while len(shares) < job.demand.instances and len(self._free[index]) >= job.demand.gpus:
                free = self._free[index]
                shares.append(Share(index, tuple(free[: job.demand.gpus])))
                del free[: job.demand.gpus]
        self._placements[job.id] = tuple(shares)
        if len(shares) < job.demand.instances:
            self.release(job)
            return ()
        self.placed += 1
        return tuple(shares)

    def _candidates(self, nodes: str) -> Iterator[int]:
        """Yield the nodes of the job first, then all."""
        try:
            names = expand_hosts(nodes)
        except BadValue:
            names = []
        for name in names:
            yield from self._indices.get(name, ())
        yield from range(len(self._free))

    def release(self, job: Job) -> bool:
        """Free the GPUs of a job; return whether it had any."""
        shares = self._placements.pop(job.id, ())
        for share in shares:
            self._free[share.node] = sorted([*self._free[share.node], *share.gpus])
        return bool(shares)
