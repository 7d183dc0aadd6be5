"""What a policy believes of jobs: how fast they are where they run, and how much they have left.

Speeds come from the performance model. What is left comes from what jobs say: how many steps they want, and how many
they have done. Between two reports a run is believed to go on at the modelled speed. Of a job that does not say, it is
believed that it has as long before it as it has behind it, as run times of jobs are spread (and as in Tiresias).
"""

from __future__ import annotations

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Allocation, Job, Run, Seconds
from refold.plans import Knowledge, Speeds

AT_LEAST_STEPS = 0.5
"""No job that still runs is believed to have less left: its last step."""

AT_LEAST_SECONDS: Seconds = 60.0
"""Nor is one that says nothing believed to be shorter than this."""


class Outlook:
    """Beliefs, on one cluster."""

    def __init__(self, view: View, knowledge: Knowledge, restart_seconds: Seconds, *, trust_steps: bool = True) -> None:
        """`restart_seconds`: what a change of a run costs. `trust_steps`: what jobs say they want is believed."""
        if restart_seconds < 0:
            raise BadValue(f"a restart takes seconds ≥ 0, not {restart_seconds}")
        self.speeds = Speeds(view.cluster, knowledge)
        self.restart_seconds = restart_seconds
        self._trust_steps = trust_steps
        self._last: dict[str, tuple[Allocation, float]] = {}
        """Where each job was when its speed was last asked for, and its speed there."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Steps per second there; of a job that is not known, 1: its work is counted in seconds."""
        last = self._last.get(job.id)
        if last is None or last[0] is not allocation:
            last = self._last[job.id] = allocation, self._speed(job, allocation)
        return last[1]

    def forget(self, job_id: str) -> None:
        """A job has ended: nobody will ask for it again."""
        self._last.pop(job_id, None)

    def _speed(self, job: Job, allocation: Allocation) -> float:
        if not self.speeds.knows(job):
            return 1.0
        gpu_type = self.speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or self.speeds.own_plan(job)
        cpus = allocation.cpu_milli / WHOLE
        return self.speeds.with_plan(job, gpu_type, allocation.gpus_on_node, cpus, plan).steps_per_second

    def left(self, view: View, job: Job) -> float:
        """Steps that are left; of a job that is not known, seconds."""
        if not self.speeds.knows(job):
            return max(view.done(job.id), AT_LEAST_SECONDS)
        done = self._steps_done(view, job)
        if job.steps is not None and self._trust_steps:
            return max(job.steps - done, AT_LEAST_STEPS)
        return max(done, AT_LEAST_SECONDS * self.speeds.asked(job).steps_per_second)

    def _steps_done(self, view: View, job: Job) -> float:
        """As the job has said, and as it is believed to have gone on since; of one that counts none, by its work."""
        if job.steps is None:
            return view.done(job.id) * self.speeds.asked(job).steps_per_second
        run = view.runs.get(job.id)
        steps, said = view.steps_done(job.id)
        if run is None or run.stopping:
            return float(steps)
        computing = max(0.0, view.now - max(said, self._computing_since(view, run)))
        return steps + computing * self.speed(job, run.allocation)

    def starting_up(self, view: View, run: Run) -> Seconds:
        """How long a run will still be starting up."""
        return max(0.0, self._computing_since(view, run) - view.now)

    def _computing_since(self, view: View, run: Run) -> Seconds:
        since = view.computing_since(run.job)
        if since is None:
            return view.now
        restarting = run.number > 1 and since == run.since  # it has not said yet that it computes
        return since + self.restart_seconds if restarting else since
