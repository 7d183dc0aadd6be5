"""What is free when: for every node, from each moment on, until the next. Bookings name nodes and GPUs.

A node's time is cut into spans; in each of them the same is free. A booking takes amounts from all spans between its
start and its end, cutting spans where it must, so questions about a window are questions about the few spans in it:
how many instances have room on a node throughout, when there is room first, for how long there is.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from refold.model import WHOLE, Cluster, Demand, Placement, Seconds
from refold.packing.free import Free, mask_of
from refold.packing.jit import compiled, inlined, ones
from refold.packing.kernels import need_of, set_free
from refold.packing.layout import (
    CPU_FREE,
    GPUS,
    MEMORY_FREE,
    TYPE_BIT,
    Floats,
    Ints,
    Need,
    Words,
)

# Columns of a span.
WHOLE_MASK = 0  # which GPUs are wholly free, as bits
CPU = 1
MEMORY = 2
FIRST = 3  # from here on: what is free of each GPU, in thousandths

FEW_SPANS = 8
"""How many spans a node has room for at first."""


class Spans(NamedTuple):
    """The spans of every node: how many there are, when each begins (the last lasts for ever), what is free in it."""

    number: Ints
    begins: Floats
    free: Ints


class Waiting(NamedTuple):
    """Whoever is booked to begin later, a row each: which of `demands`, for how long, from when, where.

    `node` and `mask` say where a single instance is; a gang has -1 there, and is `touched` if it is on a node that is
    looked at.
    """

    demands: Ints
    kind: Ints
    distribution: Floats
    start: Floats
    node: Ints
    mask: Ints
    touched: Ints


class Timetable:
    """What is free when, on one cluster; nodes that are down have room for nobody."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._empty = Free(cluster)
        self._window = Free(cluster)
        self._up = np.ones(len(cluster.nodes), dtype=np.int64)
        self._spans = one_span_each(self._empty)
        self._scratch = np.zeros(max(1, int(self._empty.nodes[:-1, GPUS].max())), dtype=np.int64)

    def set_up(self, node: int, up: bool) -> None:
        """A node was lost, or has returned; what is booked on it stays booked."""
        self._up[node] = up
        self._window.set_up(node, up)

    def book(self, placement: Placement, start: Seconds, end: Seconds) -> None:
        """Take a placement from `start` to `end`. Whoever asks has seen that it is free, or knows why it is not."""
        self._change(placement, start, end, -1)

    def give_back(self, placement: Placement, start: Seconds, end: Seconds) -> None:
        """What was booked is free again in this time."""
        self._change(placement, start, end, 1)

    def _change(self, placement: Placement, start: Seconds, end: Seconds, sign: int) -> None:
        if not start < end:
            return
        for share in placement:
            amounts = (
                mask_of(share.gpus),
                sign * share.gpu_milli,
                sign * share.cpu_milli,
                sign * share.memory_mib,
            )
            while not change(self._spans, share.node, start, end, *amounts):
                self._spans = _with_more_room(self._spans)

    def forget_before(self, now: Seconds) -> None:
        """What was free in the past is nobody's business."""
        forget(self._spans, now)

    def earliest(self, demand: Demand, distribution: Seconds, after: Seconds, before: Seconds = inf) -> Seconds:
        """The first moment in [after, before) from which all instances have room at once for so long; inf: none."""
        vector = self._empty.vector(demand)
        return earliest(self._spans, self._empty.nodes, self._up, vector, distribution, after, before, self._scratch)

    def longest(self, demand: Demand, now: Seconds) -> Seconds:
        """For how long all instances have room, from now on."""
        vector = self._empty.vector(demand)
        return longest(self._spans, self._empty.nodes, self._up, vector, now, self._scratch)

    def longest_on(self, some: Ints, demand: Demand, now: Seconds) -> Seconds:
        """For how long one instance has room on some of the nodes, from now on."""
        vector = self._empty.vector(demand)
        return longest_on(self._spans, self._empty.nodes, self._up, some, vector, now, self._scratch)

    def first_to_gain(self, waiting: Waiting, order: Ints, position: int, some: Ints, now: Seconds, looks: Ints) -> int:
        """Who, from a position in the order on, could begin earlier because of what is free on some of the nodes.

        Its position; -1: nobody. Every look at a node is counted off `looks`.
        """
        return first_to_gain(
            self._spans, self._empty.nodes, self._up, waiting, order, position, some, now, looks, self._scratch
        )

    def is_overbooked(self, placement: Placement, start: Seconds, end: Seconds) -> bool:
        """Whether more is booked than there is of something that a placement takes, at some time between."""
        return any(
            is_overbooked(
                self._spans, share.node, start, end, mask_of(share.gpus), share.cpu_milli > 0, share.memory_mib > 0
            )
            for share in placement
        )

    def vector(self, demand: Demand) -> Ints:
        """A demand as the kernels read it."""
        return self._empty.vector(demand)

    def free_during(self, start: Seconds, end: Seconds) -> Free:
        """What is free throughout a window, for a placer to take from. The next question reuses the same arrays."""
        free = self._window
        fill_window(self._spans, free.nodes, free.gpus, free.bits, start, end, self._scratch)
        return free


