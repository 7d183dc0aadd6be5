"""Power of racks over a history, by the linear model of `packing.power`, as exact step functions.

A run draws the busy power of the resources it holds from its start order to its end, as utilisation is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import msgspec
import numpy as np

from refold.journal import History, Outcome
from refold.model import HOUR, Seconds
from refold.placement import NO_RACK, POWER_TOLERANCE_WATTS, Floats, Ints, Power

WATTS_PER_KILOWATT = 1000.0


class RackPower(msgspec.Struct, frozen=True):
    """Power of a rack from the first submission to the end of the last run; `limit_watts` is None without a limit."""

    name: str
    mean_watts: float
    peak_watts: float
    limit_watts: float | None
    above_limit_seconds: Seconds
    energy_kwh: float


class PowerUse(msgspec.Struct, frozen=True):
    """Power of all racks together; `above_limit_seconds` is the time in which any rack was above its limit.

    `imbalance` (0 to 1) is the time average of the largest minus the smallest load of a rack. The load is the power as
    a share of the limit or, without a limit, of the maximum power. None with fewer than two racks.
    """

    mean_watts: float
    peak_watts: float
    above_limit_seconds: Seconds
    energy_kwh: float
    kwh_per_finished_gpu_hour: float | None
    imbalance: float | None
    racks: tuple[RackPower, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RackPowerSeries:
    """Power of each rack over time: `level(rack)[i]` from `times[i]` on, and the idle power before."""

    power: Power
    times: Floats
    _rack: Ints
    _time_index: Ints
    _change: Floats

    def level(self, rack: int) -> Floats:
        of_rack = self._rack == rack
        changes = np.bincount(self._time_index[of_rack], self._change[of_rack], minlength=len(self.times))
        # Rounding removes floating-point errors, which would show as peaks or as exceeded limits.
        level: Floats = np.round(self.power.idle[rack] + np.cumsum(changes), 6)
        return level

    def levels(self) -> Iterator[Floats]:
        """Yield the levels of all racks one by one, because all together may not fit in memory."""
        for rack in range(len(self.power.names)):
            yield self.level(rack)

    def peaks(self, rack: int, edges: Floats) -> Floats:
        """Return the peak power of a rack between each two consecutive `edges`; limits apply to peaks, not means."""
        level = np.concatenate([[self.power.idle[rack]], self.level(rack), [-inf]])
        first = np.searchsorted(self.times, edges[:-1], side="right")
        beyond = np.searchsorted(self.times, edges[1:], side="left") + 1
        peaks: Floats = np.maximum.reduceat(level, np.stack([first, beyond], axis=1).ravel())[::2]
        return peaks


def rack_power_series(history: History) -> RackPowerSeries | None:
    """Compute the power of racks over time; None if the power of the cluster is unknown or nothing ran."""
    power = Power(history.cluster)
    if not power.is_modelled or not len(history.runs):
        return None
    run, node, gpu_milli, cpu_milli = _shares(history)
    watts = gpu_milli * power.watts_per_gpu_milli[node] + cpu_milli * power.watts_per_cpu_milli[node]
    all_times = np.concatenate([history.runs.start[run], history.run_end[run], [history.first_submission]])
    times = np.sort(all_times)
    times = times[np.diff(times, prepend=-inf) > 0]  # not np.unique, which loads masked arrays
    time_index = np.searchsorted(times, all_times)
    rack = power.rack_of[node]
    return RackPowerSeries(power, times, np.concatenate([rack, rack]), time_index[:-1], np.concatenate([watts, -watts]))


def _shares(history: History) -> tuple[Ints, Ints, Ints, Ints]:
    """Return, for every share of every run, the run, the node, and the thousandths of GPUs and CPUs it holds."""
    values, number = history.runs.distinct_allocations()
    rows = [
        (share.node, len(share.gpus) * share.gpu_milli, share.cpu_milli)
        for allocation in values
        for share in allocation.placement
    ]
    node, gpu_milli, cpu_milli = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    shares = np.array([len(allocation.placement) for allocation in values], dtype=np.int64)
    first = np.cumsum(shares) - shares
    run = np.repeat(np.arange(len(number)), shares[number])
    within = np.arange(len(run)) - np.repeat(np.cumsum(shares[number]) - shares[number], shares[number])
    row = first[number[run]] + within
    return run, node[row], gpu_milli[row], cpu_milli[row]


def power_use(history: History) -> PowerUse | None:
    """Measure power; None if the power of the cluster is unknown or nothing ran for any time."""
    series = rack_power_series(history)
    return None if series is None else _use_of(series, history)


def _use_of(series: RackPowerSeries, history: History) -> PowerUse | None:
    if series.times[-1] <= series.times[0]:
        return None
    durations = np.diff(series.times)
    racks: list[RackPower] = []
    total, above = np.zeros(len(durations)), np.zeros(len(durations), dtype=np.bool_)
    highest, lowest, compared = np.full(len(durations), -inf), np.full(len(durations), inf), 0
    for rack, level in enumerate(series.levels()):
        watts, limit, scale = level[:-1], float(series.power.limit[rack]), float(series.power.scale[rack])
        racks.append(_rack_power(series.power.names[rack], watts, durations, limit))
        total += watts
        above |= watts > limit + POWER_TOLERANCE_WATTS
        if isfinite(scale):
            compared += 1
            highest, lowest = np.maximum(highest, watts / scale), np.minimum(lowest, watts / scale)
    all_racks = _rack_power("", total, durations, inf)
    gpu_hours = float(history.gpu_seconds[history.jobs.outcome == Outcome.FINISHED].sum()) / HOUR
    return PowerUse(
        mean_watts=all_racks.mean_watts,
        peak_watts=all_racks.peak_watts,
        above_limit_seconds=float(durations[above].sum()),
        energy_kwh=all_racks.energy_kwh,
        kwh_per_finished_gpu_hour=all_racks.energy_kwh / gpu_hours if gpu_hours else None,
        imbalance=float((highest - lowest) @ durations / durations.sum()) if compared > 1 else None,
        racks=tuple(racks),
    )


def _rack_power(name: str, level: Floats, durations: Floats, limit: float) -> RackPower:
    watt_seconds = float(level @ durations)
    return RackPower(
        name,
        mean_watts=watt_seconds / float(durations.sum()),
        peak_watts=float(level.max()),
        limit_watts=limit if isfinite(limit) else None,
        above_limit_seconds=float(durations[level > limit + POWER_TOLERANCE_WATTS].sum()),
        energy_kwh=watt_seconds / HOUR / WATTS_PER_KILOWATT,
    )


def format_rack_name(name: str) -> str:
    """Return the name of a rack for display; nodes without a rack are grouped as 'no rack'."""
    return "no rack" if name == NO_RACK else name


def sort_by_limit_margin(racks: Sequence[RackPower]) -> list[RackPower]:
    """Sort racks by peak power relative to the limit, then by time above it; racks without a limit last, by peak."""

    def rank(rack: RackPower) -> tuple[float, float, float]:
        return (-rack.peak_watts / (rack.limit_watts or inf), -rack.above_limit_seconds, -rack.peak_watts)

    return sorted(racks, key=rank)


RACKS_SHOWN_OF_MANY = 3
"""Number of racks that have their own line if there are too many racks for one line each."""


@dataclass(frozen=True, slots=True, eq=False)
class RackCurves:
    """Power curves for a chart: named lines, the lowest and highest power of all racks, and named limits."""

    lines: Sequence[tuple[str, Floats]]
    band: tuple[Floats, Floats] | None
    limits: Sequence[tuple[float, str]]
    max_watts: float


def rack_curves(history: History, edges: Floats, max_racks: int) -> RackCurves | None:
    """Return the peak power of racks per time interval; with more than `max_racks`, only of those closest to limits."""
    series = rack_power_series(history)
    use = None if series is None else _use_of(series, history)
    if series is None or use is None:
        return None
    shown = list(use.racks) if len(use.racks) <= max_racks else sort_by_limit_margin(use.racks)[:RACKS_SHOWN_OF_MANY]
    shown_names = {rack.name for rack in shown}
    low, high = np.full(len(edges) - 1, inf), np.full(len(edges) - 1, -inf)
    curves: dict[str, Floats] = {}
    for rack, name in enumerate(series.power.names):
        peaks = series.peaks(rack, edges)
        low, high = np.minimum(low, peaks), np.maximum(high, peaks)
        if name in shown_names:
            curves[name] = peaks
    limits = _limits(shown)
    return RackCurves(
        lines=[(format_rack_name(rack.name), curves[rack.name]) for rack in shown],
        band=(low, high) if len(use.racks) > max_racks else None,
        limits=limits,
        max_watts=max([float(high.max()), *(watts for watts, _ in limits)]),
    )


def _limits(racks: Sequence[RackPower]) -> list[tuple[float, str]]:
    """Return each distinct limit with a label: 'limit of r1, r2', or 'limit' if all racks share it."""
    racks_by_limit: dict[float, list[str]] = {}
    for rack in racks:
        if rack.limit_watts is not None:
            racks_by_limit.setdefault(rack.limit_watts, []).append(format_rack_name(rack.name))
    if len(racks_by_limit) == 1 and sum(map(len, racks_by_limit.values())) == len(racks):
        return [(watts, "limit") for watts in racks_by_limit]
    return [(watts, f"limit of {', '.join(names)}") for watts, names in racks_by_limit.items()]
