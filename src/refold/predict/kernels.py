"""The bins of time, and everything compiled about them.

All of it is in one file, since what Numba keeps on disk is known by the file that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Names = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

LEVELS = 7
BINS = 1 << LEVELS
FIRST = 0.5
PER_DOUBLING = 5
WIDTH = math.log(2.0) / PER_DOUBLING
LAST = FIRST * 2.0 ** (BINS / PER_DOUBLING)
"""Bins of equal width in log time: five to each doubling, from half a second to 294 days."""


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """Compile into every caller."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


@inlined
def place_of(seconds: float) -> float:
    """Where on the axis of bins a time is: 2.5 is the middle of the third bin."""
    return math.log(seconds / FIRST) / WIDTH if seconds > FIRST else 0.0


@inlined
def edge(place: float) -> float:
    """The time at a place on the axis of bins."""
    return FIRST * math.exp(place * WIDTH)


@inlined
def bin_of(seconds: float) -> int:
    """The bin that holds a time; the first and the last hold what is beyond them too."""
    return min(int(place_of(seconds)), BINS - 1)


@compiled
def survival_at(survival: Floats, seconds: float) -> float:
    """The chance to last beyond a time; beyond the last edge it falls with the square of time."""
    if seconds >= LAST:
        return float(survival[BINS] * (LAST / seconds) ** 2)
    place = place_of(seconds)
    at = min(int(place), BINS - 1)
    return float(survival[at] + (place - at) * (survival[at + 1] - survival[at]))


@compiled
def time_at(survival: Floats, left: float) -> float:
    """The time beyond which it lasts with chance `left`."""
    if left < survival[BINS]:
        return float(LAST * math.sqrt(survival[BINS] / left))
    low, high = 0, BINS  # survival[low] > left >= survival[high], but for left = 1
    while high - low > 1:
        middle = (low + high) >> 1
        if survival[middle] > left:
            low = middle
        else:
            high = middle
    mass = survival[low] - survival[high]
    return edge(low + (survival[low] - left) / mass) if mass > 0.0 else edge(float(low))


@compiled
def mean_between(survival: Floats, floor: float, ceiling: float) -> float:
    """The mean of what lasts longer than `floor` and ends at `ceiling` at the latest: the integral of survival."""
    total, start = 0.0, max(floor, FIRST)
    for at in range(min(int(place_of(start)), BINS), BINS):
        lower, upper = edge(float(at)), edge(at + 1.0)
        since, until = max(lower, start), min(upper, ceiling)
        if until <= since:
            continue
        slope = (survival[at] - survival[at + 1]) / WIDTH
        logs = until * (math.log(until / lower) - 1.0) - since * (math.log(since / lower) - 1.0)
        total += survival[at] * (until - since) - slope * logs
    since = max(start, LAST)
    if ceiling > since:
        total += survival[BINS] * LAST * (LAST / since - LAST / ceiling)
    return min(start + total / survival_at(survival, start), ceiling)


# What was seen is kept in rows, each found by the name of a context. A row holds what became of the jobs of its
# context as a tree of halves: node 1 asks whether a job outlasts the middle of all bins, nodes 2 and 3 the same of
# either half, and so on. Each node keeps log odds, at two speeds of forgetting, and how often it was asked.

ROWS = 1 << 15
PROBES = 8
SPEEDS = 2
FORGETTING = (0.08, 0.01)
"""The least share that the newest example has in what a node believes: about the last 12, and the last 100."""

LAST_BIN, BEFORE_BIN, AVERAGE_BIN, LAST_ARRIVAL, LAST_END, UNFINISHED, RECENT = 0, 1, 2, 3, 4, 5, 6
"""What a row remembers beside: the bins of its last two jobs and their running average, when and how many."""

