"""The current state of a Slurm cluster as a snapshot. Only `squeue`, `scontrol show` and `sacct` are called.

Jobs that request GPUs are jobs; what other jobs use of the nodes with GPUs is use by others. Waiting jobs keep Slurm's
order of priority, its reasons and its start estimates; the policy is Slurm's own, as the site has configured it. Times
are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import NamedTuple

from msgspec.structs import replace

from refold.core import (
    Entry,
    Event,
    Header,
    JobHeld,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeUsed,
    PastJob,
    RunAdopted,
)
from refold.engines.slurm.history import read_history
from refold.engines.slurm.job_records import SlurmJob, read_queue
from refold.engines.slurm.nodes import (
    SlurmCluster,
    constraint_features,
    expand_hosts,
    expand_tasks,
    map_nodes,
    read_nodes,
)
from refold.engines.slurm.programs import Run, SlurmError
from refold.engines.slurm.run_jobs import is_limit
from refold.engines.slurm.scheduling import POLICY, Scheduling, dependencies, queue_facts
from refold.engines.slurm.topology import read_topology, with_levels
from refold.errors import BadInput, BadValue
from refold.model import (
    WHOLE,
    Allocation,
    Demand,
    Job,
    Launch,
    NodeSet,
    Reason,
    Seconds,
    Share,
    StartEstimate,
    Wait,
)
from refold.policies.slurm import SlurmJobFacts
from refold.server import MAX_PAST_JOBS
from refold.simulator import StateAt
from refold.simulator.traces import BadCell, GpuAmount, demand_on_nodes, parse_gpus

MAX_TASKS = 1000
"""Waiting tasks of a job array that become jobs; the others are left out."""

SCHEDULER = "Slurm"

HELD = {
    "JobHeldUser": Reason.HELD,
    "JobHeldAdmin": Reason.HELD,
    "DependencyNeverSatisfied": Reason.DEPENDENCY,
}
"""Slurm's reasons of jobs that cannot start unless somebody changes something; see also `_hold_reason`."""

WAITING = {
    "Resources": Reason.RESOURCES,
    "Priority": Reason.PRIORITY,
    "Reservation": Reason.RESERVED,
    "BeginTime": Reason.BEGIN_TIME,
    "Dependency": Reason.DEPENDENCY,
    "JobArrayTaskLimit": Reason.ARRAY_LIMIT,
}


class SlurmSnapshot(NamedTuple):
    """The state of a cluster as the journal of a snapshot, and notes on what could not be represented."""

    header: Header
    entry: Entry
    notes: list[str]


def observe_slurm(run: Run, history: Seconds, *, priorities: bool = True) -> SlurmSnapshot:
    """Read the state of a cluster. `history`: of how many seconds past jobs are read, to predict run times.

    `priorities`: keep Slurm's order of the waiting jobs; otherwise they are in the order of submission.
    """
    now = time()
    try:
        records = read_queue(run)
        waiting = [job for job in records.jobs if job.is_waiting and job.gpus.total]
        features = {feature for job in waiting for feature in constraint_features(job.features)}
        cluster = with_levels(map_nodes(read_nodes(run), features), read_topology(run))
        scheduling = Scheduling(run)
        present = [job for job in records.jobs if job.is_running or job.is_waiting]
        facts = queue_facts(scheduling, run, present, now)
    except (SlurmError, BadValue) as error:
        raise BadInput(f"Slurm's state cannot be read: {error}") from None
    notes = [*records.notes, *cluster.notes, *scheduling.notes]
    try:
        found = read_history(run, cluster, now - history)
    except (SlurmError, BadInput) as error:
        notes.append(f"no past jobs, so run times are predicted from time limits: {error}")
        past: list[Job] = []
    else:
        past = [replace(job, submitted=job.submitted + found.begin) for job in found.trace.jobs[-MAX_PAST_JOBS:]]
    events = [PastJob(job, job.work or 0.0) for job in past if job.id not in facts]
    observer = _QueueObserver(cluster, now, notes, priorities, scheduling, facts)
    return observer.observe(records.jobs, waiting, events)


