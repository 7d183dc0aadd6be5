"""What preemption costs and brings: how long jobs would have waited if all, some or none of them could be preempted."""

from __future__ import annotations

import msgspec

from refold.model.consent import Preemption
from refold.model.units import Seconds, format_count, format_duration


class PreemptionOutcome(msgspec.Struct, frozen=True):
    """How long jobs would have waited under a rule. `preemptible`: the number of jobs that could be preempted.

    `overhead_gpu_hours`: held by runs while they were stopping or restarting, or lost.
    """

    rule: Preemption
    preemptible: int
    mean_wait: Seconds | None
    longest_wait: Seconds | None
    preemptions: int
    overhead_gpu_hours: float

    @property
    def waits(self) -> str:
        """The mean and the longest wait."""
        mean, longest = (
            "unknown" if wait is None else format_duration(wait) for wait in (self.mean_wait, self.longest_wait)
        )
        return f"{mean} and {longest}"


class PreemptionOutlook(msgspec.Struct, frozen=True):
    """The same jobs of a history, simulated with one policy under each rule: `always` (all jobs), `consent`, `never`.

    Preempted jobs continue where they were stopped: what jobs without checkpoints would lose is not counted.
    """

    history: str
    policy: str
    jobs: int
    always: PreemptionOutcome
    consent: PreemptionOutcome
    never: PreemptionOutcome

    @property
    def rows(self) -> list[tuple[str, PreemptionOutcome]]:
        """Which jobs may be preempted in words, and the outcome."""
        return [
            (f"all {format_count(self.jobs, 'job')}", self.always),
            (f"those that consent ({self.consent.preemptible:,})", self.consent),
            ("none", self.never),
        ]

    @property
    def sentence(self) -> str:
        """The mean and longest waits in words."""
        some = f"those that consent ({self.consent.preemptible:,} of {self.jobs:,})"
        others = (
            f"if {some}, {self.consent.waits}; if none, {self.never.waits}"
            if self.consent.preemptible
            else f"if none, {self.never.waits} (none of these jobs consents)"
        )
        return f"If all jobs could be preempted, mean and longest wait would be {self.always.waits}; {others}."
