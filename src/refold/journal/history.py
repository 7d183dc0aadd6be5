"""What happened, as columns: built from a journal's entries while they are written, or from a file of them.

The collector runs inside the simulator's loop, so it only notes; columns are made once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import nan

import msgspec
import numpy as np

from refold.core import (
    Entry,
    Event,
    Header,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    StartRun,
    Woke,
)
from refold.errors import BadJournal
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Seconds, StartEstimate
from refold.packing import Floats, Free, Ints


class Outcome(IntEnum):
    """How a job stands at the end of the history."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    INFEASIBLE = 5  # the whole cluster, empty, has no room for it


class Ending(IntEnum):
    """How a run ended."""

    OPEN = 0  # it had not, when the history ends
    FINISHED = 1
    STOPPED = 2
    FAILED = 3
    CANCELLED = 4  # stopped, or failed, after somebody cancelled its job


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """One entry per job, in the order of submission. Times that never came are nan."""

    jobs: Sequence[Job]
    submitted: Floats
    work: Floats
    gpus: Floats
    tenant: Ints
    first_start: Floats
    ended: Floats
    outcome: Ints

    def __len__(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """One entry per run, in the order of starting. A step is the number of an entry in the journal.

    `computing` is when the run reported to have started up (when it was ordered, if it never did);
    `told_to_stop` and `end` are nan if that never happened. `kept_before` and `kept` are the seconds of work
    that its job could go on from before the run and after it.
    """

    allocations: Sequence[Allocation]
    job: Ints
    number: Ints
    start: Floats
    start_step: Ints
    computing: Floats
    told_to_stop: Floats
    end: Floats
    end_step: Ints
    ending: Ints
    kept_before: Floats
    kept: Floats
    gpus: Floats

    def __len__(self) -> int:
        return len(self.allocations)


@dataclass(frozen=True, slots=True, eq=False)
class StartEstimateColumns:
    """One entry per time that a waiting job was told when it may start, in the order of saying.

    `made` is when it was said; `soonest` and `latest` are nan where they were not.
    """

    job: Ints
    made: Floats
    at: Floats
    soonest: Floats
    latest: Floats

    def __len__(self) -> int:
        return len(self.job)


class NodeChange(msgspec.Struct, frozen=True):
    """A node was lost, or has returned."""

    at: Seconds
    node: int
    up: bool


@dataclass(frozen=True, eq=False)
class History:
    """Jobs, runs and nodes, from the first entry of a journal to its last, which was written at `until`."""

    cluster: Cluster
    jobs: JobColumns
    runs: RunColumns
    tenants: tuple[str, ...]
    node_changes: Sequence[NodeChange]
    until: Seconds
    promises: StartEstimateColumns

    @staticmethod
    def from_entries(cluster: Cluster, entries: Iterable[Entry]) -> History:
        """The history that a journal tells."""
        journal = HistoryJournal()
        for entry in entries:
            journal.write(entry)
        return journal.history(cluster)

    @cached_property
    def run_end(self) -> Floats:
        """When each run ended; of one that is still open, when the history does."""
        return np.where(np.isnan(self.runs.end), self.until, self.runs.end)

    @cached_property
    def time_running(self) -> Floats:
        """Seconds that each job had a run."""
        return self.per_job(self.run_end - self.runs.start)

    @cached_property
    def gpu_seconds(self) -> Floats:
        """GPU-seconds that each job held."""
        return self.per_job((self.run_end - self.runs.start) * self.runs.gpus)

    def per_job(self, of_runs: Floats) -> Floats:
        """An amount of each run, summed over the runs of each job."""
        return sums(self.runs.job, of_runs, len(self.jobs))

    @property
    def first_submission(self) -> Seconds:
        """When work began to arrive; 0 if none did."""
        return float(self.jobs.submitted.min()) if len(self.jobs) else 0.0

    @property
    def last_submission(self) -> Seconds:
        """When the last of it arrived."""
        return float(self.jobs.submitted.max()) if len(self.jobs) else 0.0


class _JobSoFar(msgspec.Struct, gc=False):
    """A job while its history is written."""

    job: Job
    index: int
    run: _RunSoFar | None = None
    kept: Seconds = 0.0
    first_start: Seconds = nan
    ended: Seconds = nan
    outcome: Outcome = Outcome.WAITING
    cancelled: bool = False


class _RunSoFar(msgspec.Struct, gc=False):
    """A run while its history is written."""

    job: int
    number: int
    allocation: Allocation
    start: Seconds
    start_step: int
    computing: Seconds
    kept_before: Seconds
    kept: Seconds = nan
    told_to_stop: Seconds = nan
    end: Seconds = nan
    end_step: int = -1
    ending: Ending = Ending.OPEN


class HistoryJournal:
    """A journal that keeps what measures need of each entry."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobSoFar] = {}
        self._runs: list[_RunSoFar] = []
        self._node_changes: list[NodeChange] = []
        self._promises: list[tuple[int, Seconds, StartEstimate]] = []
        self._step = 0
        self._now: Seconds = 0.0

    def write(self, entry: Entry) -> None:
        """Note the facts of an entry, then its orders: that is how the scheduler came to them.

        Submissions, ends and starts are most of any journal, so they are told apart here by the quickest test.
        """
        self._step += 1
        self._now = entry.now
        jobs = self._jobs
        for event in entry.events:
            if type(event) is JobSubmitted:
                job = event.job
                if job.id not in jobs:
                    jobs[job.id] = _JobSoFar(job, len(jobs))
            elif type(event) is RunFinished:
                self._finished(event)
            else:
                self._note_event(event)
        for order in entry.orders:
            if type(order) is StartRun:
                self._started(order)
            elif run := self._current(order.job, order.run):
                run.told_to_stop = self._now
        for end in entry.ends:
            jobs[end.job].cancelled = True  # by a rule, and not by somebody
        if entry.start_estimates:
            self._promised(entry)

    def _note_event(self, event: Event) -> None:
        match event:
            case RunStopped(job_id, number, done):
                job = self._ended(job_id, number, Ending.STOPPED, done)
                if job is not None and job.cancelled:
                    self._done_with(job, Outcome.CANCELLED)
            case RunFailed(job_id, number, _, done, retry):
                job = self._ended(job_id, number, Ending.FAILED, done)
                if job is not None and (job.cancelled or not retry):
                    self._done_with(job, Outcome.CANCELLED if job.cancelled else Outcome.FAILED)
            case RunStarted(job_id, number):
                if run := self._current(job_id, number):
                    run.computing = self._now
            case JobCancelled(job_id):
                self._cancelled(job_id)
            case NodeLost(node):
                self._node_changes.append(NodeChange(self._now, node, False))
            case NodeReturned(node):
                self._node_changes.append(NodeChange(self._now, node, True))
            case RunAdopted(job_id, number, allocation, since):
                self._started(StartRun(job_id, number, allocation))
                self._jobs[job_id].first_start = since
            case RunProgressed() | Woke() | JobSubmitted() | RunFinished():
                pass
            case JobContinued(job_id, _, done) if job_id in self._jobs:
                self._jobs[job_id].kept = done
            case JobHeld() | JobReleased() | JobContinued() | PastJob() | RunRecalled():
                pass  # what comes of these is ordered, and noted as such

    def _promised(self, entry: Entry) -> None:
        for expected in entry.start_estimates:
            job = self._jobs.get(expected.job)
            if job is None:
                raise BadJournal(f"job {expected.job!r} was told when it may start, which was never submitted")
            self._promises.append((job.index, entry.now, expected))

    def _started(self, order: StartRun) -> None:
        job = self._jobs.get(order.job)
        if job is None:
            raise BadJournal(f"run {order.run} of job {order.job!r} was ordered, which was never submitted")
        now = self._now
        job.run = run = _RunSoFar(job.index, order.run, order.allocation, now, self._step, now, job.kept)
        job.outcome = Outcome.RUNNING
        if order.run == 1:
            job.first_start = now
        self._runs.append(run)

    def _finished(self, event: RunFinished) -> None:
        job = self._jobs.get(event.job)
        if job is not None and (run := job.run) is not None and run.number == event.run:
            run.end, run.end_step, run.ending = self._now, self._step, Ending.FINISHED
            job.run, job.outcome, job.ended = None, Outcome.FINISHED, self._now

    def _current(self, job_id: str, number: int) -> _RunSoFar | None:
        """The run that a report is about, or None if the report is late."""
        job = self._jobs.get(job_id)
        if job is None or job.run is None or job.run.number != number:
            return None
        return job.run

    def _ended(self, job_id: str, number: int, ending: Ending, kept: Seconds) -> _JobSoFar | None:
        """The job whose run has ended and which waits again, for now; or None if the report is late."""
        run = self._current(job_id, number)
        if run is None:
            return None
        job = self._jobs[job_id]
        run.end, run.end_step, run.kept = self._now, self._step, kept
        run.ending = Ending.CANCELLED if job.cancelled else ending
        job.run, job.kept, job.outcome = None, kept, Outcome.WAITING
        return job

    def _done_with(self, job: _JobSoFar, outcome: Outcome) -> None:
        job.outcome, job.ended = outcome, self._now

    def _cancelled(self, job_id: str) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.outcome not in (Outcome.WAITING, Outcome.RUNNING):
            return
        if job.run is not None:
            job.cancelled = True  # it holds its GPUs until its run has ended
        else:
            self._done_with(job, Outcome.CANCELLED)

    def history(self, on: Header | Cluster) -> History:
        """What has been written so far, as columns."""
        cluster = on.cluster if isinstance(on, Header) else on
        self._refuse_places_outside(cluster)
        jobs = list(self._jobs.values())
        tenants = tuple(sorted({entry.job.tenant for entry in jobs}))
        return History(
            cluster,
            _job_columns(jobs, tenants, cluster),
            _run_columns(self._runs),
            tenants,
            self._node_changes,
            self._now,
            _promise_columns(self._promises),
        )

    def _refuse_places_outside(self, cluster: Cluster) -> None:
        """Compiled code looks up nodes and GPUs by their numbers, and does not ask whether they are there."""
        gpus = [node.gpus for node in cluster.nodes]
        for run in self._runs:
            for share in run.allocation.placement:
                if not 0 <= share.node < len(gpus):
                    raise BadJournal(f"{self._name(run)} is on node {share.node}, but the cluster has {_nodes(gpus)}")
                if share.gpus and not 0 <= min(share.gpus) <= max(share.gpus) < gpus[share.node]:
                    name, held = cluster.nodes[share.node].name, list(share.gpus)
                    raise BadJournal(
                        f"{self._name(run)} is on GPUs {held} of node {name!r}, which has {gpus[share.node]}"
                    )
        for change in self._node_changes:
            if not 0 <= change.node < len(gpus):
                what = "returned" if change.up else "was lost"
                raise BadJournal(f"node {change.node} {what} at {change.at:g} s, but the cluster has {_nodes(gpus)}")

    def _name(self, run: _RunSoFar) -> str:
        job = next(id for id, job in self._jobs.items() if job.index == run.job)
        return f"run {run.number} of job {job!r}"


def _nodes(gpus: list[int]) -> str:
    return f"{len(gpus):,} node{'s' * (len(gpus) != 1)}, numbered from 0"


def _job_columns(entries: list[_JobSoFar], tenants: tuple[str, ...], cluster: Cluster) -> JobColumns:
    jobs = [entry.job for entry in entries]
    code = {tenant: index for index, tenant in enumerate(tenants)}
    return JobColumns(
        jobs,
        submitted=_floats([job.submitted for job in jobs]),
        work=_floats([nan if job.work is None else job.work for job in jobs]),
        gpus=_floats([job.demand.total_gpus for job in jobs]),
        tenant=_ints([code[job.tenant] for job in jobs]),
        first_start=_floats([entry.first_start for entry in entries]),
        ended=_floats([entry.ended for entry in entries]),
        outcome=_ints(_outcomes(entries, cluster)),
    )


def _outcomes(entries: list[_JobSoFar], cluster: Cluster) -> list[int]:
    """As noted; but who waits and has no place even in the empty cluster never had a chance."""
    room = Free(cluster)
    fits: dict[Demand, bool] = {}
    outcomes: list[int] = []
    for entry in entries:
        outcome, demand = entry.outcome, entry.job.demand
        if outcome is Outcome.WAITING:
            if demand not in fits:
                fits[demand] = room.fits_when_empty(demand)
            outcome = outcome if fits[demand] else Outcome.INFEASIBLE
        outcomes.append(int(outcome))
    return outcomes


def _run_columns(runs: list[_RunSoFar]) -> RunColumns:
    return RunColumns(
        [run.allocation for run in runs],
        job=_ints([run.job for run in runs]),
        number=_ints([run.number for run in runs]),
        start=_floats([run.start for run in runs]),
        start_step=_ints([run.start_step for run in runs]),
        computing=_floats([run.computing for run in runs]),
        told_to_stop=_floats([run.told_to_stop for run in runs]),
        end=_floats([run.end for run in runs]),
        end_step=_ints([run.end_step for run in runs]),
        ending=_ints([int(run.ending) for run in runs]),
        kept_before=_floats([run.kept_before for run in runs]),
        kept=_floats([run.kept for run in runs]),
        gpus=_floats([run.allocation.gpu_milli for run in runs]) / WHOLE,
    )


def _promise_columns(said: list[tuple[int, Seconds, StartEstimate]]) -> StartEstimateColumns:
    return StartEstimateColumns(
        job=_ints([job for job, _, _ in said]),
        made=_floats([made for _, made, _ in said]),
        at=_floats([expected.at for _, _, expected in said]),
        soonest=_floats([nan if expected.soonest is None else expected.soonest for _, _, expected in said]),
        latest=_floats([nan if expected.latest is None else expected.latest for _, _, expected in said]),
    )


def sums(group: Ints, amounts: Floats, groups: int) -> Floats:
    """The sum of the amounts of each group, which are numbered from 0."""
    total = np.zeros(groups, dtype=np.float64)
    if len(group):
        total += np.bincount(group, amounts, minlength=groups)
    return total


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
