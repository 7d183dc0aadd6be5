"""Survival of a duration: the probability to exceed each edge of the time bins. Compiled."""

from __future__ import annotations

from math import inf, pi

import cython
import numpy as np

from refold.model.arrays import view
from refold.predict.layout import BIN_WIDTH, BINS, FIRST_EDGE, LAST_EDGE, Floats

if not cython.compiled:
    from math import exp, log, sqrt


def whole_part(number: float) -> int:
    """Return a number without its decimals."""
    return int(number)


def bin_position(seconds: float) -> float:
    """Return the position of a time on the axis of bins: 2.5 is the middle of the third bin."""
    return log(seconds / FIRST_EDGE) / BIN_WIDTH if seconds > FIRST_EDGE else 0.0


def edge_time(position: float) -> float:
    """Return the time at a position on the axis of bins, in seconds."""
    return FIRST_EDGE * exp(position * BIN_WIDTH)


EDGES = view(np.array([edge_time(at) for at in range(BINS + 1)]))
POSITIONS = view(np.array([bin_position(edge) for edge in EDGES]))
"""Positions of the edges, which rounding may make differ a little from whole numbers."""


def bin_of(seconds: float) -> int:
    """Return the bin of a time; the first and the last bin include all times beyond them."""
    return min(whole_part(bin_position(seconds)), BINS - 1)


def survival_at(survival: Floats, seconds: float) -> float:
    """Return the probability that a duration exceeds a time; beyond the last edge it falls with the square of time."""
    if seconds >= LAST_EDGE:
        share = LAST_EDGE / seconds
        return float(survival[BINS] * (share * share))
    return survival_at_position(survival, bin_position(seconds))


def survival_at_position(survival: Floats, position: float) -> float:
    """Return the probability that a duration exceeds a position on the axis of bins, except the last edge."""
    at = min(whole_part(position), BINS - 1)
    return float(survival[at] + (position - at) * (survival[at + 1] - survival[at]))


def survival_at_edge(survival: Floats, edge: int) -> float:
    """Return what `survival_at` does for the time of an edge."""
    return survival_at(survival, EDGES[edge]) if edge == BINS else survival_at_position(survival, POSITIONS[edge])


def time_exceeded_with(survival: Floats, probability: float) -> float:
    """Return the time that a duration exceeds with this probability."""
    if probability < survival[BINS]:
        return float(LAST_EDGE * sqrt(survival[BINS] / probability))
    at, step = 0, BINS >> 1
    while step > 0:
        if survival[at + step] > probability:
            at += step
        step >>= 1
    mass = survival[at] - survival[at + 1]  # survival[at] > probability >= survival[at + 1], unless probability is 1
    return edge_time(at + (survival[at] - probability) / mass) if mass > 0.0 else edge_time(at)


def quantiles(survival: Floats, probabilities: Floats) -> Floats:
    """Return the quantiles for several probabilities, in seconds."""
    result = np.empty(len(probabilities))
    times = result
    for at in range(len(probabilities)):
        times[at] = time_exceeded_with(survival, 1.0 - probabilities[at])
    return result


def time_in_bin(survival: Floats, at: int, since: float, until: float) -> float:
    """Return the expected time between two times in a bin: the integral of survival."""
    slope = (survival[at] - survival[at + 1]) / BIN_WIDTH
    logs = WHOLE_BIN_LOGS[at] if since == EDGES[at] and until == EDGES[at + 1] else bin_logs(at, since, until)
    return float(survival[at] * (until - since) - slope * logs)


def bin_logs(at: int, since: float, until: float) -> float:
    """Return the integral of log(time / edge) between two times in a bin, from its lower edge."""
    return float(until * (log(until / EDGES[at]) - 1.0) - since * (log(since / EDGES[at]) - 1.0))


WHOLE_BIN_LOGS = view(np.array([bin_logs(at, EDGES[at], EDGES[at + 1]) for at in range(BINS)]))
"""`bin_logs` of whole bins, of which most integrals consist."""


def mean_between(survival: Floats, floor: float, ceiling: float) -> float:
    """Return the mean duration, given that it exceeds `floor` and is cut off at `ceiling`: the integral of survival."""
    total, start = 0.0, max(floor, FIRST_EDGE)
    for at in range(whole_part(bin_position(start)), BINS):
        since, until = max(EDGES[at], start), min(EDGES[at + 1], ceiling)
        if until > since:
            total += time_in_bin(survival, at, since, until)
    since = max(start, LAST_EDGE)
    if ceiling > since:
        total += survival[BINS] * LAST_EDGE * (LAST_EDGE / since - LAST_EDGE / ceiling)
    return min(start + total / survival_at(survival, start), ceiling)


def service_per_completion(survival: Floats, floor: float, ceiling: float, min_service: float) -> float:
    """Return the least expected service per completion beyond `floor`, over all lengths of service from `min_service`.

    Service of length d after `floor` takes E[min(rest, d)] seconds and completes the job with probability
    P(rest ≤ d). The least ratio of both is the inverse of the Gittins index.
    """
    start = max(floor, FIRST_EDGE)
    at_start = survival_at(survival, start)
    if start >= LAST_EDGE or at_start <= 0.0:
        return start  # survival falls with the square of time: as much again on average
    least, total = inf, 0.0
    for at in range(whole_part(bin_position(start)), BINS):
        since, until = max(EDGES[at], start), min(EDGES[at + 1], ceiling)
        if until <= since:
            continue
        total += time_in_bin(survival, at, since, until)
        completed = at_start - (survival_at_edge(survival, at + 1) if until < ceiling else 0.0)
        if completed > 0.0 and (until >= start + min_service or until >= ceiling):
            least = min(least, total / completed)
    return start if least == inf else least


def log_normal_bins(seconds: float, width: float, uniform: float) -> Floats:
    """Return bin probabilities: a normal curve in log time around `seconds`, plus `uniform` spread evenly."""
    result, middle = np.empty(BINS), log(seconds / FIRST_EDGE)
    masses = result
    for at in range(BINS):
        distance = ((at + 0.5) * BIN_WIDTH - middle) / width
        masses[at] = exp(-0.5 * distance * distance) * BIN_WIDTH / width / sqrt(2.0 * pi) + uniform / BINS
    return result


def survival_from_masses(masses: Floats) -> Floats:
    """Return the probability to exceed each edge, from bin probabilities; half of the last bin lies beyond its edge."""
    survival = np.append(masses, 0.0)
    sum_masses(survival)
    return survival


def sum_masses(survival: Floats) -> None:
    """Replace bin probabilities by the probability to exceed each edge. Sums start at the small end."""
    total, last = 0.0, 0.5 * survival[BINS - 1]
    for at in range(BINS - 1, -1, -1):
        total += survival[at]
        survival[at] = total
    survival[BINS] = last
    for at in range(BINS + 1):
        survival[at] /= total


def condition_on_progress(survival: Floats, total_seconds: float, width: float) -> Floats:
    """Return the survival of a job whose reported progress implies about `total_seconds` in total."""
    result, middle = np.empty(BINS + 1), log(max(total_seconds, FIRST_EDGE) / FIRST_EDGE)
    masses = result
    for at in range(BINS):
        distance = abs((at + 0.5) * BIN_WIDTH - middle) / width
        masses[at] = (survival[at] - survival[at + 1] + 1e-6) * (exp(-distance) + 1e-6)
    sum_masses(masses)
    return result