# The contexts. The first are what a job says of itself, from coarse to fine; then what has happened lately to its
# like; then those that see how long jobs last beside what was hints of them: two contexts, coarse and fine, for
# each of the last two jobs like it, its limit, and a model of it.
ALL, GPUS, DEMAND, OWNER, OWNER_DEMAND, KIND, FULL, STATIC = 0, 1, 2, 3, 4, 5, 6, 7
HOUR, OWNER_LATELY, RATIOS, CONTEXTS = 10, 11, 17, 23
COARSER = (ALL, ALL, GPUS, ALL, DEMAND, OWNER, OWNER_DEMAND, *(FULL,) * 3, GPUS, OWNER, *(FULL,) * 5)
"""What a context that has seen little falls back on."""

LATELY, LIMIT, MODEL, WAYS = 0, 1, 2, 3
"""The ways in which a duration is hints; 0 seconds where it is not."""

INPUTS = 1 + (RATIOS + WAYS) * SPEEDS
"""What is mixed, at each speed: what is believed before anything was seen, what contexts say, and finer ratios."""

LIMITED, MODELLED, VARIANTS = 1, 2, 4
"""Jobs without and with a limit, and without and with a model of them, are mixed apart: 0 to 3 as a sum."""

BUCKETS = 8
FEW = 1.0
"""After so many examples a context is believed as much as the coarser one."""

AS_FORETOLD = 112
"""The bin of ratios, in place of times, that begins where something lasts exactly as long as was hints."""

STEEPEST = 12.0
MIXING_RATE = 0.0002
"""How fast trust moves. Slow, since equal jobs come in bursts, which all prove the same context right."""

SHARES = 20
SHARES_SEEN, SHARES_KEPT = 1000.0, 20_000.0
"""Calibration: in how many parts, how many examples its start is worth, and of how many it remembers."""


class ContextTables(NamedTuple):
    """The rows. Nobody writes in the last one, which stands for contexts that were never seen."""

    names: Names
    used: Ints
    lean: Singles
    seen: Singles
    recent: Floats


class Trust(NamedTuple):
    """How much each input weighs, by node of the tree, and by level and how well the job is known; calibration.

    Both for each variant of jobs.
    """

    by_node: Singles
    by_level: Singles
    shares: Floats


