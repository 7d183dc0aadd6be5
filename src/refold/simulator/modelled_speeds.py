"""Charging what the performance model says: each job as fast as its plan is, on the machines that it got."""

from __future__ import annotations

from refold.errors import BadInput
from refold.model import Allocation, Job, Seconds
from refold.plans import ModelledSpeedSource, Speeds
from refold.simulator.costs import SpeedModel


class ModelledSpeeds:
    """The truth of an experiment: a performance model. Jobs that it does not know are charged by another charge.

    How long a job takes on what it asked for is as recorded; only where nobody recorded it, the model says that too.
    """

    def __init__(self, speeds: Speeds, otherwise: SpeedModel) -> None:
        self._speeds, self._otherwise = speeds, otherwise
        self._pace = ModelledSpeedSource(speeds)

    def work(self, job: Job) -> Seconds:
        """As recorded; else all steps, as the job asked to run them."""
        if job.work is not None or not self._speeds.knows(job):
            return self._otherwise.work(job)
        if job.steps is None:
            raise BadInput(f"job {job.id!r} has neither a duration nor a number of steps, so it cannot be simulated")
        return job.steps / self._speeds.asked(job).steps_per_second

    def speed(self, job: Job, allocation: Allocation) -> float:
        """A step as asked for, against a step here."""
        charged = self._pace if self._speeds.knows(job) else self._otherwise
        return charged.speed(job, allocation)
