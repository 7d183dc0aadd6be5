"""Drafts of allocations: policies that compute a whole target state edit a draft and derive a decision from it.

Resources of a stopped run are not free until the run has stopped. A decision therefore contains the part of the target
that is possible now. The rest follows in later decisions, unless something else happens in between: then the policy
computes a new target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from refold.core import View
from refold.model import WHOLE, Allocation, Decision, Demand, Placement, Plan, Reshape, Start, Stop, additional_shares
from refold.placement import FreeResources, Placer, Trial
from refold.policies.common.options import Option


class DraftSnapshot(NamedTuple):
    """A state of a draft: allocations that differ from those of the current runs, and the reasons for changes."""

    allocations: dict[str, Allocation | None]
    changed: dict[str, str]


class Draft:
    """An editable copy of all allocations and free resources, as they will be when stopping runs have stopped."""

    def __init__(self, view: View, placer: Placer | None = None, last: Draft | None = None) -> None:
        """Copy the allocations of a view.

        `placer`: if it keeps racks within their power limits, so does `assign`. `last`: a draft that is not needed any
        more; of a large cluster, new arrays take longer than the copy.
        """
        self._view = view
        self._placer = placer
        self.free: FreeResources = view.trial().free.copy(last.free if last is not None else None)
        self.changed: dict[str, str] = {}
        """Job -> reason, for each job whose allocation differs from the current one."""
        self._allocations: dict[str, Allocation | None] = {}
        """Allocations that differ from those of the current runs."""
        self._closed: frozenset[int] = frozenset()
        for job_id in view.stopping:
            self.free.release(view.held_by(job_id))
            following = view.next_allocation(job_id)
            if following is not None and self.free.take(following.placement) is not None:
                following = None
            self._allocations[job_id] = following

    def allocation_of(self, job_id: str) -> Allocation | None:
        """Return the allocation of a job in this draft; None if it has none."""
        if job_id in self._allocations:
            return self._allocations[job_id]
        run = self._view.runs.get(job_id)
        return run.allocation if run is not None else None

    def allocations(self) -> Iterator[tuple[str, Allocation]]:
        """Yield all jobs that have an allocation, with the allocation."""
        runs, changed = self._view.runs, self._allocations
        for job_id, run in runs.items():
            held = changed.get(job_id, run.allocation)
            if held is not None:
                yield job_id, held
        for job_id, held in changed.items():
            if held is not None and job_id not in runs:
                yield job_id, held

    def starting(self) -> set[str]:
        """Return the jobs without a run that have an allocation."""
        runs = self._view.runs
        return {job_id for job_id, held in self._allocations.items() if held is not None and job_id not in runs}

    def without_allocation(self) -> list[str]:
        """Return the active jobs that have lost their allocation in this draft."""
        return [job_id for job_id, held in self._allocations.items() if held is None and job_id in self._view.runs]

    def may_change(self, job_id: str) -> bool:
        """Return whether a job may be changed: it is not running, or preemptible on nodes and GPUs that are up."""
        run = self._view.runs.get(job_id)
        if run is None:
            return True
        if run.stopping or not self._view.is_preemptible(job_id):
            return False
        return self._view.is_placement_up(run.allocation.placement)

    def release(self, job_id: str, why: str = "") -> None:
        """Release the allocation of a job, if it has one."""
        held = self.allocation_of(job_id)
        if held is not None:
            self.free.release(held.placement)
            self._allocations[job_id] = None
            self.changed[job_id] = why

    def withdraw(self, job_id: str) -> None:
        """Undo that a waiting job was placed."""
        held = self._allocations.pop(job_id)
        if held is not None:
            self.free.release(held.placement)
        del self.changed[job_id]

    def place(self, job_id: str, placer: Placer, demand: Demand, plan: Plan | None, why: str = "") -> bool:
        """Place a job that has no allocation; return whether it fits."""
        if demand.gpu_milli == WHOLE and demand.instances * demand.gpus > self.free.whole_gpus:
            return False
        placement = placer.place(self.free, demand)
        if placement is None:
            return False
        self._allocations[job_id] = Allocation(placement, plan)
        self.changed[job_id] = why
        return True

    def place_first(self, job_id: str, placer: Placer, options: Iterable[Option]) -> Option | None:
        """Place a job that has no allocation by the first option that fits; return that, None if none fits."""
        return next((option for option in options if self.place(job_id, placer, option.demand, option.plan)), None)

    def move(self, job_id: str, placer: Placer, demand: Demand, plan: Plan | None, why: str = "") -> bool:
        """Place a job anew on what is free and what it holds; return whether it fits. If not, nothing changes."""
        held, before = self.allocation_of(job_id), self.changed.get(job_id)
        self.release(job_id)
        if self.place(job_id, placer, demand, plan, why):
            return True
        if held is not None:
            self.free.retake(held.placement)
            self._allocations[job_id] = held
        if before is None:
            self.changed.pop(job_id, None)
        else:
            self.changed[job_id] = before
        return False

    def assign(self, job_id: str, allocation: Allocation, why: str = "") -> bool:
        """Give exactly this allocation to a job that has none; return whether it was free."""
        if self._placer is not None and not self._placer.allows(self.free, allocation.placement):
            return False
        if not _is_allowed(self._view, job_id, allocation):
            return False
        run = self._view.runs.get(job_id)
        is_present = run is not None and not run.stopping and run.allocation == allocation
        if not self._take(allocation.placement, even_if_closed=is_present):
            return False
        self._allocations[job_id] = allocation
        if is_present:
            self.changed.pop(job_id, None)
        else:
            self.changed[job_id] = why
        return True

    def _take(self, placement: Placement, *, even_if_closed: bool) -> bool:
        closed = self._closed
        if even_if_closed:
            self.open_nodes(closed)
        is_free = self.free.take(placement) is None
        if even_if_closed:
            self.close_nodes(closed)
        return is_free

    def close_nodes(self, nodes: Iterable[int]) -> None:
        """Keep further jobs off these nodes; runs may stay there."""
        added = frozenset(nodes) - self.free.down_nodes
        for node in added:
            self.free.set_node_up(node, up=False)
        self._closed |= added

    def open_nodes(self, nodes: Iterable[int]) -> None:
        """Open nodes that were closed."""
        opened = self._closed.intersection(nodes)
        for node in opened:
            self.free.set_node_up(node, up=True)
        self._closed -= opened

    def snapshot(self) -> DraftSnapshot:
        """Return the state for `restore`."""
        return DraftSnapshot(dict(self._allocations), dict(self.changed))

    def restore(self, snapshot: DraftSnapshot) -> None:
        """Return to the state of a snapshot, as far as allocations changed it.

        Only what differs is released and taken: the cluster may be large.
        """
        now = {job_id: self.allocation_of(job_id) for job_id in {**self._allocations, **snapshot.allocations}}
        self._allocations, self.changed = dict(snapshot.allocations), dict(snapshot.changed)
        differing = [(held, then) for job_id, held in now.items() if held is not (then := self.allocation_of(job_id))]
        for held, _ in differing:
            if held is not None:
                self.free.release(held.placement)
        for _, then in differing:
            if then is not None:
                self.free.retake(then.placement)

    def target(self) -> dict[str, tuple[Allocation | None, str]]:
        """Return the new allocation and the reason for each job that was changed; None: the job is to stop."""
        return {job_id: (self.allocation_of(job_id), why) for job_id, why in self.changed.items()}


def has_external_changes(view: View) -> bool:
    """Return whether anything happened since the last round except the ends of runs that were ordered to stop."""
    changes = view.changes
    if changes.submitted or changes.removed or changes.nodes:
        return True
    return any(not run.stopping or not (run.job in view.runs or run.job in view.waiting) for run in changes.ended)


def ended_jobs(view: View) -> list[str]:
    """Return the jobs that ended or were cancelled since the last round, so that cached data can be dropped."""
    changes = view.changes
    ended = [run.job for run in changes.ended if run.job not in view.runs and run.job not in view.waiting]
    return [*ended, *changes.removed]


def _is_allowed(view: View, job_id: str, wanted: Allocation) -> bool:
    """Return whether a job may be placed on the nodes of an allocation, or runs there."""
    job, run = view.waiting.get(job_id) or view.active.get(job_id), view.runs.get(job_id)
    allowed = job.demand.allowed_nodes if job is not None else None
    if job is not None and not job.demand.is_met_by([share.node for share in wanted.placement], view.cluster):
        return False
    stays_on = run.allocation.nodes if run is not None else frozenset[int]()
    return allowed is None or all(node in allowed or node in stays_on for node in wanted.nodes)


class Transition:
    """The way to a target state, in as many decisions as stopping runs requires."""

    def __init__(self, placer: Placer | None = None) -> None:
        """`placer`: if it keeps racks within their power limits, so does every step."""
        self._placer = placer
        self._pending: dict[str, tuple[Allocation | None, str]] = {}

    @property
    def pending(self) -> Mapping[str, tuple[Allocation | None, str]]:
        """The part of the target that was not possible yet."""
        return self._pending

    def can_continue(self, view: View) -> bool:
        """Return whether part of the target is pending and nothing unexpected has happened."""
        return bool(self._pending) and not has_external_changes(view)

    def is_stalled(self, view: View, decision: Decision) -> bool:
        """Return whether part of the target is pending and, after this decision, no run is stopping for it."""
        if not self._pending or decision.stops or decision.reshapes:
            return False
        return not any(run.stopping for run in view.runs.values())

    def step_towards(self, view: View, target: Mapping[str, tuple[Allocation | None, str]]) -> Decision:
        """Return the part of a target that is possible now; the rest becomes pending."""
        self._pending = {}
        starts: list[Start] = []
        stops: list[Stop] = []
        reshapes: list[Reshape] = []
        trial = view.trial()
        for job_id, (wanted, why) in target.items():
            run = view.runs.get(job_id)
            if wanted is not None and not _is_allowed(view, job_id, wanted):
                continue  # it was limited to other nodes after the target was chosen
            if run is None:
                if wanted is None or job_id not in view.waiting:
                    continue
                if self._take(trial, wanted.placement):
                    starts.append(Start(job_id, wanted))
                    continue
            elif run.stopping:
                if wanted == view.next_allocation(job_id):
                    continue
            elif wanted is None:
                stops.append(Stop(job_id, why))
                continue
            elif wanted == run.allocation:
                continue
            elif self._take(trial, additional_shares(wanted.placement, run.allocation.placement)):
                reshapes.append(Reshape(job_id, wanted, why))
                continue
            self._pending[job_id] = (wanted, why)
        if not (starts or stops or reshapes):
            stops = self._break_deadlock(view)
        return Decision(starts=tuple(starts), stops=tuple(stops), reshapes=tuple(reshapes))

    def _take(self, trial: Trial, placement: Placement) -> bool:
        """Take resources if they are free now, and racks have the power for them besides what is still in use."""
        if self._placer is not None and not self._placer.allows(trial.free, placement):
            return False
        return trial.take(placement)

    def _break_deadlock(self, view: View) -> list[Stop]:
        """Stop one run if runs wait for each other's resources and none is stopping."""
        runs = [view.runs[job_id] for job_id in self._pending if job_id in view.runs]
        if not runs or any(run.stopping for run in view.runs.values()):
            return []
        return [Stop(runs[0].job, self._pending[runs[0].job][1])]

    def next_step(self, view: View) -> Decision:
        """Return the next decision towards the same target."""
        return self.step_towards(view, self._pending)