@inlined
def mixed(name: np.uint64, value: int) -> np.uint64:
    """Another name, made of a name and a number; never 0, which names nothing."""
    word = (name ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(29)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    return (word ^ (word >> np.uint64(32))) | np.uint64(1)


@inlined
def squash(lean: float) -> float:
    """The chance of these log odds."""
    return 1.0 / (1.0 + math.exp(-min(max(lean, -STEEPEST), STEEPEST)))


@inlined
def row_of(names: Names, name: np.uint64) -> int:
    """The row of a name, or the last row."""
    start = int(name >> np.uint64(40))
    for probe in range(PROBES):
        row = (start + probe) % ROWS
        if names[row] == name and name != np.uint64(0):
            return row
    return ROWS


@inlined
def row_for(memory: ContextTables, tick: int, name: np.uint64) -> int:
    """The row of a name; if it has none, the row near by that was not used for longest is taken over."""
    start = int(name >> np.uint64(40))
    oldest = start % ROWS
    for probe in range(PROBES):
        row = (start + probe) % ROWS
        if memory.names[row] == name:
            memory.used[row] = tick
            return row
        if memory.used[row] < memory.used[oldest]:
            oldest = row
    memory.names[oldest], memory.used[oldest] = name, tick
    memory.lean[oldest], memory.seen[oldest], memory.recent[oldest] = 0.0, 0.0, memory.recent[ROWS]
    return oldest


@inlined
def scale(number: float) -> int:
    """A number by its magnitude: 0 and less, 1, 2-3, 4-7, …"""
    return int(math.log2(max(number, 0.0) + 1.0)) if number < 1e12 else 40


@compiled
def contexts_of(static: Names, now: float, hints: Floats, memory: ContextTables) -> Names:
    """The names of all contexts of a job that arrives now; what lately happened is added to what is `hints`."""
    keys = np.zeros(CONTEXTS, np.uint64)
    for at in range(STATIC):
        keys[at] = mixed(static[at], at)
    names, recent = memory.names, memory.recent
    full, owner, everyone = keys[FULL], keys[OWNER], keys[ALL]
    like, own, whole = recent[row_of(names, full)], recent[row_of(names, owner)], recent[row_of(names, everyone)]
    last, before, average = int(like[LAST_BIN]), int(like[BEFORE_BIN]), int(like[AVERAGE_BIN])
    gap, unfinished = scale(now - like[LAST_ARRIVAL]), scale(like[UNFINISHED])
    keys[7] = mixed(mixed(full, 7), last // 2)
    keys[8] = mixed(mixed(mixed(full, 8), last // 4), before // 4)
    keys[9] = mixed(mixed(mixed(full, 9), gap), unfinished)
    keys[HOUR] = mixed(mixed(keys[GPUS], 10), int(now // 7200.0) % 12)
    keys[OWNER_LATELY] = mixed(mixed(mixed(owner, 11), int(own[LAST_BIN]) // 3), int(whole[LAST_BIN]) // 8)
    keys[12] = mixed(mixed(mixed(full, 12), average // 3), gap // 2)
    keys[13] = mixed(mixed(full, 13), gap)
    keys[14] = mixed(mixed(mixed(full, 14), scale(now - like[LAST_END]) // 2), last // 3)
    keys[15] = mixed(mixed(mixed(full, 15), scale(now - own[LAST_ARRIVAL])), scale(own[UNFINISHED]))
    keys[16] = mixed(mixed(full, 16), unfinished)
    if last >= 0:
        hints[LATELY] = edge(0.5 + (0.5 * (last + before) if before >= 0 else last))
    finer = (full, owner, keys[KIND])
    for way in range(WAYS):
        if hints[way] > 0.0:
            at = RATIOS + 2 * way
            keys[at], keys[at + 1] = mixed(everyone, at), mixed(finer[way], at + 1)
    return keys


@compiled
def arrive(keys: Names, now: float, memory: ContextTables, tick: int) -> None:
    """One more job of these contexts is there."""
    for at in range(STATIC):
        row = row_for(memory, tick, keys[at])
        memory.recent[row, UNFINISHED] += 1.0
        memory.recent[row, LAST_ARRIVAL] = now


@compiled
def leave(keys: Names, memory: ContextTables) -> None:
    """One job of these contexts is there no more."""
    for at in range(STATIC):
        row = row_of(memory.names, keys[at])
        if row < ROWS:
            memory.recent[row, UNFINISHED] = max(memory.recent[row, UNFINISHED] - 1.0, 0.0)


@compiled
def leans_of(masses: Floats) -> Singles:
    """The tree of log odds of these chances of the bins."""
    tree, leans = np.empty(2 * BINS), np.zeros(BINS, np.float32)
    tree[BINS:] = masses
    for node in range(BINS - 1, 0, -1):
        shorter, longer = tree[2 * node], tree[2 * node + 1]
        tree[node] = shorter + longer
        leans[node] = math.log(longer / shorter)
    return leans


@compiled
def bell(seconds: float, width: float, even: float) -> Floats:
    """Chances of the bins: a normal curve in log time around `seconds`, and a share of `even` everywhere."""
    middle, masses = math.log(seconds / FIRST), np.empty(BINS)
    for at in range(BINS):
        away = ((at + 0.5) * WIDTH - middle) / width
        masses[at] = math.exp(-0.5 * away * away) * WIDTH / width / math.sqrt(2.0 * math.pi) + even / BINS
    return masses


@inlined
def say(row: int, speed: int, coarser: Singles, memory: ContextTables, said: Singles) -> None:
    """What a row says about each node; where it has seen little, what the coarser one says."""
    for node in range(BINS):
        count = memory.seen[row, node]
        own = count / (count + np.float32(FEW))
        said[node] = coarser[node] + own * (memory.lean[row, speed, node] - coarser[node])


@inlined
def shifted(ratios: Singles, hints: float) -> Singles:
    """What is said about times, where something is said about their ratios to what was hints."""
    masses, moved = np.empty(2 * BINS), np.empty(BINS)
    masses[1] = 1.0
    for node in range(1, BINS):
        longer = squash(ratios[node])
        masses[2 * node] = masses[node] * (1.0 - longer)
        masses[2 * node + 1] = masses[node] * longer
    shift = AS_FORETOLD - place_of(hints)
    whole = math.floor(shift)
    for at in range(BINS):
        ratio = at + whole
        lower = masses[BINS + ratio] if 0 <= ratio < BINS else 0.0
        upper = masses[BINS + ratio + 1] if -1 <= ratio < BINS - 1 else 0.0
        moved[at] = lower + (shift - whole) * (upper - lower) + 1e-6
    return leans_of(moved)


@compiled
def inputs_of(
    keys: Names, hints: Floats, memory: ContextTables, prior: Singles, ratios: Singles
) -> tuple[Singles, int]:
    """What each context says about each node of the tree, and how well jobs like this one are known.

    `prior` and `ratios` are believed before anything was seen: of times, and of times beside what was hints.
    """
    ways = WAYS if hints[MODEL] > 0.0 else 2 if hints[LIMIT] > 0.0 else 1
    inputs = np.zeros((1 + (RATIOS + ways) * SPEEDS, BINS), np.float32)
    inputs[0] = prior
    for at in range(RATIOS):
        row = row_of(memory.names, keys[at])
        for speed in range(SPEEDS):
            coarser = inputs[0] if at == ALL else inputs[1 + COARSER[at] * SPEEDS + speed]
            say(row, speed, coarser, memory, inputs[1 + at * SPEEDS + speed])
    coarse, fine = np.empty(BINS, np.float32), np.empty(BINS, np.float32)
    for way in range(ways):
        at = RATIOS + 2 * way
        for speed in range(SPEEDS):
            said = inputs[1 + (RATIOS + way) * SPEEDS + speed]
            if hints[way] > 0.0:
                say(row_of(memory.names, keys[at]), speed, ratios[way], memory, coarse)
                say(row_of(memory.names, keys[at + 1]), speed, coarse, memory, fine)
                said[:] = shifted(fine, hints[way])
            elif way == LATELY:  # nothing like it has been seen
                said[:] = inputs[1 + FULL * SPEEDS + speed]
    return inputs, min(scale(memory.seen[row_of(memory.names, keys[FULL]), 1]), BUCKETS - 1)


@compiled
def survival_of(inputs: Singles, variant: int, known: int, trust: Trust) -> Floats:
    """The chances to outlast each edge of the bins, as the trusted inputs have it; not calibrated."""
    total = np.zeros(BINS, np.float32)
    for at in range(inputs.shape[0]):
        said, weights = inputs[at], trust.by_node[variant, at]
        for node in range(BINS):
            total[node] += said[node] * weights[node]
        for level in range(LEVELS):  # level n has the nodes from 2^n to 2^(n+1)
            weight, of_level, sums = trust.by_level[variant, known, level, at], said[1 << level :], total[1 << level :]
            for node in range(1 << level):
                sums[node] += of_level[node] * weight
    masses = np.empty(2 * BINS)
    masses[1] = 1.0
    for node in range(1, BINS):
        longer = squash(0.5 * total[node])
        masses[2 * node] = masses[node] * (1.0 - longer)
        masses[2 * node + 1] = masses[node] * longer
    return survival_from(masses[BINS:])


@compiled
def survival_from(masses: Floats) -> Floats:
    """The chances to outlast each edge; half of the last bin's lies beyond it. Summed from the small end."""
    survival = np.empty(BINS + 1)
    survival[BINS] = 0.5 * masses[BINS - 1]
    total = 0.0
    for at in range(BINS - 1, -1, -1):
        total += masses[at]
        survival[at] = total
    return survival / total


@compiled
def calibrated(survival: Floats, shares: Floats) -> Floats:
    """What was said, moved to where jobs have ended when the same was said: shares of jobs by their survival."""
    below = np.zeros(SHARES + 1)
    for at in range(SHARES):
        below[at + 1] = below[at] + shares[at]
    moved = np.empty(BINS + 1)
    for at in range(BINS + 1):
        place = min(survival[at], 1.0) * SHARES
        share = min(int(place), SHARES - 1)
        moved[at] = (below[share] + (place - share) * shares[share]) / below[SHARES]
    return moved


@compiled
def foreseen(
    keys: Names, hints: Floats, variant: int, memory: ContextTables, prior: Singles, ratios: Singles, trust: Trust
) -> Floats:
    """The chances to outlast each edge of the bins, calibrated: all of the above in one call."""
    inputs, known = inputs_of(keys, hints, memory, prior, ratios)
    return calibrated(survival_of(inputs, variant, known, trust), trust.shares)


@compiled
def learn_trust(inputs: Singles, variant: int, known: int, said: float, seconds: float, trust: Trust) -> None:
    """Trust those more who were right about this job, of which it was `said` that it outlasts its end."""
    leaf, node = bin_of(seconds), 1
    by_node, by_level = trust.by_node[variant], trust.by_level[variant, known]
    for level in range(LEVELS):
        longer = leaf >> (LEVELS - 1 - level) & 1
        first = second = 0.0
        for at in range(inputs.shape[0]):
            first += inputs[at, node] * by_node[at, node]
            second += inputs[at, node] * by_level[level, at]
        first, second = MIXING_RATE * (longer - squash(first)), MIXING_RATE * (longer - squash(second))
        for at in range(inputs.shape[0]):
            by_node[at, node] += first * inputs[at, node]
            by_level[level, at] += second * inputs[at, node]
        node = 2 * node + longer
    for at in range(SHARES):
        trust.shares[at] *= 1.0 - 1.0 / SHARES_KEPT
    trust.shares[min(int(said * SHARES), SHARES - 1)] += 1.0


@compiled
def learn(keys: Names, seconds: float, hints: Floats, now: float, memory: ContextTables, tick: int) -> None:
    """One more job of these contexts has lasted so long."""
    leaf = bin_of(seconds)
    for at in range(CONTEXTS):
        if keys[at] == np.uint64(0):
            continue
        row = row_for(memory, tick, keys[at])
        if at >= RATIOS:
            ratio = math.floor(place_of(seconds) - place_of(hints[(at - RATIOS) >> 1])) + AS_FORETOLD
            learn_row(row, min(max(ratio, 0), BINS - 1), memory)
            continue
        learn_row(row, leaf, memory)
        if at < STATIC:
            recent = memory.recent[row]
            known = recent[LAST_BIN] >= 0.0
            recent[BEFORE_BIN], recent[LAST_BIN], recent[LAST_END] = recent[LAST_BIN], leaf, now
            recent[AVERAGE_BIN] = recent[AVERAGE_BIN] + 0.3 * (leaf - recent[AVERAGE_BIN]) if known else leaf


@inlined
def learn_row(row: int, leaf: int, memory: ContextTables) -> None:
    """One more example for a row: down the tree to the bin in which it ended."""
    node = 1
    for level in range(LEVELS):
        longer = leaf >> (LEVELS - 1 - level) & 1
        count = memory.seen[row, node]
        for speed in range(SPEEDS):
            chance = squash(memory.lean[row, speed, node])
            chance += max(1.0 / (count + 1.6), FORGETTING[speed]) * (longer - chance)
            memory.lean[row, speed, node] = math.log(chance / (1.0 - chance))
        memory.seen[row, node] = min(count + 1.0, 1e6)
        node = 2 * node + longer


@compiled
def with_progress(survival: Floats, whole: float, width: float) -> Floats:
    """What is believed of a job whose reported progress tells that it lasts `whole` seconds in all, more or less."""
    masses = np.empty(BINS)
    middle = math.log(max(whole, FIRST) / FIRST)
    for at in range(BINS):
        away = abs((at + 0.5) * WIDTH - middle) / width
        masses[at] = (survival[at] - survival[at + 1] + 1e-6) * (math.exp(-away) + 1e-6)
    return survival_from(masses)


@compiled
def times_at(survival: Floats, chances: Floats) -> Floats:
    """The quantiles for several chances."""
    times = np.empty(len(chances))
    for at in range(len(chances)):
        times[at] = time_at(survival, 1.0 - chances[at])
    return times
