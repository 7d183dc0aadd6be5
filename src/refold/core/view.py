# cython: boundscheck=True, wraparound=True
"""A read-only view of the scheduler state, for policies and for user queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import cython

from refold.core.events import NodeUsed
from refold.core.usage import TenantUser, decayed_gpu_seconds
from refold.model import (
    WHOLE,
    Allocation,
    ChangeWay,
    Cluster,
    Demand,
    Job,
    MeasuredShape,
    Milli,
    Placement,
    Reason,
    Run,
    Seconds,
    Shortage,
    Start,
    StartEstimate,
    Wait,
)

if not cython.compiled:
    from refold.core.changes import Changes
    from refold.core.state import State
    from refold.placement import FreeResources, Trial


class View:
    """What a policy may know at `now`. It is not a copy: it always shows the current state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._trial = Trial(state.free)
        self._empty_cluster: FreeResources | None = None
        self.changes = state.changes
        """The changes since the last call of the policy."""
        self.cluster: Cluster = state.cluster
        self.waiting: Mapping[str, Job] = MappingProxyType(state.queue.waiting)
        """Jobs without a run that a policy may start, in the order in which they were queued."""
        self.active: Mapping[str, Job] = MappingProxyType(state.running.jobs)
        """Jobs with a run."""
        self.runs: Mapping[str, Run] = MappingProxyType(state.running.runs)
        """The current run of each active job."""
        self.stopping: Collection[str] = MappingProxyType(state.running.stopping)
        """The active jobs whose runs have been ordered to stop."""
        self.measured_speeds: Mapping[MeasuredShape, float] = MappingProxyType(state.running.measurements.speeds)
        """Speeds that runs have reported, in steps per second, averaged by kind of job, GPUs and plan.

        0: jobs of this kind cannot use the plan.
        """
        self.infeasible: Mapping[str, Job] = MappingProxyType(state.queue.infeasible)
        """Jobs that would not fit even into the empty cluster. Policies can ignore them."""
        self.held: Mapping[str, Job] = MappingProxyType(state.queue.held)
        """Jobs that must not start now: held, in back-off, waiting for dependencies, or over their tenant's limit."""

    @property
    def now(self) -> Seconds:
        """The time of this scheduling round, in seconds on the clock of the journal."""
        return self._state.now

    def with_changes(self, changes: Changes) -> View:
        """Return a view of the same state and trial, with other changes."""
        other = View(self._state)
        other._trial, other.changes = self._trial, changes
        return other

    def trial(self) -> Trial:
        """Return the trial allocation: policies place jobs in it; it is undone after the policy has decided."""
        return self._trial

    def end_trial(self, wanted: Sequence[Start] = ()) -> list[Placement]:
        """Undo the trial, except for placements that it found for `wanted` starts; return these placements."""
        return self._trial.commit(wanted) if self._trial.has_changes else []

    def is_up(self, node: int) -> bool:
        """Whether a node accepts new runs."""
        return self._state.free.is_up(node)

    def is_gpu_up(self, node: int, gpu: int) -> bool:
        """Whether a GPU accepts new runs, if its node does."""
        return self._state.free.is_gpu_up(node, gpu)

    def is_placement_up(self, placement: Placement) -> bool:
        """Whether all nodes and GPUs of a placement accept new runs."""
        return self._state.free.is_placement_up(placement)

    def down_reason(self, node: int, gpu: int | None = None) -> str:
        """Return why a node, or one of its GPUs, is down; '' if it is up or no reason was given."""
        return self._state.availability.down_reasons.get((node, gpu), "")

    def is_drained(self, node: int, gpu: int | None = None) -> bool:
        """Whether a node, or one of its GPUs, is down because it is drained."""
        return (node, gpu) in self._state.availability.drained

    def used_by_others(self, node: int) -> NodeUsed:
        """Return what others than the scheduler use on a node."""
        return self._state.availability.used.get(node, NodeUsed(node))

    @property
    def down_gpus(self) -> dict[tuple[int, int], str]:
        """The GPUs that are down, as (node, GPU), with the reasons, whether or not their nodes are up."""
        return {
            (node, gpu): why for (node, gpu), why in self._state.availability.down_reasons.items() if gpu is not None
        }

    @property
    def down_gpu_count(self) -> int:
        """The number of GPUs that accept no new runs, because they or their nodes are down."""
        nodes = self.cluster.nodes
        on_nodes = sum(nodes[node].gpus for node in self._state.free.down_nodes)
        return on_nodes + sum(node not in self._state.free.down_nodes for node, _ in self._state.free.down_gpus)

    @property
    def free_gpus(self) -> float:
        """Free GPUs, including fractions, on nodes that are up."""
        return self._state.free.gpu_milli / WHOLE

    def free_gpu_milli(self, node: int) -> tuple[Milli, ...]:
        """Return the free capacity of each GPU of a node, in thousandths; 0 if the node or the GPU is down."""
        free = self._state.free.gpu_milli_of(node)
        return free if self.is_up(node) else (0,) * len(free)

    def shortage(self, demand: Demand) -> Shortage:
        """Count the nodes that lack a resource for one instance of a demand, now."""
        return self._state.free.shortage(demand)

    def run_count(self, job_id: str) -> int:
        """Return the number of times that a job has been started."""
        return self._state.running.progress[job_id].runs

    def gpu_seconds(self, job_id: str) -> float:
        """Return the attained service of a job: GPUs held times time, over all its runs up to now."""
        attained = self._state.running.progress[job_id].gpu_seconds
        run = self.runs.get(job_id)
        if run is not None:
            attained += (self.now - run.since) * run.allocation.gpu_milli / WHOLE
        return attained

    def done(self, job_id: str) -> Seconds:
        """Return the work done, in seconds: as last reported, plus the time since then.

        This is an estimate: a run may still be starting up, or be faster or slower than on the requested resources.
        """
        progress = self._state.running.progress[job_id]
        if progress.computing_since is None:
            return progress.done
        return progress.done + (self.now - progress.computing_since)  # what was saved, to the bit, when a run starts

    def reported_done(self, job_id: str) -> Seconds:
        """Return the work done, in seconds, when the current run was started or last reported progress."""
        return self._state.running.progress[job_id].done

    def steps_done(self, job_id: str) -> tuple[int, Seconds]:
        """Return the steps last reported as done, and the time of that report (-inf: never)."""
        progress = self._state.running.progress[job_id]
        return progress.steps, progress.steps_at

    def share_done(self, job: Job) -> float | None:
        """Return the share of its steps that a job has reported as done; None: it reports no steps."""
        steps = self._state.running.progress[job.id].steps
        return min(steps / job.steps, 1.0) if job.steps and steps else None

    def computing_since(self, job_id: str) -> Seconds | None:
        """Return when the current run was started or last reported progress; None if it is not computing."""
        return self._state.running.progress[job_id].computing_since

    def is_preemptible(self, job_id: str) -> bool:
        """Whether the run of a job may be stopped or reshaped now: it consents, and not too often."""
        return self._state.running.changeable_at(job_id) <= self.now

    def next_preemptible_at(self) -> Seconds:
        """Return when the next run becomes preemptible that now is not; infinity: none does."""
        return self._state.running.next_changeable_at(self.now)

    def loss(self, job_id: str) -> float | None:
        """Return the training loss that a job last reported; None: it has reported none."""
        return self._state.running.progress[job_id].loss

    def samples_per_second(self, job_id: str) -> float | None:
        """Return the speed that the current run last reported; None: it has reported none."""
        return self._state.running.progress[job_id].samples_per_second

    def change_seconds(self, job: Job, way: ChangeWay) -> Seconds | None:
        """Return what a change in this way has cost last: of a job, else of one with its workload, else of any.

        None: unknown.
        """
        running = self._state.running
        own = running.progress[job.id].change_costs.get(way)
        if own is not None:
            return own
        costs = running.measurements.change_costs
        return costs.get((job.workload, way), costs.get(("", way)))

    @property
    def knows_change_costs(self) -> bool:
        """Whether the cost of any change was measured."""
        return bool(self._state.running.measurements.change_costs)

    def changed_at(self, job_id: str) -> Seconds:
        """Return when the policy last stopped or reshaped a run of a job; minus infinity: never."""
        return self._state.running.progress[job_id].changed_at

    def measured_seconds(self, job_id: str) -> Seconds:
        """Return the time between the first and the last speed that the current run has reported; 0: it has not."""
        progress = self._state.running.progress[job_id]
        return progress.steps_at - progress.first_report[1] if progress.first_report is not None else 0.0

    def is_profiling(self, job_id: str) -> bool:
        """Return whether the run of a job, or the next one if it is being reshaped, serves to measure its speed."""
        return self._state.running.is_profiling(job_id, self.now)

    def profiling_seconds(self, workload: str, gpu_type: str) -> Seconds:
        """Return the time of all profiling runs of a model type on a GPU type, including what is left of them."""
        return self._state.running.measurements.profiling_seconds.get((workload, gpu_type), 0.0)

    @property
    def profiling_gpu_seconds(self) -> float:
        """The GPU-seconds of all profiling runs, including what is left of them."""
        return self._state.running.measurements.profiling_gpu_seconds

    @property
    def used_gpu_seconds(self) -> float:
        """The GPU-seconds of all runs up to now."""
        current = sum((self.now - run.since) * run.allocation.gpu_milli for run in self.runs.values())
        return self._state.running.measurements.used_gpu_seconds + current / WHOLE

    def decayed_usage(self, half_life: Seconds) -> dict[TenantUser, float]:
        """Return the GPU-seconds of all runs up to now by user; those used one half-life ago count half."""
        used = self._state.running.usage.decayed(self.now, half_life)
        for job_id, run in self.runs.items():
            job = self.active[job_id]
            account = TenantUser(job.tenant, job.user)
            current = decayed_gpu_seconds(run.allocation.gpu_milli / WHOLE, self.now - run.since, half_life)
            used[account] = used.get(account, 0.0) + current
        return used

    def held_by(self, job_id: str) -> Placement:
        """Return the resources that a run holds now; while it is reshaped, the old and the new allocation."""
        return self._state.running.held_by(job_id)

    def next_allocation(self, job_id: str) -> Allocation | None:
        """Return the next allocation of a job that is being reshaped; None: it is not."""
        return self._state.running.next_allocation(job_id)

    def reason(self, job_id: str, ahead: int | None = None) -> Wait:
        """Return why a job waits: the last reason that the policy gave, with current counts.

        A shortage of power is returned with the counts of the policy. `ahead` is the number of jobs ahead of it, if
        the caller has counted them already.
        """
        if job_id in self.infeasible:
            return Wait(job_id, Reason.INFEASIBLE, shortage=self._empty().shortage(self.infeasible[job_id].demand))
        if job_id in self.held:
            return Wait(job_id, self._state.queue.hold_reasons[job_id])
        demand = self.waiting[job_id].demand
        last_wait = self._state.queue.reasons.get(job_id)
        reason = last_wait.reason if last_wait is not None else Reason.NOT_CONSIDERED
        if last_wait is not None and last_wait.shortage is not None and last_wait.shortage.at_power_limit:
            return last_wait  # only the policy knows the power limits
        if last_wait is not None and reason is Reason.FAIR_SHARE:
            return last_wait
        if reason is Reason.RESOURCES:
            return Wait(job_id, reason, shortage=self.shortage(demand))
        return Wait(job_id, reason, ahead=self.jobs_ahead(job_id) if ahead is None else ahead)

    def _empty(self) -> FreeResources:
        """Return the resources of the empty cluster."""
        if self._empty_cluster is None:
            self._empty_cluster = FreeResources(self.cluster)
        return self._empty_cluster

    def hold_reason(self, job_id: str) -> Reason | None:
        """Return why a job is held; None: it is not."""
        return self._state.queue.hold_reasons.get(job_id)

    def start_estimate(self, job_id: str) -> StartEstimate | None:
        """Return the last start estimate of the policy for a waiting job; None: it has given none."""
        return self._state.queue.start_estimates.get(job_id)

    def jobs_ahead(self, job_id: str) -> int:
        """Return the number of jobs ahead in the queue. Counts from the end, since most queries are for new jobs."""
        waiting = self._state.queue.waiting
        return len(waiting) - 1 - next(behind for behind, other in enumerate(reversed(waiting)) if other == job_id)
