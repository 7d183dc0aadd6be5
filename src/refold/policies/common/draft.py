"""Who holds what, on paper: policies that think in whole targets move jobs about here, and then say what to do.

What is freed by stopping a run is not free before the run has stopped. So a decision says as much of the target as can
be done now, and the rest is said when it can be, unless something else happens in between: then the policy thinks
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from refold.core import View
from refold.model import WHOLE, Allocation, Decision, Demand, Plan, Reshape, Start, Stop, beyond
from refold.packing import Free, Placer


class Draft:
    """A copy of what is held and free, to be changed at will."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.free: Free = view.trial().free.copy()
        self.changed: dict[str, str] = {}
        """Who holds something else than now, and why."""
        self._holds: dict[str, Allocation | None] = {}
        self._down = {node for node in range(len(view.cluster.nodes)) if not view.is_up(node)}
        for run in view.runs.values():
            if run.stopping:
                self.free.give_back(view.held_by(run.job))
                following = view.next_allocation(run.job)
                if following is not None and self.free.take(following.placement) is not None:
                    following = None
                self._holds[run.job] = following

    def holds(self, job_id: str) -> Allocation | None:
        """What a job holds on this draft."""
        if job_id in self._holds:
            return self._holds[job_id]
        run = self._view.runs.get(job_id)
        return run.allocation if run is not None else None

    def holders(self) -> Iterator[tuple[str, Allocation]]:
        """Everybody who holds something."""
        for job_id in {**self._view.runs, **self._holds}:
            held = self.holds(job_id)
            if held is not None:
                yield job_id, held

    def may_change(self, job_id: str) -> bool:
        """Whether a job may be stopped or get another shape: it does not run yet, or may be preempted where it is."""
        run = self._view.runs.get(job_id)
        if run is None:
            return True
        if run.stopping or not self._view.active[job_id].preemptible:
            return False
        return not self._down or self._down.isdisjoint(run.allocation.nodes)

    def release(self, job_id: str, why: str = "") -> None:
        """A job gives back all it holds."""
        held = self.holds(job_id)
        if held is not None:
            self.free.give_back(held.placement)
            self._holds[job_id] = None
            self.changed[job_id] = why

    def place(self, job_id: str, placer: Placer, demand: Demand, plan: Plan | None, why: str = "") -> bool:
        """Find a place for a job that holds nothing."""
        if demand.gpu_milli == WHOLE and demand.instances * demand.gpus > self.free.whole_gpus:
            return False
        placement = placer.place(self.free, demand)
        if placement is None:
            return False
        self._holds[job_id] = Allocation(placement, plan)
        self.changed[job_id] = why
        return True

    def move(self, job_id: str, placer: Placer, demand: Demand, plan: Plan | None, why: str = "") -> bool:
        """Find another place for a job, on what is free and what it holds; without one it stays as it is."""
        held, before = self.holds(job_id), self.changed.get(job_id)
        self.release(job_id)
        if self.place(job_id, placer, demand, plan, why):
            return True
        if held is not None:
            self.free.take_back(held.placement)
            self._holds[job_id] = held
        if before is None:
            self.changed.pop(job_id, None)
        else:
            self.changed[job_id] = before
        return False

    def put(self, job_id: str, allocation: Allocation, why: str = "") -> bool:
        """A job that holds nothing gets exactly this, if it is free."""
        if self.free.take(allocation.placement) is not None:
            return False
        self._holds[job_id] = allocation
        run = self._view.runs.get(job_id)
        if run is not None and not run.stopping and run.allocation == allocation:
            self.changed.pop(job_id, None)  # as it is now
        else:
            self.changed[job_id] = why
        return True

    def snapshot(self) -> tuple[Free, dict[str, Allocation | None], dict[str, str]]:
        """How it stands, to come back to."""
        return self.free.copy(), dict(self._holds), dict(self.changed)

    def restore(self, snapshot: tuple[Free, dict[str, Allocation | None], dict[str, str]]) -> None:
        """As it stood then."""
        self.free, self._holds, self.changed = snapshot[0].copy(), dict(snapshot[1]), dict(snapshot[2])

    def target(self) -> dict[str, tuple[Allocation | None, str]]:
        """What should become of each job that was moved, and why."""
        return {job_id: (self.holds(job_id), why) for job_id, why in self.changed.items()}


def something_happened(view: View) -> bool:
    """Whether anything has happened since the last look but what the policy itself had ordered."""
    changes = view.changes
    if changes.submitted or changes.gone or changes.nodes:
        return True
    known = view.runs.keys() | view.waiting.keys() if changes.ended else ()
    return any(not run.stopping or run.job not in known for run in changes.ended)


def jobs_over(view: View) -> list[str]:
    """The jobs that have ended or were cancelled since the last look: nobody will ask for them again."""
    changes = view.changes
    over = [run.job for run in changes.ended if run.job not in view.runs and run.job not in view.waiting]
    return [*over, *changes.gone]


class Transition:
    """Leads to a target in as many steps as stopping takes."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[Allocation | None, str]] = {}

    @property
    def awaited(self) -> Mapping[str, tuple[Allocation | None, str]]:
        """What is still to be done."""
        return self._left

    def goes_on(self, view: View) -> bool:
        """Whether there is more to do towards the target, and nothing happened but what was to be expected."""
        return bool(self._left) and not something_happened(view)

    def towards(self, view: View, target: Mapping[str, tuple[Allocation | None, str]]) -> Decision:
        """What of a target can be done now; the rest is remembered."""
        self._left = {}
        starts: list[Start] = []
        stops: list[Stop] = []
        reshapes: list[Reshape] = []
        trial = view.trial()
        for job_id, (wanted, why) in target.items():
            run = view.runs.get(job_id)
            if run is None:
                if wanted is None or job_id not in view.waiting:
                    continue
                if trial.take(wanted.placement):
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
            elif trial.take(beyond(wanted.placement, run.allocation.placement)):
                reshapes.append(Reshape(job_id, wanted, why))
                continue
            self._left[job_id] = (wanted, why)
        if not (starts or stops or reshapes):
            stops = self._break_standstill(view)
        return Decision(starts=tuple(starts), stops=tuple(stops), reshapes=tuple(reshapes))

    def _break_standstill(self, view: View) -> list[Stop]:
        """Where runs wait for each other's places and nobody is on the way to give one up, one of them has to."""
        runs = [view.runs[job_id] for job_id in self._left if job_id in view.runs]
        if not runs or any(run.stopping for run in view.runs.values()):
            return []
        return [Stop(runs[0].job, self._left[runs[0].job][1])]

    def go_on(self, view: View) -> Decision:
        """The next step towards the same target."""
        return self.towards(view, self._left)
