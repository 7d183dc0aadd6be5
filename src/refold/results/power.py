"""Power of racks over a history: what runs held, priced by the linear model of `packing.power`. Exact, in steps.

A run draws for what it holds from the order that starts it to its end, busy or not: nothing says how busy it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import msgspec
import numpy as np

from refold.journal import History, Outcome
from refold.model import HOUR, Seconds
from refold.packing import NO_RACK, SLACK, Floats, Ints, Power

WATTS_PER_KILOWATT = 1000.0


class RackPower(msgspec.Struct, frozen=True):
    """What one rack drew from the first submission to the end of the last run; a limit of None: it has none."""

    name: str
    mean_watts: float
    peak_watts: float
    limit_watts: float | None
    above_limit_seconds: Seconds
    energy_kwh: float


class PowerUse(msgspec.Struct, frozen=True):
    """The same of all racks together; `above_limit_seconds` while any of them was above its limit.

    `unevenness` is 0 to 1, the mean over time of the largest less the smallest load of a rack: what it draws, as a part
    of its limit (without one, of what it can draw). None with fewer than two racks.
    """

    mean_watts: float
    peak_watts: float
    above_limit_seconds: Seconds
    energy_kwh: float
    kwh_per_finished_gpu_hour: float | None
    unevenness: float | None
    racks: tuple[RackPower, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What each rack draws over time: `level(rack)[i]` from `times[i]` on, and its idle watts before."""

    power: Power
    times: Floats
    _rack: Ints
    _place: Ints
    _change: Floats

    def level(self, rack: int) -> Floats:
        """The watts of a rack from each of the times on."""
        mine = self._rack == rack
        changes = np.bincount(self._place[mine], self._change[mine], minlength=len(self.times))
        # Sums of many watts leave dust, which would show as a peak or as a limit passed.
        level: Floats = np.round(self.power.idle[rack] + np.cumsum(changes), 6)
        return level

    def levels(self) -> Iterator[Floats]:
        """Those of all racks, one after the other: together they may be more than memory holds."""
        for rack in range(len(self.power.names)):
            yield self.level(rack)

    def highest(self, rack: int, edges: Floats) -> Floats:
        """The most that a rack draws between each two neighbours of `edges`: limits are about peaks, not means."""
        level = np.concatenate([[self.power.idle[rack]], self.level(rack), [-inf]])
        first = np.searchsorted(self.times, edges[:-1], side="right")
        beyond = np.searchsorted(self.times, edges[1:], side="left") + 1
        highest: Floats = np.maximum.reduceat(level, np.stack([first, beyond], axis=1).ravel())[::2]
        return highest


def draws(history: History) -> Draws | None:
    """What racks drew; None where the cluster does not say, or nothing ran."""
    power = Power(history.cluster)
    if not power.known or not len(history.runs):
        return None
    run, node, gpu_milli, cpu_milli = _shares(history)
    watts = gpu_milli * power.watts_per_gpu_milli[node] + cpu_milli * power.watts_per_cpu_milli[node]
    times, place = np.unique(
        np.concatenate([history.runs.start[run], history.run_end[run], [history.first_submission]]),
        return_inverse=True,
    )
    rack = power.rack_of[node]
    return Draws(power, times, np.concatenate([rack, rack]), place[:-1], np.concatenate([watts, -watts]))


def _shares(history: History) -> tuple[Ints, Ints, Ints, Ints]:
    """Of every share of every run: the run, the node, and how much of GPUs and CPUs it holds there."""
    found = [
        (run, share.node, len(share.gpus) * share.gpu_milli, share.cpu_milli)
        for run, allocation in enumerate(history.runs.allocations)
        for share in allocation.placement
    ]
    run, node, gpu_milli, cpu_milli = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return run, node, gpu_milli, cpu_milli