def one_span_each(free: Free) -> Spans:
    nodes = len(free.nodes) - 1
    most = int(free.nodes[:-1, GPUS].max())
    spans = Spans(
        np.ones(nodes, dtype=np.int64),
        np.full((nodes, FEW_SPANS), -inf),
        np.zeros((nodes, FEW_SPANS, FIRST + most), dtype=np.int64),
    )
    for node in range(nodes):
        row = free.nodes[node]
        spans.free[node, 0, WHOLE_MASK] = (1 << int(row[GPUS])) - 1
        spans.free[node, 0, CPU], spans.free[node, 0, MEMORY] = row[CPU_FREE], row[MEMORY_FREE]
        spans.free[node, 0, FIRST : FIRST + int(row[GPUS])] = WHOLE
    return spans


def _with_more_room(spans: Spans) -> Spans:
    """The same spans, with room for twice as many on every node."""
    begins = np.concatenate([spans.begins, np.full_like(spans.begins, -inf)], axis=1)
    return Spans(spans.number, begins, np.concatenate([spans.free, np.zeros_like(spans.free)], axis=1))


# --- spans of one node --------------------------------------------------------------------------------------


@inlined
def _span_at(spans: Spans, node: int, moment: float) -> int:
    """The span that a moment is in."""
    begins, low, high = spans.begins, 0, spans.number[node] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if begins[node, middle] <= moment:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def _cut(spans: Spans, node: int, moment: float) -> int:
    """Have a span begin at a moment; returns which."""
    at = _span_at(spans, node, moment)
    if spans.begins[node, at] == moment:
        return at
    for span in range(spans.number[node], at + 1, -1):
        spans.begins[node, span] = spans.begins[node, span - 1]
        spans.free[node, span] = spans.free[node, span - 1]
    spans.begins[node, at + 1] = moment
    spans.free[node, at + 1] = spans.free[node, at]
    spans.number[node] += 1
    return at + 1


@inlined
def _join(spans: Spans, node: int, span: int) -> None:
    """If a span is like the one before it, make them one."""
    if not 0 < span < spans.number[node]:
        return
    for column in range(spans.free.shape[2]):
        if spans.free[node, span, column] != spans.free[node, span - 1, column]:
            return
    for later in range(span + 1, spans.number[node]):
        spans.begins[node, later - 1] = spans.begins[node, later]
        spans.free[node, later - 1] = spans.free[node, later]
    spans.number[node] -= 1


@compiled
def change(spans: Spans, node: int, start: float, end: float, mask: int, milli: int, cpu: int, memory: int) -> bool:
    """Add amounts (negative: take them) from `start` to `end`; False: more spans are needed than there is room for."""
    if spans.number[node] + 2 > spans.begins.shape[1]:
        return False
    start = max(start, spans.begins[node, 0])  # what was before is forgotten
    if start >= end:
        return True
    first = _cut(spans, node, start)
    last = _cut(spans, node, end) if end < np.inf else spans.number[node]
    for span in range(first, last):
        spans.free[node, span, CPU] += cpu
        spans.free[node, span, MEMORY] += memory
        left, gpu, whole = mask, 0, spans.free[node, span, WHOLE_MASK]
        while left:
            if left & 1:
                spans.free[node, span, FIRST + gpu] += milli
                if spans.free[node, span, FIRST + gpu] == WHOLE:
                    whole |= 1 << gpu
                else:
                    whole &= ~(1 << gpu)
            left >>= 1
            gpu += 1
        spans.free[node, span, WHOLE_MASK] = whole
    _join(spans, node, last)
    _join(spans, node, first)
    return True