class _QueueObserver:
    """Builds the events of a snapshot."""

    def __init__(
        self,
        cluster: SlurmCluster,
        now: Seconds,
        notes: list[str],
        priorities: bool,
        scheduling: Scheduling,
        facts: Mapping[str, SlurmJobFacts],
    ) -> None:
        self._scheduling, self._facts = scheduling, facts
        self._cluster = cluster
        self._now = now
        self._notes = notes
        self._priorities = priorities
        self._free = [list(range(group.gpus)) for group in cluster.groups]
        self._used = [[0, 0] for _ in cluster.groups]
        """Thousandths of CPUs, and memory, of the jobs on each node."""

    def observe(self, jobs: Iterable[SlurmJob], waiting: Sequence[SlurmJob], past: Sequence[Event]) -> SlurmSnapshot:
        running = self._running([job for job in jobs if job.is_running and job.gpus.total])
        ordered = sorted(waiting, key=lambda job: (-job.priority * self._priorities, job.submitted, job.number))
        ranks = {priority: rank for rank, priority in enumerate(sorted({job.priority for job in waiting}))}
        tasks = [task for job in ordered for task in self._tasks(job, ranks[job.priority] * self._priorities)]
        submitted: list[Event] = []
        holds: list[Event] = []
        waits: list[Wait] = []
        estimates: list[StartEstimate] = []
        for slurm_job, job in tasks:
            submitted.append(JobSubmitted(job))
            held = self._hold_reason(slurm_job)
            if held is not None:
                holds.append(JobHeld(job.id, held))
                continue
            limited = Reason.LIMIT if is_limit(slurm_job.reason) else Reason.NOT_CONSIDERED
            waits.append(Wait(job.id, WAITING.get(slurm_job.reason, limited)))
            if slurm_job.started and slurm_job.started >= self._now:
                estimates.append(StartEstimate(job.id, slurm_job.started))
        events = (*past, *running, *submitted, *holds, *self._node_events())
        facts = {**self._facts, **{job.id: self._facts[slurm_job.id] for slurm_job, job in tasks}}
        settings = self._scheduling.settings(facts)
        header = Header(self._cluster.cluster, POLICY, settings, snapshot=True, scheduler=SCHEDULER)
        return SlurmSnapshot(header, self._entry(events, waits, estimates), self._notes)

    def _entry(self, events: tuple[Event, ...], waits: list[Wait], estimates: list[StartEstimate]) -> Entry:
        """Return the entry with counts of nodes and jobs in the reasons. Jobs that can never run have none."""
        entry = Entry(self._now, events)
        feasible = StateAt.from_entries(self._cluster.cluster, [entry]).view.waiting
        given = replace(
            entry,
            waits=tuple(wait for wait in waits if wait.job in feasible),
            start_estimates=tuple(estimate for estimate in estimates if estimate.job in feasible),
        )
        view = StateAt.from_entries(self._cluster.cluster, [given]).view
        return replace(given, waits=tuple(view.reason(wait.job) for wait in given.waits))

    def _running(self, jobs: Iterable[SlurmJob]) -> list[Event]:
        submitted: list[Event] = []
        adopted: list[Event] = []
        for slurm_job in sorted(jobs, key=lambda job: (job.submitted, job.number)):
            try:
                placement = self._placement(slurm_job)
                job = self._job(slurm_job, slurm_job.id, 0)
            except (BadValue, BadCell) as error:
                self._notes.append(f"job {slurm_job.id} counts as use by others: {error}")
                continue
            since = min(slurm_job.started or self._now, self._now)
            submitted.append(JobSubmitted(job))
            adopted.append(RunAdopted(job.id, 1, Allocation(placement), since))
        return [*submitted, *adopted]

    def _tasks(self, slurm_job: SlurmJob, priority: int) -> list[tuple[SlurmJob, Job]]:
        """Return the waiting job, or its array tasks."""
        array, bracket, tasks = slurm_job.id.rstrip("]").partition("_[")
        try:
            numbers = expand_tasks(tasks)[:MAX_TASKS] if bracket else []
            job = self._job(slurm_job, slurm_job.id, priority)
        except BadValue as error:
            self._notes.append(f"job {slurm_job.id} is left out: {error}")
            return []
        return [(slurm_job, replace(job, id=f"{array}_{number}")) for number in numbers] or [(slurm_job, job)]

    def _job(self, job: SlurmJob, job_id: str, priority: int) -> Job:
        types = self._cluster.accepted_types(job.partitions, job.gpus.types, job.features)
        if not types:
            raise BadValue(f"no node of partition {','.join(job.partitions)} has the GPUs that it requests")
        begin = job.eligible if job.reason == "BeginTime" else None
        return Job(
            job_id,
            min(job.submitted, self._now),
            self._demand(job, types),
            tenant=job.account or "default",
            user=job.user,
            group=job.name,
            priority=priority,
            preemptible=False,
            time_limit=job.time_limit,
            launch=Launch(after=dependencies(job.dependency), begin=begin),
        )

    def _demand(self, job: SlurmJob, types: tuple[str, ...]) -> Demand:
        groups = [group for group in self._cluster.groups if group.gpu_type in types]
        largest = max(group.gpus for group in groups)
        nodes = max(job.node_count, -(-job.gpus.total // largest))
        whole = job.is_exclusive and job.is_waiting
        found = demand_on_nodes(
            nodes * min(group.gpus for group in groups) if whole else job.gpus.total,
            nodes,
            largest,
            cpu_milli=nodes * min(group.node.cpus for group in groups) * WHOLE if whole else job.cpus * WHOLE,
            memory_mib=job.memory_mib,
            gpu_types=() if types == self._cluster.cluster.type_names else types,
        )
        return replace(found, allowed_nodes=self._allowed_nodes(job))

    def _allowed_nodes(self, job: SlurmJob) -> NodeSet | None:
        """Return the nodes that a waiting job names, if these are all of its nodes, without those that it excludes."""
        required, excluded = set(expand_hosts(job.required_nodes)), set(expand_hosts(job.excluded_nodes))
        wanted = required if len(required) >= job.node_count else set()
        if job.is_running or not (wanted or excluded):
            return None
        names = [group.node.name for group in self._cluster.groups]
        return NodeSet.of(
            index for index, name in enumerate(names) if name not in excluded and (not wanted or name in wanted)
        )

    # Nodes.

    def _placement(self, job: SlurmJob) -> tuple[Share, ...]:
        """Return the GPUs of a running job. Its CPUs and its memory are divided equally among its nodes."""
        names = expand_hosts(job.nodes)
        if not names:
            raise BadValue("it has no nodes")
        details = job.gpus_on_nodes if len(job.gpus_on_nodes) == len(names) else ()
        equal = GpuAmount(-(-job.gpus.total // len(names)), job.gpus.types)
        amounts = [parse_gpus(text, "gres_detail") for text in details] or [equal] * len(names)
        wanted = [(self._group(name, amount), amount.total) for name, amount in zip(names, amounts, strict=True)]
        return tuple(self._take(job, index, count, len(names)) for index, count in wanted)

    def _group(self, name: str, amount: GpuAmount) -> int:
        """Return the node of the cluster with enough free GPUs of the type."""
        for index in self._cluster.indices(name):
            if len(self._free[index]) >= amount.total and (
                not amount.types or self._cluster.groups[index].slurm_type in amount.types
            ):
                return index
        raise BadValue(f"node {name} does not have its {amount.total} GPUs")

    def _take(self, job: SlurmJob, index: int, gpus: int, nodes: int) -> Share:
        free, used, node = self._free[index], self._used[index], self._cluster.cluster.nodes[index]
        taken, free[:] = tuple(free[:gpus]), free[gpus:]
        cpu = min(job.cpus * WHOLE // nodes, node.cpu_milli - used[0])
        memory = min(job.memory_mib // nodes, node.memory_mib - used[1])
        self._used[index] = [used[0] + cpu, used[1] + memory]
        return Share(index, taken, WHOLE, cpu, memory)

    def _node_events(self) -> list[Event]:
        """Return what is down or drained, and what others use: what Slurm has allocated, less what the jobs have."""
        events: list[Event] = []
        for index, group in enumerate(self._cluster.groups):
            node, free, (cpu, memory) = group.node, self._free[index], self._used[index]
            others = node.used_gpus.get(group.slurm_type, 0) - (group.gpus - len(free))
            used = NodeUsed(
                index,
                tuple(free[len(free) - others :]) if 0 < others <= len(free) else (),
                max(0, int(node.used_cpus * WHOLE * group.share) - cpu),
                max(0, int(node.used_memory_mib * group.share) - memory),
            )
            if used != NodeUsed(index):
                events.append(used)
            if node.down_reason:
                events.append(NodeLost(index, node.down_reason))
            elif node.drain_reason:
                events.append(NodeDrained(index, node.drain_reason))
        return events

    def _hold_reason(self, job: SlurmJob) -> Reason | None:
        """Return why a job cannot start unless something else happens than jobs that start and end."""
        if job.state != "PENDING":
            return Reason.HELD
        if job.reason in HELD:
            return HELD[job.reason]
        is_known = bool(self._facts[job.id].uses)
        is_limited = job.reason not in WAITING and is_limit(job.reason) and not is_known
        return Reason.LIMIT if is_limited or job.reason.startswith("Partition") else None
