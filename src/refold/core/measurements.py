"""What was measured: speeds by kind of job, resources and plan, costs of changing a run, and time of profiling."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.events import ChangeMeasured, GpuTimeUsed, ModelProfiled, SpeedMeasured
from refold.model import ChangeWay, Job, MeasuredShape, Seconds

MIN_WEIGHT = 0.2
"""Weight of a new report in the average, once there are several: speeds change with other jobs on the machine."""


class Measurements:
    """Measured speeds in steps per second (0: the plan cannot be used), costs of changes, and time of profiling."""

    def __init__(self) -> None:
        self.speeds: dict[MeasuredShape, float] = {}
        self.change_costs: dict[tuple[str, ChangeWay], Seconds] = {}
        """The last cost of a change by workload and way; for workload '': of any job."""
        self.used_gpu_seconds = 0.0
        """GPU-seconds of all runs that have ended."""
        self.profiling_gpu_seconds = 0.0
        self.profiling_seconds: dict[tuple[str, str], Seconds] = {}
        """Seconds of profiling by workload and GPU type. A profiling run counts in full from its start on."""
        self._counts: dict[MeasuredShape, int] = {}

    def note_speed(self, shape: MeasuredShape, steps_per_second: float) -> None:
        """Add a report to the average speed of a shape."""
        count = self._counts[shape] = self._counts.get(shape, 0) + 1
        before = self.speeds.get(shape, steps_per_second)
        self.speeds[shape] = before + (steps_per_second - before) * max(1 / count, MIN_WEIGHT)

    def note_unusable(self, shape: MeasuredShape) -> None:
        """Note that a kind of job cannot use a plan."""
        self.speeds[shape] = 0.0
        self._counts[shape] = 0

    def restore(self, event: SpeedMeasured) -> None:
        """Restore a speed that was measured before the journal began."""
        kind = (event.workload, event.batch, event.sequence)
        shape = MeasuredShape(*kind, event.gpu_type, event.layout, event.plan, event.spread)
        self.speeds[shape] = event.steps_per_second
        self._counts[shape] = event.reports

    def note_change(self, job: Job, event: ChangeMeasured) -> None:
        for workload in {job.workload, ""}:
            self.change_costs[workload, event.way] = event.seconds

    def charge_profiling(self, workload: str, gpu_type: str, gpus: float, seconds: Seconds) -> None:
        """Charge a profiling run when it starts, or refund (negative seconds) what is left when it ends."""
        key = (workload, gpu_type)
        self.profiling_seconds[key] = self.profiling_seconds.get(key, 0.0) + seconds
        self.profiling_gpu_seconds += seconds * gpus

    def time_events(self) -> Iterator[GpuTimeUsed | ModelProfiled]:
        if self.used_gpu_seconds or self.profiling_gpu_seconds:
            yield GpuTimeUsed(self.used_gpu_seconds, self.profiling_gpu_seconds)
        for (workload, gpu_type), seconds in self.profiling_seconds.items():
            yield ModelProfiled(workload, gpu_type, seconds)

    def speed_events(self) -> Iterator[SpeedMeasured]:
        for shape, speed in self.speeds.items():
            yield SpeedMeasured(*shape[:-1], steps_per_second=speed, reports=self._counts[shape], spread=shape.spread)
