"""A speed model from the performance model: the speed of a job is that of its plan on its allocation."""

from __future__ import annotations

from refold.errors import BadInput
from refold.model import Allocation, Job, Seconds
from refold.planning.plans import ModelledSpeedSource, Speeds
from refold.simulator.costs import SpeedModel


class ModelledSpeeds:
    """Speeds from the performance model. For jobs that it cannot model, the `fallback` is used.

    The run time on the requested resources is as recorded, or if it was not recorded, that of the performance model.
    """

    def __init__(self, speeds: Speeds, fallback: SpeedModel) -> None:
        self._speeds, self._fallback = speeds, fallback
        self._source = ModelledSpeedSource(speeds)

    def work(self, job: Job) -> Seconds:
        """Return the recorded run time, or the time of all steps on the requested resources."""
        if job.work is not None or not self._speeds.can_model(job):
            return self._fallback.work(job)
        if job.steps is None:
            raise BadInput(f"job {job.id!r} has neither a duration nor a number of steps, so it cannot be simulated")
        return job.steps / self._speeds.requested_speed(job).steps_per_second

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the step time on the requested resources divided by that on the allocation."""
        source = self._source if self._speeds.can_model(job) else self._fallback
        return source.speed(job, allocation)
