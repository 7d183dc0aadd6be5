"""The live side: the same scheduler, driven by a clock and by what really happens."""

from refold.live.clock import Clock, WallClock
from refold.live.driver import Driver
from refold.live.jobs_file import read_jobs
from refold.live.outcomes import Outcome, Outcomes

__all__ = ["Clock", "Driver", "Outcome", "Outcomes", "WallClock", "read_jobs"]
