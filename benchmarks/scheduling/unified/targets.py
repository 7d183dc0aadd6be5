"""Measures of a run, and the targets of `refold` for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

Figures = Mapping[str, float]
"""The measures of one run by name."""


class Measure(NamedTuple):
    """A measure of a run. `decimals`: for tables; `more_is_better`: a target is a minimum, not a maximum."""

    title: str
    unit: str
    decimals: int
    more_is_better: bool = False

    @property
    def title_with_unit(self) -> str:
        """Return the heading of a column."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def format(self, value: float) -> str:
        """Return a value without its unit."""
        return f"{value:.{self.decimals}f}"


MEASURES = {
    "mean": Measure("mean completion time", "h", 3),
    "median": Measure("median completion time", "s", 0),
    "p99": Measure("p99 of completion times", "h", 2),
    "makespan": Measure("makespan", "h", 2),
    "delay": Measure("mean delay", "h", 3),
    "wide_delay": Measure("mean delay, ≥ 8 GPUs", "h", 3),
    "delay_p99": Measure("p99 of delays", "h", 2),
    "wide_delay_p99": Measure("p99 of delays, ≥ 8 GPUs", "h", 2),
    "restarts": Measure("most restarts of a job", "", 0),
    "cpu_seconds": Measure("CPU time of the simulation", "s", 1),
}
"""The measures by name. The delay of a job is its completion time less its run time on the requested resources."""

BEFORE: dict[str, dict[str, float]] = {}
"""Means of draws of `refold` as it was before this benchmark existed, by workload and measure."""


class Target(NamedTuple):
    """A target of `refold`: the mean of draws is no worse than every limit that is given.

    `at_most` is a value; `below` are policies, whose mean of draws is multiplied by `factor`; `before`: the value in
    BEFORE.
    """

    measure: str
    at_most: float | None = None
    below: tuple[str, ...] = ()
    factor: float = 1.0
    before: bool = False

    def limits(self, workload: str, means: Mapping[str, Figures]) -> dict[str, float] | None:
        """Return the limits and what each is; None if one of them is not known."""
        found = {} if self.at_most is None else {"": self.at_most}
        for policy in self.below:
            if policy not in means:
                return None
            label = policy if self.factor == 1 else f"{self.factor:g} × {policy}"
            found[label] = self.factor * means[policy][self.measure]
        if self.before:
            if self.measure not in BEFORE.get(workload, {}):
                return None
            found["before"] = BEFORE[workload][self.measure]
        return found


def mean_figures(draws: Sequence[Figures]) -> Figures:
    """Return the mean of each measure over draws."""
    return {name: fmean(figures[name] for figures in draws) for name in draws[0]}
