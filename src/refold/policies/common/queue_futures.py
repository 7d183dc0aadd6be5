"""Possible futures of a queue: when waiting jobs start if runs end, and further jobs arrive, at random times.

The cluster is reduced to the free GPUs of each node. Run times are drawn from predicted distributions, given how long a
run has taken; arrivals repeat a stretch of recent ones. Jobs start in the order of the policy, later ones if earlier
ones do not fit, as `OrderRule` says. The random numbers of a job are the same in all forecasts, so that estimates do
not change without a cause.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import cython
import numpy as np
import numpy.typing as npt

from refold.placement import Floats, Ints

if not cython.compiled:
    from math import log, pow

    from refold.placement import pop, push

SHARES = np.array([*np.linspace(0.02, 0.98, 25), 0.99, 0.995, 0.999])
_shares = SHARES
"""Shares of a run-time distribution for which its quantiles are stored; also for kernels."""

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
_FIRST_ARRIVAL = 1 << 40
_FUTURE_HASH, _NUMBER_HASH = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
_FIRST_MIX, _SECOND_MIX = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL_BITS = (1 << 64) - 1

Records = npt.NDArray[np.void]
"""Arrays of `QUEUE_NODE`, `QUEUE_JOB` or `HELD_UNITS`. For kernels, their elements are structs."""

QUEUE_NODE = np.dtype([("units", np.int64), ("gpu_type", np.int64)])
"""A node: units of GPUs that may be used, and the number of the GPU type."""

QUEUE_JOB = np.dtype(
    [
        *((name, np.int64) for name in ("units", "instances", "type_bits", "number")),
        *((name, np.float64) for name in ("elapsed", "since", "speed", "rank", "priority", "queued", "gap")),
    ]
)
"""A waiting or running job, or a recent arrival.