@compiled
def is_overbooked(spans: Spans, node: int, start: float, end: float, mask: int, cpu: bool, memory: bool) -> bool:
    """Whether more is booked than there is of some GPUs of a node, of its CPUs or memory, at some time between."""
    first = span = _span_at(spans, node, start)
    while span < spans.number[node] and (span == first or spans.begins[node, span] < end):
        if (cpu and spans.free[node, span, CPU] < 0) or (memory and spans.free[node, span, MEMORY] < 0):
            return True
        for gpu in range(spans.free.shape[2] - FIRST):
            if mask >> gpu & 1 and spans.free[node, span, FIRST + gpu] < 0:
                return True
        span += 1
    return False


@compiled
def forget(spans: Spans, now: float) -> None:
    """Drop the spans that are over."""
    for node in range(len(spans.number)):
        over = _span_at(spans, node, now)
        if over > 0:
            for span in range(over, spans.number[node]):
                spans.begins[node, span - over] = spans.begins[node, span]
                spans.free[node, span - over] = spans.free[node, span]
            spans.number[node] -= over


# --- windows ------------------------------------------------------------------------------------------------


@inlined
def _parts(least: Ints, gpus: int, need: Need) -> int:
    """How many instances have room on GPUs with so much free each: as many take one part of different GPUs each."""
    room, parts = need.instances, need.gpus * need.instances
    while room > 0:
        parts = 0
        for gpu in range(gpus):
            parts += min(room, max(least[gpu], 0) // need.milli)
        if parts >= room * need.gpus:
            break
        room = parts // need.gpus
    return room


@inlined
def _room_in(spans: Spans, nodes: Ints, node: int, first: int, until: float, need: Need, least: Ints) -> int:
    """How many instances have room on a node from the beginning of a span to `until`, or from within it."""
    gpus, whole, cpu, memory = nodes[node, GPUS], -1, spans.free[node, first, CPU], spans.free[node, first, MEMORY]
    shared = need.gpus > 0 and need.milli < WHOLE
    if shared:
        for gpu in range(gpus):
            least[gpu] = WHOLE
    span = first
    while span < spans.number[node] and (span == first or spans.begins[node, span] < until):
        whole &= spans.free[node, span, WHOLE_MASK]
        cpu = min(cpu, spans.free[node, span, CPU])
        memory = min(memory, spans.free[node, span, MEMORY])
        if shared:
            for gpu in range(gpus):
                least[gpu] = min(least[gpu], spans.free[node, span, FIRST + gpu])
        elif need.gpus > 0 and ones(np.uint64(whole)) < need.gpus:
            return 0
        span += 1
    room = need.instances
    if shared:
        room = _parts(least, gpus, need)
    elif need.gpus > 0:
        room = min(room, ones(np.uint64(whole)) // need.gpus)
    if need.cpu > 0:
        room = min(room, cpu // need.cpu)
    if need.memory > 0:
        room = min(room, memory // need.memory)
    return max(room, 0)


@inlined
def _has_right_gpus(nodes: Ints, up: Ints, node: int, need: Need) -> bool:
    right = up[node] != 0 and nodes[node, GPUS] >= need.gpus
    return right and (need.gpus == 0 or nodes[node, TYPE_BIT] & need.types != 0)


@compiled
def first_to_gain(
    spans: Spans,
    nodes: Ints,
    up: Ints,
    waiting: Waiting,
    order: Ints,
    position: int,
    some: Ints,
    now: float,
    looks: Ints,
    least: Ints,
) -> int:
    """Who, from a position in the order on, has room for an instance on one of some nodes before it is to begin."""
    while position < len(order):
        row = order[position]
        start, need = waiting.start[row], need_of(waiting.demands, waiting.kind[row])
        one = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types)
        if now < start < np.inf:
            if need.instances > 1 and waiting.touched[row]:
                return position
            for node in some:
                looks[0] -= 1
                own = waiting.node[row] == node
                if own:  # what it is booked on itself is not in its way
                    mask, end = waiting.mask[row], start + waiting.distribution[row]
                    if not change(spans, node, start, end, mask, need.milli, need.cpu, need.memory):
                        return position  # there is no room to try: it is looked at wholly
                before = start
                found = _first_on_node(spans, nodes, up, node, one, waiting.distribution[row], now, before, least)
                if own:
                    change(spans, node, start, end, mask, -need.milli, -need.cpu, -need.memory)
                if found < start:
                    return position
        position += 1
    return -1


@inlined
def _first_on_node(
    spans: Spans,
    nodes: Ints,
    up: Ints,
    node: int,
    need: Need,
    distribution: float,
    after: float,
    before: float,
    least: Ints,
) -> float:
    """The first moment in [after, before) from which one instance has room on a node for so long."""
    if not _has_right_gpus(nodes, up, node, need):
        return np.inf
    span, moment = _span_at(spans, node, after), after
    while moment < before:
        if _room_in(spans, nodes, node, span, moment + distribution, need, least) > 0:
            return moment
        span += 1
        if span >= spans.number[node]:
            return np.inf
        moment = spans.begins[node, span]
    return np.inf


@compiled
def earliest(
    spans: Spans, nodes: Ints, up: Ints, demands: Ints, distribution: float, after: float, before: float, least: Ints
) -> float:
    """The first moment in [after, before) from which all instances have room at once for so long; inf: none."""
    need = need_of(demands, 0)
    if not after < before:
        return np.inf
    if need.instances > 1:
        return _earliest_gang(spans, nodes, up, need, distribution, after, before, least)
    best = before
    for node in range(nodes.shape[0] - 1):
        best = min(best, _first_on_node(spans, nodes, up, node, need, distribution, after, best, least))
        if best <= after:
            return best
    return best if best < before else np.inf


@compiled
def _earliest_gang(
    spans: Spans, nodes: Ints, up: Ints, need: Need, distribution: float, after: float, before: float, least: Ints
) -> float:
    """Room of all nodes together, as the beginning of the window moves on.

    A node gains room when a window begins with one of its spans, and loses some as soon as the window's end has passed
    the beginning of another. So gains count at their moment, and losses after it.
    """
    room, changes = 0, 0
    for node in range(nodes.shape[0] - 1):
        changes += 2 * spans.number[node]
    moments, steps = np.empty(changes), np.empty(changes, dtype=np.int64)
    changes = 0
    for node in range(nodes.shape[0] - 1):
        if not _has_right_gpus(nodes, up, node, need):
            continue
        span, count = _span_at(spans, node, after), spans.number[node]
        here = _room_in(spans, nodes, node, span, after + distribution, need, least)
        room += here
        ending = span + 1
        while ending < count and spans.begins[node, ending] < after + distribution:
            ending += 1
        while span + 1 < count or ending < count:
            begins = spans.begins[node, span + 1] if span + 1 < count else np.inf
            touches = spans.begins[node, ending] - distribution if ending < count else np.inf
            moment = min(begins, touches)
            if moment >= before:
                break
            if begins <= touches:
                span += 1
                there = _room_in(spans, nodes, node, span, moment + distribution, need, least)
            else:
                until = np.nextafter(spans.begins[node, ending], np.inf)
                there = _room_in(spans, nodes, node, span, until, need, least)
                ending += 1
            if there != here:
                moments[changes], steps[changes] = moment, there - here
                changes += 1
                here = there
    if room >= need.instances:
        return after
    return _first_with_room(moments[:changes], steps[:changes], room, need.instances)


@compiled
def _first_with_room(moments: Floats, steps: Ints, room: int, wanted: int) -> float:
    """When the room, which changes at moments by steps, is as much as is wanted."""
    order = np.argsort(moments)
    position = 0
    while position < len(order):
        moment, losses = moments[order[position]], 0
        while position < len(order) and moments[order[position]] == moment:
            step = steps[order[position]]
            room += max(step, 0)
            losses += min(step, 0)
            position += 1
        if room >= wanted:
            return moment
        room += losses
    return np.inf


@inlined
def _lasts_on_node(spans: Spans, nodes: Ints, node: int, need: Need, now: float, least: Ints) -> float:
    """For how long one instance has room on a node, from now on."""
    first = span = _span_at(spans, node, now)
    while span < spans.number[node]:
        until = spans.begins[node, span + 1] if span + 1 < spans.number[node] else np.inf
        if _room_in(spans, nodes, node, first, until, need, least) == 0:
            return spans.begins[node, span] - now if span > first else 0.0
        span += 1
    return np.inf


@compiled
def longest(spans: Spans, nodes: Ints, up: Ints, demands: Ints, now: float, least: Ints) -> float:
    """For how long all instances have room from now on."""
    need = need_of(demands, 0)
    if need.instances == 1:
        best = 0.0
        for node in range(nodes.shape[0] - 1):
            if _has_right_gpus(nodes, up, node, need):
                best = max(best, _lasts_on_node(spans, nodes, node, need, now, least))
                if best == np.inf:
                    return best
        return best
    return _longest_gang(spans, nodes, up, need, now, least)


@compiled
def longest_on(spans: Spans, nodes: Ints, up: Ints, some: Ints, demands: Ints, now: float, least: Ints) -> float:
    """For how long one instance has room on one of some nodes, from now on."""
    need = need_of(demands, 0)
    one = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types)
    best = 0.0
    for node in some:
        if _has_right_gpus(nodes, up, node, one):
            best = max(best, _lasts_on_node(spans, nodes, node, one, now, least))
    return best


@compiled
def _longest_gang(spans: Spans, nodes: Ints, up: Ints, need: Need, now: float, least: Ints) -> float:
    """Room of all nodes together as the window, which begins now, grows: it can only become less."""
    room, changes = 0, 0
    for node in range(nodes.shape[0] - 1):
        changes += spans.number[node]
    moments, steps = np.empty(changes), np.empty(changes, dtype=np.int64)
    changes = 0
    for node in range(nodes.shape[0] - 1):
        if not _has_right_gpus(nodes, up, node, need):
            continue
        first = _span_at(spans, node, now)
        span, here = first, need.instances
        while span < spans.number[node] and here > 0:
            until = spans.begins[node, span + 1] if span + 1 < spans.number[node] else np.inf
            there = _room_in(spans, nodes, node, first, until, need, least)
            if span == first:
                room += there
            elif there < here:
                moments[changes], steps[changes] = spans.begins[node, span], there - here
                changes += 1
            here = there
            span += 1
    if room < need.instances:
        return 0.0
    order = np.argsort(moments[:changes])
    for position in order:
        room += steps[position]
        if room < need.instances:
            return moments[position] - now
    return np.inf


@compiled
def fill_window(spans: Spans, nodes: Ints, gpus: Ints, bits: Words, start: float, end: float, least: Ints) -> None:
    """Write what is free throughout a window into the arrays that placement rules work on."""
    for node in range(nodes.shape[0] - 1):
        span = first = _span_at(spans, node, start)
        cpu, memory = spans.free[node, first, CPU], spans.free[node, first, MEMORY]
        for gpu in range(nodes[node, GPUS]):
            least[gpu] = spans.free[node, first, FIRST + gpu]
        span += 1
        while span < spans.number[node] and spans.begins[node, span] < end:
            cpu, memory = min(cpu, spans.free[node, span, CPU]), min(memory, spans.free[node, span, MEMORY])
            for gpu in range(nodes[node, GPUS]):
                least[gpu] = min(least[gpu], spans.free[node, span, FIRST + gpu])
            span += 1
        for gpu in range(nodes[node, GPUS]):
            least[gpu] = max(least[gpu], 0)
        set_free(nodes, gpus, bits, node, least, max(cpu, 0), max(memory, 0))
