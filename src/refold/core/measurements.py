"""What runs have been measured to do: speeds by kind of job, resources and plan, and the cost of changing a run."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.events import ChangeMeasured, ChangeWay, SpeedMeasured
from refold.model import Job, MeasuredShape, Seconds

MIN_WEIGHT = 0.2
"""Weight of a new report in the average, once there are several: speeds change with other jobs on the machine."""


class Measurements:
    """Measured speeds in steps per second, and the last measured cost of a change by workload and way."""

    def __init__(self) -> None:
        self.speeds: dict[MeasuredShape, float] = {}
        self.change_costs: dict[tuple[str, ChangeWay], Seconds] = {}
        self._counts: dict[MeasuredShape, int] = {}

    def note_speed(self, shape: MeasuredShape, steps_per_second: float) -> None:
        """Add a report to the average speed of a shape."""
        count = self._counts[shape] = self._counts.get(shape, 0) + 1
        before = self.speeds.get(shape, steps_per_second)
        self.speeds[shape] = before + (steps_per_second - before) * max(1 / count, MIN_WEIGHT)

    def restore(self, event: SpeedMeasured) -> None:
        """Restore a speed that was measured before the journal began."""
        shape = MeasuredShape(event.workload, event.batch, event.sequence, event.gpu_type, event.layout, event.plan)
        self.speeds[shape] = event.steps_per_second
        self._counts[shape] = event.reports

    def note_change(self, job: Job, event: ChangeMeasured) -> None:
        """Note what a change has cost."""
        if job.workload:
            self.change_costs[job.workload, event.way] = event.seconds

    def speed_events(self) -> Iterator[SpeedMeasured]:
        """Return the speeds as events."""
        for shape, speed in self.speeds.items():
            yield SpeedMeasured(*shape, steps_per_second=speed, reports=self._counts[shape])
