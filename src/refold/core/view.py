"""A read-only window on the state, for policies and for people who ask why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from refold.core.changes import Changes
from refold.core.state import State
from refold.model import (
    WHOLE,
    Allocation,
    Cluster,
    Demand,
    Job,
    Placement,
    Reason,
    Run,
    Seconds,
    Shortage,
    Start,
    StartEstimate,
    Wait,
)
from refold.packing import Free, Trial


class View:
    """What a policy may know at `now`. Not a copy: it is always the present."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._trial = Trial(state.free)
        self.cluster: Cluster = state.cluster
        self.waiting: Mapping[str, Job] = MappingProxyType(state.waiting)
        """Jobs without a run, in the order in which they began to wait."""
        self.active: Mapping[str, Job] = MappingProxyType(state.active)
        """Jobs with a run."""
        self.runs: Mapping[str, Run] = MappingProxyType(state.runs)
        """The run of each active job."""
        self.infeasible: Mapping[str, Job] = MappingProxyType(state.infeasible)
        """Jobs that the whole cluster, empty, has no room for. No policy has to think of them."""
        self.held: Mapping[str, Job] = MappingProxyType(state.held)
        """Jobs that nobody is to look at now: held, waiting for others to finish, or beyond their tenant's limit."""

    @property
    def now(self) -> Seconds:
        """The time of this look, in seconds since the start of the journal."""
        return self._state.now

    @property
    def changes(self) -> Changes:
        """What has happened since the policy last looked."""
        return self._state.changes

    def trial(self) -> Trial:
        """Try things out on what is free. One per look; undone when the policy has decided."""
        return self._trial

    def end_trial(self, wanted: Sequence[Start] = ()) -> list[Placement]:
        """Undo what was tried, but for the wanted starts that were found by trying; returns what is kept of these."""
        return self._trial.keep(wanted) if self._trial.in_use else []

    def is_up(self, node: int) -> bool:
        """Whether a node takes work."""
        return self._state.free.is_up(node)

    @property
    def free_gpus(self) -> float:
        """Free GPUs on nodes that are up, fractions counted as such."""
        return self._state.free.gpu_milli / WHOLE

    def shortage(self, demand: Demand) -> Shortage:
        """How many nodes lack what for one instance of a demand, now."""
        return self._state.free.shortage(demand)

    def runs_so_far(self, job_id: str) -> int:
        """How often a job has been started."""
        return self._state.progress[job_id].runs

    def gpu_seconds(self, job_id: str) -> float:
        """The service a job has attained: GPUs held times time, over all its runs up to now."""
        attained = self._state.progress[job_id].gpu_seconds
        run = self.runs.get(job_id)
        if run is not None:
            attained += (self.now - run.since) * run.allocation.gpu_milli / WHOLE
        return attained

    def done(self, job_id: str) -> Seconds:
        """Seconds of work done, as last reported plus the time since.

        That time is a belief: a run may still be starting up, or be faster or slower than what was asked for.
        """
        progress = self._state.progress[job_id]
        if progress.computing_since is None:
            return progress.done
        return progress.done + self.now - progress.computing_since

    def steps_done(self, job_id: str) -> tuple[int, Seconds]:
        """Steps that a job has said to have done, and when it said so (long ago: never)."""
        progress = self._state.progress[job_id]
        return progress.steps, progress.steps_at

    def share_done(self, job: Job) -> float | None:
        """Which part of its steps a job has said to have done; None: it does not say."""
        steps = self._state.progress[job.id].steps
        return min(steps / job.steps, 1.0) if job.steps and steps else None

    def computing_since(self, job_id: str) -> Seconds | None:
        """Since when a run has been computing, or has last reported; None while it does not."""
        return self._state.progress[job_id].computing_since

    def held_by(self, job_id: str) -> Placement:
        """What a run holds now: of one that is being reshaped, its old shape and its new one."""
        return self._state.held_by(job_id)

    def next_allocation(self, job_id: str) -> Allocation | None:
        """What a run that is stopping to be reshaped will go on with; None: nothing, or it is not stopping."""
        return self._state.next_allocation(job_id)

    def reason(self, job_id: str, ahead: int | None = None) -> Wait:
        """Why a waiting job waits: what the policy last said of it, with counts as they are now (of power: as said).

        `ahead`: how many wait before it, if somebody has counted them already.
        """
        if job_id in self.infeasible:
            return Wait(job_id, Reason.INFEASIBLE, shortage=self._empty.shortage(self.infeasible[job_id].demand))
        if job_id in self.held:
            return Wait(job_id, self._state.held_for[job_id])
        demand = self.waiting[job_id].demand
        said = self._state.reasons.get(job_id)
        reason = said.reason if said is not None else Reason.NOT_LOOKED_AT
        if said is not None and said.shortage is not None and said.shortage.at_power_limit:
            return said  # of power the policy knows more than the view
        if reason is Reason.RESOURCES:
            return Wait(job_id, reason, shortage=self.shortage(demand))
        return Wait(job_id, reason, ahead=self.jobs_before(job_id) if ahead is None else ahead)

    @cached_property
    def _empty(self) -> Free:
        """The whole cluster, empty."""
        return Free(self.cluster)

    def held_for(self, job_id: str) -> Reason | None:
        """Why a job is held; None: it is not."""
        return self._state.held_for.get(job_id)

    def start_estimate(self, job_id: str) -> StartEstimate | None:
        """When a waiting job may start, as the policy has last said; None: it has not."""
        return self._state.start_estimates.get(job_id)

    def jobs_before(self, job_id: str) -> int:
        """How many wait before a job; counted from the end, since it is mostly asked of who has just come."""
        waiting = self._state.waiting
        return len(waiting) - 1 - next(behind for behind, other in enumerate(reversed(waiting)) if other == job_id)
