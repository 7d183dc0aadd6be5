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
    "longest": Measure("longest delay", "h", 1),
    "wide_delay_p99": Measure("p99 of delays, ≥ 8 GPUs", "h", 2),
    "restarts": Measure("most restarts of a job", "", 0),
    "jain_users": Measure("Jain's index of users", "", 3, more_is_better=True),
    "jain_tenants": Measure("Jain's index of tenants", "", 3, more_is_better=True),
    "finish_time_fairness": Measure("finish-time fairness, mean", "", 2),
    "finish_time_fairness_p99": Measure("finish-time fairness, p99", "", 1),
    "violations": Measure("jobs with violated guarantees", "", 1),
    "violations_measured": Measure("the same by measured speeds", "", 1),
    "quota_waits": Measure("jobs that waited within their quota", "", 1),
    "kept_in_worst_week": Measure("start bounds kept, worst week", "", 3, more_is_better=True),
    "kept": Measure("start bounds kept", "", 3, more_is_better=True),
    "bound_to_wait": Measure("median bound / median wait", "", 1),
    "rank_correlation": Measure("rank correlation of bound and wait", "", 2, more_is_better=True),
    "not_known": Measure("waiting jobs without a bound", "", 3),
    "event_ms": Measure("decision after an event", "ms", 0),
    "cold_ms": Measure("first decision", "ms", 0),
    "growth": Measure("growth / n log n", "", 2),
    "cpu_seconds": Measure("CPU time of the simulation", "s", 1),
}
"""The measures by name. The delay of a job is its completion time less its run time on the requested resources."""

BEFORE: dict[str, dict[str, float]] = {
    "philly-35000": {"delay": 0.98083, "wide_delay": 1.948904, "delay_p99": 3.424746},
    "philly-10000": {"delay": 0.457632, "wide_delay": 9.671574, "delay_p99": 8.46038},
    "philly-50000": {"delay": 0.944951, "wide_delay": 14.221599, "delay_p99": 16.201748},
    "philly-56000": {"delay": 0.55682, "wide_delay": 8.504478, "delay_p99": 18.526592},
    "helios-60000": {"delay": 0.24868, "wide_delay": 0.695701, "delay_p99": 2.95747},
    "helios-40000": {"delay": 0.091361, "wide_delay": 0.171638, "delay_p99": 0.970236},
    "helios-80000": {"delay": 0.189492, "wide_delay": 0.708273, "delay_p99": 1.694879},
    "helios-100000": {"delay": 0.181493, "wide_delay": 0.654184, "delay_p99": 2.256658},
}
"""Means of draws of `refold` as it was before this benchmark existed, by workload and measure."""


TOLERANCE = 1e-5
"""Values in BEFORE are rounded: smaller differences do not count."""


class Target(NamedTuple):
    """A target of `refold`: the mean of draws is no worse than every limit that is given; if `strict`, it is better.

    `at_most` or `at_least` is a value; `no_worse_than` are policies, whose mean of draws is multiplied by `factor`;
    `before`: the value in BEFORE. `worst_draw`: it refers to the worst draw instead of the mean.
    """

    measure: str
    at_most: float | None = None
    at_least: float | None = None
    no_worse_than: tuple[str, ...] = ()
    factor: float = 1.0
    before: bool = False
    worst_draw: bool = False
    strict: bool = False

    def limits(self, workload: str, means: Mapping[str, Figures]) -> dict[str, float] | None:
        """Return the limits and what each is; None if one of them is not known."""
        fixed = self.at_least if self.at_most is None else self.at_most
        found = {} if fixed is None else {"": fixed}
        for policy in self.no_worse_than:
            if self.measure not in means.get(policy, {}):
                return None
            label = policy if self.factor == 1 else f"{self.factor:g} × {policy}"
            found[label] = self.factor * means[policy][self.measure]
        if self.before:
            if self.measure not in BEFORE.get(workload, {}):
                return None
            found["before"] = BEFORE[workload][self.measure]
        return found

    def is_met(self, draws: Sequence[float], limit: float) -> bool:
        """Return whether the draws of refold meet a limit; no draws do not."""
        sign = -1 if MEASURES[self.measure].more_is_better else 1
        combine = max if self.worst_draw else fmean
        margin = -TOLERANCE if self.strict else TOLERANCE
        return bool(draws) and combine([sign * draw for draw in draws]) <= sign * limit + margin


def mean_figures(draws: Sequence[Figures]) -> Figures:
    """Return the mean over draws of each measure that all of them have."""
    common = [name for name in draws[0] if all(name in figures for figures in draws)]
    return {name: fmean(figures[name] for figures in draws) for name in common}