def power_use(history: History) -> PowerUse | None:
    """What there is to say of power; None where the cluster does not say, or nothing ran for any time."""
    drawn = draws(history)
    if drawn is None or drawn.times[-1] <= drawn.times[0]:
        return None
    distribution = np.diff(drawn.times)
    racks: list[RackPower] = []
    total, above = np.zeros(len(distribution)), np.zeros(len(distribution), dtype=np.bool_)
    hottest, coolest, compared = np.full(len(distribution), -inf), np.full(len(distribution), inf), 0
    for rack, level in enumerate(drawn.levels()):
        here, limit, scale = level[:-1], float(drawn.power.limit[rack]), float(drawn.power.scale[rack])
        racks.append(_rack_power(drawn.power.names[rack], here, distribution, limit))
        total += here
        above |= here > limit + SLACK
        if isfinite(scale):
            compared += 1
            hottest, coolest = np.maximum(hottest, here / scale), np.minimum(coolest, here / scale)
    whole = _rack_power("", total, distribution, inf)
    held = float(history.gpu_seconds[history.jobs.outcome == Outcome.FINISHED].sum()) / HOUR
    return PowerUse(
        mean_watts=whole.mean_watts,
        peak_watts=whole.peak_watts,
        above_limit_seconds=float(distribution[above].sum()),
        energy_kwh=whole.energy_kwh,
        kwh_per_finished_gpu_hour=whole.energy_kwh / held if held else None,
        unevenness=float((hottest - coolest) @ distribution / distribution.sum()) if compared > 1 else None,
        racks=tuple(racks),
    )


def _rack_power(name: str, level: Floats, distribution: Floats, limit: float) -> RackPower:
    watt_seconds = float(level @ distribution)
    return RackPower(
        name,
        mean_watts=watt_seconds / float(distribution.sum()),
        peak_watts=float(level.max()),
        limit_watts=limit if isfinite(limit) else None,
        above_limit_seconds=float(distribution[level > limit + SLACK].sum()),
        energy_kwh=watt_seconds / HOUR / WATTS_PER_KILOWATT,
    )


def rack_text(name: str) -> str:
    """How people read the name of a rack, or of the group of nodes that are in none."""
    return "no rack" if name == NO_RACK else name


def nearest_to_limit_first(racks: Sequence[RackPower]) -> list[RackPower]:
    """By their peaks as parts of their limits, then by how long they were above; without a limit, by their peaks."""

    def rank(rack: RackPower) -> tuple[float, float, float]:
        return (-rack.peak_watts / (rack.limit_watts or inf), -rack.above_limit_seconds, -rack.peak_watts)

    return sorted(racks, key=rank)


WORST = 3
"""So many racks are drawn on their own where there are too many for a line each."""


@dataclass(frozen=True, slots=True, eq=False)
class RackCurves:
    """Racks as a picture shows them: lines with names, the lowest and highest of all racks, and limits with names."""

    lines: Sequence[tuple[str, Floats]]
    band: tuple[Floats, Floats] | None
    limits: Sequence[tuple[float, str]]
    most_watts: float


def curves_of(history: History, edges: Floats, most: int) -> RackCurves | None:
    """The highest power of each slot of time, of every rack; of more than `most`, of those nearest to their limits."""
    drawn, use = draws(history), power_use(history)
    if drawn is None or use is None:
        return None
    shown = list(use.racks) if len(use.racks) <= most else nearest_to_limit_first(use.racks)[:WORST]
    wanted = {rack.name for rack in shown}
    low, high = np.full(len(edges) - 1, inf), np.full(len(edges) - 1, -inf)
    curves: dict[str, Floats] = {}
    for rack, name in enumerate(drawn.power.names):
        highest = drawn.highest(rack, edges)
        low, high = np.minimum(low, highest), np.maximum(high, highest)
        if name in wanted:
            curves[name] = highest
    limits = _limits(shown)
    return RackCurves(
        lines=[(rack_text(rack.name), curves[rack.name]) for rack in shown],
        band=(low, high) if len(use.racks) > most else None,
        limits=limits,
        most_watts=max([float(high.max()), *(watts for watts, _ in limits)]),
    )


def _limits(racks: Sequence[RackPower]) -> list[tuple[float, str]]:
    """Each limit once, with whose it is: 'limit of r1, r2', or 'limit' where it is everybody's."""
    of: dict[float, list[str]] = {}
    for rack in racks:
        if rack.limit_watts is not None:
            of.setdefault(rack.limit_watts, []).append(rack_text(rack.name))
    if len(of) == 1 and sum(map(len, of.values())) == len(racks):
        return [(watts, "limit") for watts in of]
    return [(watts, f"limit of {', '.join(names)}") for watts, names in of.items()]