It needs `units` on a node of one of the types in `type_bits`, for each of its instances. `number` selects its random
numbers. `elapsed`: its run time before the present run; `since`: start of that, infinite if the job waits; `speed`: of
that. The smallest `rank` goes first; it is as of now, and that of arrivals as of their submission. `queued`: when the
job began to wait. `gap`: time since the arrival before.
"""

HELD_UNITS = np.dtype([("row", np.int64), ("node", np.int64), ("units", np.int64)])
"""What a run holds: units of a node. `row`: that of the job; negative: the entry is not used."""


class OrderRule(NamedTuple):
    """How a policy orders and starts jobs.

    `reserves`: jobs start before the first one only if they will have ended when it can start. `halving`: the rank of a
    job is halved after this time. `starvation`: jobs that have waited this long go first.
    """

    reserves: bool = False
    halving: float = inf
    starvation: float = inf


class Scene(NamedTuple):
    """The present state: nodes, jobs, what runs hold, the rows of waiting jobs in order, and of recent arrivals.

    `quantiles`: of the run time of each job (rows), for each of `SHARES`. `ends`: when runs end (columns: their rows)
    in each future (rows); NaN: not drawn yet. An end is drawn again if the run has not ended by then.
    """

    nodes: Records
    jobs: Records
    quantiles: Floats
    held: Records
    waiting: Ints
    arrivals: Ints
    ends: Floats


def simulate_starts(scene: Scene, now: float, targets: Ints, futures: int, rule: OrderRule) -> Floats:
    """Return the start of each target (columns), a position in the queue, in each future (rows); infinite: not known.

    `scene.waiting` has to be sorted by rank.
    """
    starts = np.full((futures, len(targets)), inf)
    if not len(targets):
        return starts
    future, events_left = _QueueFuture(scene, targets, starts, rule), MAX_EVENTS
    for number in range(futures):
        events_left -= future.simulate(number, now, events_left // (futures - number))
        if number + 1 == FUTURES_WITHOUT_START and not (starts < inf).any():
            break
    return starts


def _with_attributes(records: Records) -> Records:
    """Return records whose fields are attributes, as those of structs are."""
    return records if cython.compiled else records.view(np.recarray)


class _QueueFuture:
    """One future at a time: the cluster and the queue as they are `now`."""

    def __init__(self, scene: Scene, targets: Ints, starts: Floats, rule: OrderRule) -> None:
        self.jobs, self.quantiles, self.arrivals = _with_attributes(scene.jobs), scene.quantiles, scene.arrivals
        self.ends, self.starts, self.reserves = scene.ends, starts, rule.reserves
        instances, may_start = scene.jobs["instances"], np.concatenate([scene.waiting, scene.arrivals])
        entries = np.empty(len(scene.held) + instances[scene.waiting].sum() + MAX_ARRIVALS, HELD_UNITS)
        taken = np.empty(instances[may_start].max(initial=1), np.int64)
        self.usage, self.later = _NodeUsage(scene, entries, taken), _NodeUsage(scene, entries, taken)
        self.line = _QueueLine(scene, rule)
        target_of = np.full(len(scene.waiting) + MAX_ARRIVALS, -1)
        target_of[targets] = np.arange(len(targets))
        self.target_of = target_of

    def simulate(self, number: int, now: float, max_events: int) -> int:
        """Write the starts in a future; return the number of events.

        At first nothing starts: the policy has just started what can.
        """
        self._begin(number, now)
        while self.events < max_events and self._advance():
            if not self._start_jobs():
                break
        return self.events

    def _begin(self, number: int, now: float) -> None:
        self.number, self.now, self.events = number, now, 0
        self.open_targets = int(self.starts.shape[1])
        self.first, self.reserved = -1, inf
        self.arrival, self.next_arrival = 0, inf
        if len(self.arrivals) > 0:
            self.arrival = int(_uniform(number, -1) * len(self.arrivals))
            self.next_arrival = now + self.jobs[self.arrivals[self.arrival]].gap * _uniform(number, -2)
        self.line.begin(now)
        self.usage.begin()
        for entry in range(self.usage.used):
            if self.usage.entries[entry].row >= 0:
                self.usage.push_end(entry, self._end_of_run(self.usage.entries[entry].row))

    def _end_of_run(self, row: int) -> float:
        """Return when a run ends; it is drawn if it has not been, or if the run has not ended by then."""
        if not self.ends[self.number, row] > self.now:
            job = self.jobs[row]
            elapsed = job.elapsed + (self.now - job.since) * job.speed
            rest = draw_rest(self.quantiles[row], elapsed, _uniform(self.number, int(job.number)))
            self.ends[self.number, row] = self.now + rest / job.speed
        return float(self.ends[self.number, row])

    def _advance(self) -> bool:
        """Continue at the next end or arrival; return whether there is one."""
        end = self.usage.first_end()
        if end == inf and self.next_arrival == inf:
            return False
        self.events += 1
        if end <= self.next_arrival:
            self.now = max(self.now, end)
            self.usage.end_until(self.now)
        elif self.line.is_full():
            return False
        else:
            self.now = self.next_arrival
            self.line.add(self.arrivals[self.arrival], self.now)
            self.arrival = (self.arrival + 1) % len(self.arrivals)
            self.next_arrival = self.now + self.jobs[self.arrivals[self.arrival]].gap
        if self.events % SORT_INTERVAL == 0:
            self.line.sort(self.now)
        return True

    def _start_jobs(self) -> bool:
        """Start the jobs that fit, in order; return whether the start of a target is still open, and can be found."""
        self.failed_units = self.failed_gang_units = self.failed_gang_instances = _NOTHING_FAILED
        self.failed_types = self.failed_gang_types = 0
        position, passed = self.line.front, 0
        while position < self.line.end and self.usage.total_free > 0 and passed < MAX_PASSED:
            job = self.line.order[position]
            position += 1
            if not self._take(job, passed > 0):
                self.line.order[self.line.front + passed] = job
                passed += 1
            elif not self._start(job):
                return False
        self.line.remove(position, passed)
        return True

    def _take(self, job: int, is_behind: bool) -> bool:
        """Take what a job needs, if it may start and fits; not if it needs no less than one that has not fitted."""
        row = self.line.row[job]
        need = self.jobs[row]
        if (
            need.units * need.instances > self.usage.total_free
            or (need.units >= self.failed_units and need.type_bits == self.failed_types)
            or (
                need.units >= self.failed_gang_units
                and need.instances >= self.failed_gang_instances
                and need.type_bits == self.failed_gang_types
            )
            or (self.reserves and is_behind and self.now + self.quantiles[row, BACKFILL_SHARE] > self._reservation())
        ):
            return False
        if self.usage.take(need.instances, need.units, need.type_bits):
            return True
        if need.instances == 1:
            self.failed_units, self.failed_types = need.units, need.type_bits
        else:
            self.failed_gang_units, self.failed_gang_types = need.units, need.type_bits
            self.failed_gang_instances = need.instances
        return False

    def _reservation(self) -> float:
        """Return when the first job in the queue fits if nothing else starts, as of when it became the first."""
        first = self.line.order[self.line.front]
        if self.first != first:
            need = self.jobs[self.line.row[first]]
            self.first, self.reserved = first, inf
            self.later.copy(self.usage)
            while self.reserved == inf and self.later.size > 0:
                end = self.later.first_end()
                self.later.end_until(end)
                if self.later.take(need.instances, need.units, need.type_bits):
                    self.reserved = end
        return float(self.reserved)

    def _start(self, job: int) -> bool:
        """Start a job on the nodes taken; return whether the future goes on."""
        row = self.line.row[job]
        own = self.jobs[row]
        if not self.usage.has_room(own.instances):
            return False
        number = own.number if job < len(self.line.waiting) else job + _FIRST_ARRIVAL
        end = self.now + draw_rest(self.quantiles[row], own.elapsed, _uniform(self.number, int(number)))
        for instance in range(own.instances):
            self.usage.hold(self.usage.taken[instance], own.units, end)
        if self.target_of[job] >= 0:
            self.starts[self.number, self.target_of[job]] = self.now
            self.open_targets -= 1
        return self.open_targets > 0


class _QueueLine:
    """Jobs of a future: of each its row, rank when it began to wait, and that time; `order[front:end]` wait."""

    def __init__(self, scene: Scene, rule: OrderRule) -> None:
        self.jobs, self.waiting = _with_attributes(scene.jobs), scene.waiting
        self.halving, self.starvation = rule.halving, rule.starvation
        most = len(scene.waiting) + MAX_ARRIVALS
        self.order, self.row = np.empty(most, np.int64), np.empty(most, np.int64)
        self.rank, self.queued, self.sorted_ranks = np.empty(most), np.empty(most), np.empty(most)

    def begin(self, now: float) -> None:
        """Line up the jobs that wait now. Ranks as of now are converted to those when jobs began to wait."""
        self.front, self.end, self.count = 0, len(self.waiting), len(self.waiting)
        for job in range(self.count):
            row = self.waiting[job]
            own = self.jobs[row]
            self.order[job], self.row[job], self.queued[job] = job, row, own.queued
            self.rank[job] = own.rank * (1.0 + (now - own.queued) / self.halving)

    def is_full(self) -> bool:
        """Whether no further job can be added."""
        return self.count == len(self.row)

    def add(self, row: int, now: float) -> None:
        """Add an arrival, after jobs of the same rank."""
        job = self.count
        self.row[job], self.rank[job], self.queued[job] = row, self.jobs[row].rank, now
        own = self._rank_at(job, now)
        low, high = self.front, self.end
        while low < high:
            middle = (low + high) // 2
            if self._rank_at(self.order[middle], now) <= own:
                low = middle + 1
            else:
                high = middle
        for position in range(self.end, low, -1):
            self.order[position] = self.order[position - 1]
        self.order[low] = job
        self.end += 1
        self.count += 1

    def remove(self, position: int, passed: int) -> None:
        """Remove jobs before a position, apart from the first few, which were passed: these are moved to it."""
        if position != self.front + passed:
            for back in range(1, passed + 1):
                self.order[position - back] = self.order[self.front + passed - back]
            self.front = position - passed

    def sort(self, now: float) -> None:
        """Sort the queue by the ranks as of now, if they change, by insertion: it is nearly sorted."""
        if self.halving == inf and self.starvation == inf:
            return
        for position in range(self.front, self.end):
            job = self.order[position]
            rank, at = self._rank_at(job, now), position
            while at > self.front and self.sorted_ranks[at - 1] > rank:
                self.sorted_ranks[at], self.order[at] = self.sorted_ranks[at - 1], self.order[at - 1]
                at -= 1
            self.sorted_ranks[at], self.order[at] = rank, job

    def _rank_at(self, job: int, now: float) -> float:
        """Return the rank of a job now: by priority, then starving jobs, then by their own rank."""
        waited = now - self.queued[job]
        rank = self.rank[job] / (1.0 + waited / self.halving) - self.jobs[self.row[job]].priority * PRIORITY_RANK
        if waited >= self.starvation:
            rank -= STARVING_RANK
        return float(rank)


class _NodeUsage:
    """Free units of nodes, and what is held, with a heap of the times at which it becomes free.

    Nodes of a type and with the same free units are linked: `first` of each list, `following` and `preceding` nodes.
    """

    def __init__(self, scene: Scene, entries: Records, taken: Ints) -> None:
        """`entries`: for what is held; `taken`: for the nodes of all instances of a job."""
        self.nodes, self.held = _with_attributes(scene.nodes), _with_attributes(scene.held)
        self.entries, self.taken = _with_attributes(entries), taken
        nodes, types, most = len(scene.nodes), scene.nodes["gpu_type"], scene.nodes["units"]
        self.first = np.empty((types.max(initial=0) + 1, most.max(initial=0) + 1), np.int64)
        self.units, self.following, self.preceding = (np.empty(nodes, np.int64) for _ in range(3))
        self.times, self.heap = np.empty(len(entries)), np.empty(len(entries), np.int64)

    def begin(self) -> None:
        """Restore what is free and held now, without the times at which it becomes free."""
        self.total_free, self.used, self.size = 0, len(self.held), 0
        for gpu_type in range(self.first.shape[0]):
            for units in range(self.first.shape[1]):
                self.first[gpu_type, units] = -1
        for node in range(len(self.nodes)):
            self.units[node] = self.nodes[node].units
        for entry in range(self.used):
            self.entries[entry] = self.held[entry]
            if self.entries[entry].row >= 0:
                self.units[self.entries[entry].node] -= self.entries[entry].units
        for node in range(len(self.nodes)):
            self.total_free += max(self.units[node], 0)
            self._link(node)

    def copy(self, other: _NodeUsage) -> None:
        """Make this a copy of another one with the same entries."""
        self.total_free, self.used, self.size = other.total_free, other.used, other.size
        for node in range(len(self.units)):
            self.units[node] = other.units[node]
            self.following[node], self.preceding[node] = other.following[node], other.preceding[node]
        for gpu_type in range(self.first.shape[0]):
            for units in range(self.first.shape[1]):
                self.first[gpu_type, units] = other.first[gpu_type, units]
        for at in range(other.size):
            self.times[at], self.heap[at] = other.times[at], other.heap[at]

    def has_room(self, instances: int) -> bool:
        """Whether so many instances can be held in addition."""
        return self.used + instances <= len(self.entries)

    def hold(self, node: int, units: int, until: float) -> None:
        """Note until when units are held that have been taken."""
        self.entries[self.used].node, self.entries[self.used].units = node, units
        self.push_end(self.used, until)
        self.used += 1

    def push_end(self, entry: int, at: float) -> None:
        """Note when what an entry holds becomes free."""
        push(self.times, self.heap, self.size, at, entry)
        self.size += 1

    def first_end(self) -> float:
        """Return when something becomes free; infinite: never."""
        return float(self.times[0]) if self.size > 0 else inf

    def end_until(self, now: float) -> None:
        """Free what is held until now."""
        while self.size > 0 and self.times[0] <= now:
            entry = self.entries[pop(self.times, self.heap, self.size)]
            self.size -= 1
            self._give(entry.node, entry.units)

    def take(self, instances: int, units: int, type_bits: int) -> bool:
        """Take units for each instance on the node with the least that suffices; nothing if not all instances fit."""
        for instance in range(instances):
            node = self._best_fit(units, type_bits)
            if node < 0:
                for before in range(instance):
                    self._give(self.taken[before], units)
                return False
            self.taken[instance] = node
            self._give(node, -units)
        return True

    def _best_fit(self, units: int, type_bits: int) -> int:
        for enough in range(max(units, 1), self.first.shape[1]):
            for gpu_type in range(self.first.shape[0]):
                if type_bits >> gpu_type & 1 and self.first[gpu_type, enough] >= 0:
                    return int(self.first[gpu_type, enough])
        return -1

    def _give(self, node: int, units: int) -> None:
        self._unlink(node)
        self.units[node] += units
        self.total_free += units
        self._link(node)

    def _link(self, node: int) -> None:
        """Add a node to the list of its free units; not if it has none, or is down and holds runs."""
        units, gpu_type = self.units[node], self.nodes[node].gpu_type
        self.following[node] = self.preceding[node] = -1
        if 0 < units < self.first.shape[1]:
            head = self.first[gpu_type, units]
            self.following[node] = head
            if head >= 0:
                self.preceding[head] = node
            self.first[gpu_type, units] = node

    def _unlink(self, node: int) -> None:
        units = self.units[node]
        if 0 < units < self.first.shape[1]:
            before, after = self.preceding[node], self.following[node]
            if before >= 0:
                self.following[before] = after
            else:
                self.first[self.nodes[node].gpu_type, units] = after
            if after >= 0:
                self.preceding[after] = before


# Random numbers and run times.


def _uniform(future: int, number: int) -> float:
    """Return a number between 0 and 1 that depends on these two alone (splitmix64, Steele et al. 2014)."""
    word = ((future + 1) * _FUTURE_HASH + number * _NUMBER_HASH) & _ALL_BITS
    word = ((word ^ (word >> 30)) * _FIRST_MIX) & _ALL_BITS
    word = ((word ^ (word >> 27)) * _SECOND_MIX) & _ALL_BITS
    word = word ^ (word >> 31)
    return float(word >> 11) * 2.0**-53


def draw_rest(quantiles: Floats, elapsed: float, uniform: float) -> float:
    """Return the rest of a run time of which `elapsed` has passed, by inverting its distribution.

    Between quantiles the logarithm of the time is linear. Beyond the last one, each doubling is exceeded by half of the
    jobs.
    """
    last = len(_shares) - 1
    exceeded = _share_exceeded(quantiles, elapsed)
    share = exceeded + (1.0 - exceeded) * uniform
    if share >= _shares[last]:
        total = quantiles[last] * (1.0 - _shares[last]) / max(1.0 - share, 1e-9)
    else:
        at = _first_at_least(_shares, share)
        if at == 0:
            total = quantiles[0] * share / _shares[0]
        else:
            part = (share - _shares[at - 1]) / (_shares[at] - _shares[at - 1])
            total = quantiles[at - 1] * pow(quantiles[at] / quantiles[at - 1], part)
    return float(max(total - elapsed, _MIN_REST))


def _share_exceeded(quantiles: Floats, elapsed: float) -> float:
    """Return the share of run times that are shorter than `elapsed`."""
    last = len(_shares) - 1
    if elapsed <= 0.0:
        return 0.0
    if elapsed >= quantiles[last]:
        return float(1.0 - (1.0 - _shares[last]) * quantiles[last] / elapsed)
    at = _first_at_least(quantiles, elapsed)
    if at == 0:
        return float(_shares[0] * elapsed / quantiles[0])
    low, high = quantiles[at - 1], quantiles[at]
    part = log(elapsed / low) / log(high / low)
    return float(_shares[at - 1] + part * (_shares[at] - _shares[at - 1]))


def _first_at_least(values: Floats, least: float) -> int:
    """Return the index of the first of these sorted values that is no smaller; the last one is."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low
