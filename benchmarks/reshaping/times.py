"""How long does a job not train when its plan changes: live, warm, cold, and by relaunching torchrun?"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.reshaping.job import TrainingJob, Way, plans
from refold.model import Plan, Seconds

WAYS: tuple[Way, ...] = ("live", "warm", "cold", "torchrun")
PLANS = plans("dp2 zero3", "tp2", "dp2", "pp2 accumulate 2")
"""Every change is from one of these plans to the next, and from the last to the first."""

STEPS = 3
"""Steps with each plan."""

MODEL = ("--layers", 16, "--hidden", 512, "--batch", 2)
"""51 million parameters, 0.6 GB of state."""


class Pause(NamedTuple):
    """The time without training of one change."""

    way: Way
    before: str
    after: str
    stopped: Seconds
    """From the end of the last step with the old plan to the beginning of the first with the new one."""
    first_step: Seconds
    """How much longer the first step took than the others."""
    phases: dict[str, Seconds]

    @property
    def seconds(self) -> Seconds:
        """The time without training."""
        return self.stopped + max(self.first_step, 0.0)


def measure(folder: Path, way: Way, rounds: int) -> list[Pause]:
    """Change the plan of a job again and again, in one way."""
    job = TrainingJob(folder / way, "--steps", 10**6, *MODEL, torchrun=way == "torchrun")
    pauses: list[Pause] = []
    try:
        job.start(PLANS[0])
        job.wait_for_plan(PLANS[0], STEPS)
        sequence = [plan for _ in range(rounds) for plan in (*PLANS[1:], PLANS[0])]
        for plan in sequence:
            phases = job.change(plan, way)
            job.wait_for_plan(plan, STEPS)
            pauses.append(_last_pause(job, way, plan, phases))
    finally:
        job.kill()
    return pauses


def _last_pause(job: TrainingJob, way: Way, plan: Plan, phases: dict[str, Seconds]) -> Pause:
    steps = job.steps()
    first = max(number for number, step in enumerate(steps) if step.plan != str(plan)) + 1
    usual = median(step.ended - step.began for step in steps[first + 1 :])
    before, after = steps[first - 1], steps[first]
    return Pause(way, before.plan, after.plan, after.began - before.ended, after.ended - after.began - usual, phases)
