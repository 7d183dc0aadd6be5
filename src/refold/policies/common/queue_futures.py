"""Possible futures of a queue: when waiting jobs start if runs end, and further jobs arrive, at random times.

The cluster is reduced to the free GPUs of each node. Run times are drawn from predicted distributions, given how long a
run has taken; arrivals repeat a stretch of recent ones. Jobs start in the order of the policy, later ones if earlier
ones do not fit, as `OrderRule` says. The random numbers of a job are the same in all forecasts, so that estimates do
not change without a cause.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled
from refold.packing import Floats, Ints, pop, push

SHARES = np.array([*np.linspace(0.02, 0.98, 25), 0.99, 0.995, 0.999])
"""Shares of a run-time distribution for which its quantiles are stored."""

BACKFILL_SHARE = 20
"""Index of the share of about 0.8: a job overtakes one with a reservation if it will have ended by then."""

MAX_EVENTS = 32_000
"""Number of ends and arrivals that are simulated, in all futures together; then the remaining starts are not known."""

FUTURES_WITHOUT_START = 3
"""If nothing of interest starts in so many futures, no further ones are simulated."""

MAX_ARRIVALS = 2_000
"""Number of arrivals in a future after which the remaining starts are not known."""

MAX_PASSED = 256
"""Number of jobs that do not fit after which no further ones are tried, until something ends or arrives."""

SORT_INTERVAL = 32
"""Number of events after which the queue is sorted again, if ranks change with time."""

STARVING_RANK, PRIORITY_RANK = 1e12, 1e14
"""How far starving jobs, and jobs of a higher priority, are before others."""

_MIN_REST = 1.0
_NOTHING_FAILED = 1 << 60


class OrderRule(NamedTuple):
    """How a policy orders and starts jobs.

    `reserves`: jobs start before the first one only if they will have ended when it can start. `halving`: the rank of a
    job is halved after this time. `starvation`: jobs that have waited this long go first.
    """

    reserves: bool = False
    halving: float = np.inf
    starvation: float = np.inf


class NodeColumns(NamedTuple):
    """The nodes: units of GPUs that may be used, and the number of the GPU type."""

    units: Ints
    gpu_type: Ints


class JobColumns(NamedTuple):
    """Waiting and running jobs, and recent arrivals.

    `quantiles` of the run time, for each of `SHARES`; `elapsed` of it before the present run; `since`: start of that,
    infinite if the job waits; `speed`: of that. A job needs `units` on a node of one of the types in `type_bits`, for
    each of its instances. The smallest `rank` goes first; it is as of now, and that of arrivals as of their submission.
    `queued`: when a job began to wait. `gap`: time since the arrival before. `number`: selects the random numbers;
    negative: the row is not used.
    """

    quantiles: Floats
    elapsed: Floats
    since: Floats
    speed: Floats
    instances: Ints
    units: Ints
    type_bits: Ints
    rank: Floats
    priority: Floats
    queued: Floats
    gap: Floats
    number: Ints


class HeldColumns(NamedTuple):
    """What runs hold: units of a node. `row`: that of the job; negative: the entry is not used."""

    row: Ints
    node: Ints
    units: Ints


class Scene(NamedTuple):
    """The present state: nodes, jobs, what runs hold, the rows of waiting jobs in order, and of recent arrivals.

    `ends`: when runs end (columns: their rows) in each future (rows); NaN: not drawn yet. An end is drawn again if the
    run has not ended by then.
    """

    nodes: NodeColumns
    jobs: JobColumns
    held: HeldColumns
    waiting: Ints
    arrivals: Ints
    ends: Floats


class _Free(NamedTuple):
    """Nodes by type and free units, as linked lists: `first` of each list, `following` and `preceding` of each node."""

    units: Ints
    first: Ints
    following: Ints
    preceding: Ints
    type_of: Ints


class _Line(NamedTuple):
    """Jobs of a future: `order` of those that wait; of each its row, rank when it began to wait, and that time."""

    order: Ints
    row: Ints
    rank: Floats
    queued: Floats


class _Held(NamedTuple):
    """What is held in a future, by node and units, and a heap of the times at which it becomes free."""

    node: Ints
    units: Ints
    times: Floats
    entries: Ints


def simulate_starts(scene: Scene, now: float, targets: Ints, futures: int, rule: OrderRule) -> Floats:
    """Return the start of each target (columns), a position in the queue, in each future (rows); infinite: not known.

    `scene.waiting` has to be sorted by rank.
    """
    starts = np.full((futures, len(targets)), np.inf)
    settings = np.array([float(rule.reserves), rule.halving, rule.starvation])
    if len(targets):
        _simulate(scene, now, targets, settings, starts)
    return starts


@compiled
def _uniform(future: int, number: int) -> float:
    """Return a number between 0 and 1 that depends on these two alone (splitmix64, Steele et al. 2014)."""
    word = np.uint64(future + 1) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number) * np.uint64(0xD1B54A32D192ED03)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word = word ^ (word >> np.uint64(31))
    return float(word >> np.uint64(11)) * 2.0**-53


@compiled
def draw_rest(quantiles: Floats, elapsed: float, uniform: float) -> float:
    """Return the rest of a run time of which `elapsed` has passed, by inverting its distribution.

    Between quantiles the logarithm of the time is linear. Beyond the last one, each doubling is exceeded by half of the
    jobs.
    """
    last = SHARES.shape[0] - 1
    exceeded = _share_exceeded(quantiles, elapsed)
    share = exceeded + (1.0 - exceeded) * uniform
    if share >= SHARES[last]:
        total = quantiles[last] * (1.0 - SHARES[last]) / max(1.0 - share, 1e-9)
    else:
        at = _first_at_least(SHARES, share)
        if at == 0:
            total = quantiles[0] * share / SHARES[0]
        else:
            part = (share - SHARES[at - 1]) / (SHARES[at] - SHARES[at - 1])
            total = quantiles[at - 1] * (quantiles[at] / quantiles[at - 1]) ** part
    return float(max(total - elapsed, _MIN_REST))


@compiled
def _first_at_least(values: Floats, least: float) -> int:
    """Return the index of the first of these sorted values that is no smaller; the last one is."""
    low, high = 0, values.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _share_exceeded(quantiles: Floats, elapsed: float) -> float:
    """Return the share of run times that are shorter than `elapsed`."""
    last = SHARES.shape[0] - 1
    if elapsed <= 0.0:
        return 0.0
    if elapsed >= quantiles[last]:
        return float(1.0 - (1.0 - SHARES[last]) * quantiles[last] / elapsed)
    at = _first_at_least(quantiles, elapsed)
    if at == 0:
        return float(SHARES[0] * elapsed / quantiles[0])
    low, high = quantiles[at - 1], quantiles[at]
    part = np.log(elapsed / low) / np.log(high / low)
    return float(SHARES[at - 1] + part * (SHARES[at] - SHARES[at - 1]))


@compiled
def _simulate(scene: Scene, now: float, targets: Ints, settings: Floats, starts: Floats) -> None:
    futures = starts.shape[0]
    column_of = np.full(scene.waiting.shape[0] + MAX_ARRIVALS, -1, dtype=np.int64)
    for column in range(targets.shape[0]):
        column_of[targets[column]] = column
    events_left, is_known = MAX_EVENTS, False
    for future in range(futures):
        share = events_left // (futures - future)
        events_left -= _simulate_one(scene, now, future, column_of, share, settings, starts[future])
        for column in range(targets.shape[0]):
            is_known = is_known or starts[future, column] < np.inf
        if future + 1 == FUTURES_WITHOUT_START and not is_known:
            return


@compiled
def _simulate_one(
    scene: Scene, now: float, future: int, column_of: Ints, max_events: int, settings: Floats, starts: Floats
) -> int:
    """Write the starts in one future; return the number of events."""
    jobs, arrivals, waiting = scene.jobs, scene.arrivals, scene.waiting.shape[0]
    reserves, halving, starvation = settings[0] > 0.0, settings[1], settings[2]
    free, total_free = _link_nodes(scene)
    held, size, entries = _hold(scene, now, future)
    line, begin, end = _line_up(scene, now, halving), 0, waiting  # what waits is between these positions
    taken = np.empty(_most_instances(scene), dtype=np.int64)
    open_targets, arrived, events = starts.shape[0], 0, 0
    first, reserved = -1, np.inf
    next_arrival, row = np.inf, 0
    if arrivals.shape[0] > 0:
        row = int(_uniform(future, -1) * arrivals.shape[0])
        next_arrival = now + jobs.gap[arrivals[row]] * _uniform(future, -2)
    while True:
        # 1. Start jobs in order. At first nothing starts: the policy has just started what can.
        position, passed = begin, MAX_PASSED if events == 0 else 0
        failed_units, failed_types = _NOTHING_FAILED, 0
        gang_units, gang_instances, gang_types = _NOTHING_FAILED, 0, 0
        while position < end and total_free > 0 and passed < MAX_PASSED:  # those passed are moved to the front
            job = line.order[position]
            own = line.row[job]
            units, instances, types = jobs.units[own], jobs.instances[own], jobs.type_bits[own]
            may_fit = (
                units * instances <= total_free
                and not (units >= failed_units and types == failed_types)
                and not (units >= gang_units and instances >= gang_instances and types == gang_types)
            )
            position += 1
            if may_fit and reserves and passed > 0:
                if first != line.order[begin]:
                    first = line.order[begin]
                    reserved = _earliest_start(free, held, size, jobs, line.row[first], taken)
                may_fit = now + jobs.quantiles[own, BACKFILL_SHARE] <= reserved
            if not (may_fit and _take(free, instances, units, types, taken)):
                if may_fit and instances == 1:
                    failed_units, failed_types = units, types
                elif may_fit:
                    gang_units, gang_instances, gang_types = units, instances, types
                line.order[begin + passed] = job
                passed += 1
                continue
            if entries + instances > held.node.shape[0]:
                return events
            number = jobs.number[own] if job < waiting else job + (1 << 40)
            ends_at = now + draw_rest(jobs.quantiles[own], jobs.elapsed[own], _uniform(future, number))
            for instance in range(instances):
                held.node[entries], held.units[entries] = taken[instance], units
                push(held.times, held.entries, size, ends_at, entries)
                size += 1
                entries += 1
            total_free -= units * instances
            if column_of[job] >= 0:
                starts[column_of[job]] = now
                open_targets -= 1
                if open_targets == 0:
                    return events

        if begin < position != begin + passed:  # the few that were passed are moved, not the many after them
            for back in range(1, passed + 1):
                line.order[position - back] = line.order[begin + passed - back]
            begin = position - passed

        # 2. Continue at the next end or arrival.
        if events == max_events or (size == 0 and next_arrival == np.inf):
            return events
        events += 1
        if size > 0 and held.times[0] <= next_arrival:
            now = max(now, held.times[0])
            while size > 0 and held.times[0] <= now:
                entry = pop(held.times, held.entries, size)
                size -= 1
                total_free += held.units[entry]
                _give(free, held.node[entry], held.units[entry])
        elif arrived == MAX_ARRIVALS:
            return events
        else:
            now, job = next_arrival, waiting + arrived
            line.row[job], line.rank[job], line.queued[job] = arrivals[row], jobs.rank[arrivals[row]], now
            _insert(line, begin, end, job, now, jobs, settings)
            end += 1
            arrived += 1
            row = (row + 1) % arrivals.shape[0]
            next_arrival = now + jobs.gap[arrivals[row]]
        if events % SORT_INTERVAL == 0 and (halving < np.inf or starvation < np.inf):
            _sort(line, begin, end, now, jobs, settings)


# The queue.


@compiled
def _line_up(scene: Scene, now: float, halving: float) -> _Line:
    """Return the queue as it is now. Ranks as of now are converted to those when jobs began to wait."""
    waiting = scene.waiting.shape[0]
    most = waiting + MAX_ARRIVALS
    line = _Line(np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most), np.empty(most))
    for job in range(waiting):
        row = scene.waiting[job]
        line.order[job], line.row[job], line.queued[job] = job, row, scene.jobs.queued[row]
        line.rank[job] = scene.jobs.rank[row] * (1.0 + (now - scene.jobs.queued[row]) / halving)
    return line


@compiled
def _rank(line: _Line, job: int, now: float, jobs: JobColumns, settings: Floats) -> float:
    """Return the rank of a job now: by priority, then starving jobs, then by their own rank."""
    halving, starvation = settings[1], settings[2]
    waited = now - line.queued[job]
    rank = line.rank[job] / (1.0 + waited / halving) - jobs.priority[line.row[job]] * PRIORITY_RANK
    return float(rank - STARVING_RANK if waited >= starvation else rank)


@compiled
def _insert(line: _Line, begin: int, end: int, job: int, now: float, jobs: JobColumns, settings: Floats) -> None:
    """Insert a job into the queue, after those of the same rank."""
    own = _rank(line, job, now, jobs, settings)
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if _rank(line, line.order[middle], now, jobs, settings) <= own:
            low = middle + 1
        else:
            high = middle
    for position in range(end, low, -1):
        line.order[position] = line.order[position - 1]
    line.order[low] = job


@compiled
def _sort(line: _Line, begin: int, end: int, now: float, jobs: JobColumns, settings: Floats) -> None:
    """Sort the queue by the ranks as of now, by insertion: it is nearly sorted."""
    order = line.order[begin:end]
    ranks = np.empty(end - begin)
    for position in range(end - begin):
        job = order[position]
        rank, at = _rank(line, job, now, jobs, settings), position
        while at > 0 and ranks[at - 1] > rank:
            ranks[at], order[at] = ranks[at - 1], order[at - 1]
            at -= 1
        ranks[at], order[at] = rank, job


@compiled
def _most_instances(scene: Scene) -> int:
    most = 1
    for row in scene.waiting:
        most = max(most, scene.jobs.instances[row])
    for row in scene.arrivals:
        most = max(most, scene.jobs.instances[row])
    return most


# What is held, and free, on each node.


@compiled
def _hold(scene: Scene, now: float, future: int) -> tuple[_Held, int, int]:
    """Draw the ends of all runs; return what they hold, with room for more, the size of the heap, and of the rest."""
    jobs, used = scene.jobs, scene.held.row.shape[0]
    capacity = used + MAX_ARRIVALS
    for row in scene.waiting:
        capacity += jobs.instances[row]
    held = _Held(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity),
        np.empty(capacity, dtype=np.int64),
    )
    ends = scene.ends[future]
    size = 0
    for entry in range(used):
        row = scene.held.row[entry]
        held.node[entry], held.units[entry] = scene.held.node[entry], scene.held.units[entry]
        if row < 0:
            continue
        if not ends[row] > now:
            elapsed = jobs.elapsed[row] + (now - jobs.since[row]) * jobs.speed[row]
            rest = draw_rest(jobs.quantiles[row], elapsed, _uniform(future, jobs.number[row]))
            ends[row] = now + rest / jobs.speed[row]
        push(held.times, held.entries, size, ends[row], entry)
        size += 1
    return held, size, used


@compiled
def _link_nodes(scene: Scene) -> tuple[_Free, int]:
    """Return the nodes by free units, and all free units."""
    nodes, held = scene.nodes, scene.held
    count, most, types = nodes.units.shape[0], 0, 1
    for node in range(count):
        most = max(most, nodes.units[node])
        types = max(types, nodes.gpu_type[node] + 1)
    free = _Free(
        nodes.units.copy(),
        np.full((types, most + 1), -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        nodes.gpu_type,
    )
    for entry in range(held.row.shape[0]):
        if held.row[entry] >= 0:
            free.units[held.node[entry]] -= held.units[entry]
    total = 0
    for node in range(count):
        _link(free, node)
        total += max(free.units[node], 0)
    return free, total


@compiled
def _link(free: _Free, node: int) -> None:
    """Add a node to the list of its free units. A node without any, or one that is down and holds runs, is in none."""
    units = free.units[node]
    free.following[node] = free.preceding[node] = -1
    if 0 < units < free.first.shape[1]:
        head = free.first[free.type_of[node], units]
        free.following[node] = head
        if head >= 0:
            free.preceding[head] = node
        free.first[free.type_of[node], units] = node


@compiled
def _unlink(free: _Free, node: int) -> None:
    units = free.units[node]
    if 0 < units < free.first.shape[1]:
        before, after = free.preceding[node], free.following[node]
        if before >= 0:
            free.following[before] = after
        else:
            free.first[free.type_of[node], units] = after
        if after >= 0:
            free.preceding[after] = before


@compiled
def _give(free: _Free, node: int, units: int) -> None:
    _unlink(free, node)
    free.units[node] += units
    _link(free, node)


@compiled
def _take(free: _Free, instances: int, units: int, type_bits: int, taken: Ints) -> bool:
    """Take units for each instance on the node with the least that suffices; nothing if not all instances fit."""
    for instance in range(instances):
        node = _best_fit(free, units, type_bits)
        if node < 0:
            for before in range(instance):
                _give(free, taken[before], units)
            return False
        taken[instance] = node
        _give(free, node, -units)
    return True


@compiled
def _best_fit(free: _Free, units: int, type_bits: int) -> int:
    for enough in range(max(units, 1), free.first.shape[1]):
        for gpu_type in range(free.first.shape[0]):
            if type_bits >> gpu_type & 1 and free.first[gpu_type, enough] >= 0:
                return int(free.first[gpu_type, enough])
    return -1


@compiled
def _earliest_start(free: _Free, held: _Held, size: int, jobs: JobColumns, row: int, taken: Ints) -> float:
    """Return when a job fits if nothing else starts."""
    later = _Free(free.units.copy(), free.first.copy(), free.following.copy(), free.preceding.copy(), free.type_of)
    times, entries = held.times[:size].copy(), held.entries[:size].copy()
    while size > 0:
        now = times[0]
        while size > 0 and times[0] <= now:
            entry = pop(times, entries, size)
            size -= 1
            _give(later, held.node[entry], held.units[entry])
        if _take(later, jobs.instances[row], jobs.units[row], jobs.type_bits[row], taken):
            return float(now)
    return np.inf
