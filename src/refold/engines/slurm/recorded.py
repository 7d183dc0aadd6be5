"""What Slurm did with the jobs of its accounting, as the entries of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from refold.core import Entry, JobSubmitted, RunFinished, RunStarted, StartRun
from refold.engines.slurm.cluster import SlurmCluster
from refold.engines.slurm.history import RecordedStart
from refold.engines.slurm.hostlist import expand_hosts
from refold.errors import BadValue
from refold.model import Allocation, Job, Seconds, Share

SHORTEST_RUN: Seconds = 1e-3
"""Slurm records whole seconds; a run that took less ends after its start all the same."""


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
