"""EASY backfill in one compiled loop, for durations that are known: what `easy` does in the general simulator, faster.

The same kernels keep the timetable and place jobs, so starts and places are the same to the last bit (a property test
says so). Jobs go in the order of arrival and run as asked, once and to their end.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from refold.errors import BadInput, UnknownName
from refold.model import Cluster
from refold.packing import (
    GPU_MASK,
    GPUS,
    MEMORY_ENTRIES,
    NODE,
    RULES,
    DemandHistory,
    Floats,
    Ints,
    RackPowerNow,
    ScoreCache,
    Spans,
    Words,
    change,
    compiled,
    earliest,
    fill_window,
    forget,
    longest,
    longest_on,
    need_of,
    no_racks,
    nothing_expected,
    nothing_known,
    one_span_each,
    place,
)
from refold.simulator.costs import RecordedSpeeds
from refold.simulator.replay import ReplayArrays, Replayed, TaskColumns, pop, push

Filling = Literal["shortest", "order"]

PLACEMENTS = ("first-fit", "best-fit", "worst-fit", "tetris")
"""Rules that remember nothing between placements."""

AT_LEAST = 1.0
"""Seconds: no job is believed to be shorter."""

FORGETS_EVERY = 64
"""After so many moments what is past is forgotten."""


def replay_easy(
    tasks: TaskColumns, cluster: Cluster, placement: str = "best-fit", filling: Filling = "shortest"
) -> Replayed:
    """Run all tasks to their end."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled replay of easy", placement, PLACEMENTS)
    if set(RecordedSpeeds(cluster).speed_of_node.tolist()) != {1.0}:
        raise BadInput("the compiled replay of easy knows no GPUs of different speed: simulate it instead")
    if filling not in get_args(Filling):
        raise UnknownName("filling", filling, get_args(Filling))
    room = ReplayArrays.of(tasks, cluster)
    free = room.free
    _replay(
        RULES[placement][0],
        filling == "shortest",
        one_span_each(free),
        free.nodes,
        free.gpus,
        free.bits,
        room.shapes,
        room.fits,
        tasks.submitted,
        tasks.work,
        tasks.demand_of,
        np.zeros(MEMORY_ENTRIES, dtype=np.int64),
        nothing_expected(),
        nothing_known(0, len(cluster.nodes)),
        no_racks(),
        room.first_place,
        room.places,
        room.started,
        room.ended,
    )
    return Replayed(tasks, room.started, room.ended, room.first_place, room.places)


@compiled
def _book(
    spans: Spans, shapes: Ints, kind: int, places: Ints, first: int, start: float, end: float, sign: int
) -> Spans:
    """Book a place (sign -1), or give it back (1); returns the spans, which may have had to grow."""
    need = need_of(shapes, kind)
    if not start < end:
        return spans
    for row in range(first, first + need.instances):
        node, mask = places[row, NODE], places[row, GPU_MASK]
        while not change(spans, node, start, end, mask, sign * need.milli, sign * need.cpu, sign * need.memory):
            begins = np.full((spans.begins.shape[0], 2 * spans.begins.shape[1]), -np.inf)
            free = np.zeros((spans.free.shape[0], 2 * spans.free.shape[1], spans.free.shape[2]), dtype=np.int64)
            begins[:, : spans.begins.shape[1]] = spans.begins
            free[:, : spans.free.shape[1]] = spans.free
            spans = Spans(spans.number, begins, free)
    return spans


@compiled
def _best_in_line(line: Ints, work: Floats, room: float, shortest_first: bool) -> int:
    """Who of a line, which has the shortest first, would start in so much room: the first of it, or of the queue."""
    best = -1
    for task in line:
        if max(work[task], AT_LEAST) > room:
            break
        if best < 0 or task < best:
            best = task
        if shortest_first:
            break
    return best


@compiled
def _insert(line: Ints, size: int, task: int, work: Floats) -> None:
    """Put a task into a line of `size`: behind those that are as short."""
    distribution = max(work[task], AT_LEAST)
    position = size
    while position > 0 and max(work[line[position - 1]], AT_LEAST) > distribution:
        line[position] = line[position - 1]
        position -= 1
    line[position] = task


@compiled
def _remove(line: Ints, size: int, task: int) -> None:
    position = 0
    while line[position] != task:
        position += 1
    for later in range(position + 1, size):
        line[later - 1] = line[later]


@compiled
def _replay(
    rule: int,
    shortest_first: bool,
    spans: Spans,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    shapes: Ints,
    fits: Ints,
    submitted: Floats,
    work: Floats,
    demand_of: Ints,
    memory: Ints,
    expected: DemandHistory,
    known: ScoreCache,
    racks: RackPowerNow,
    first_place: Ints,
    places: Ints,
    started: Floats,
    ended: Floats,
) -> None:
    count, kinds = len(submitted), len(shapes)
    up = np.ones(nodes.shape[0] - 1, dtype=np.int64)
    least = np.zeros(max(1, int(nodes[:-1, GPUS].max())), dtype=np.int64)
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    line_of = np.zeros(kinds + 1, dtype=np.int64)
    for task in range(count):
        line_of[demand_of[task] + 1] += 1
    line_of = np.cumsum(line_of)
    lines, in_line = np.empty(count, dtype=np.int64), np.zeros(kinds, dtype=np.int64)
    until = np.zeros(kinds)
    opened, is_open = np.empty(nodes.shape[0], dtype=np.int64), np.zeros(nodes.shape[0], dtype=np.bool_)
    arrived = size = waiting = head = moments = 0
    promised, promised_at = -1, np.inf
    while arrived < count or size > 0:
        now = submitted[arrived] if arrived < count else np.inf
        if size > 0:
            now = min(now, times[0])
        now = min(now, promised_at)
        moments += 1
        if moments % FORGETS_EVERY == 0:
            forget(spans, now)

        # 1. What has happened: tasks that end, tasks that arrive.
        opened_now = 0
        while size > 0 and times[0] == now:
            task = pop(times, running, size)
            size -= 1
            kind, first = demand_of[task], first_place[task]
            booked_until = started[task] + max(work[task], AT_LEAST)
            spans = _book(spans, shapes, kind, places, first, now, booked_until, 1)
            for row in range(first, first_place[task + 1]):
                if not is_open[places[row, NODE]]:
                    is_open[places[row, NODE]] = True
                    opened[opened_now] = places[row, NODE]
                    opened_now += 1
        is_open[:] = False
        while arrived < count and submitted[arrived] == now:
            kind = demand_of[arrived]
            if fits[kind]:
                waiting += 1
                if in_line[kind] == 0:
                    until[kind] = np.inf
                _insert(lines[line_of[kind] : line_of[kind + 1]], in_line[kind], arrived, work)
                in_line[kind] += 1
            arrived += 1

        # 2. The first of the queue: it starts, or is promised the earliest place.
        gained = opened_now > 0
        while waiting > 0:
            while not np.isnan(started[head]) or not fits[demand_of[head]]:
                head += 1
            kind, first, distribution = demand_of[head], first_place[head], max(work[head], AT_LEAST)
            demands, need = shapes[kind : kind + 1], need_of(shapes, kind)
            if promised == head and promised_at > now:
                if not gained:
                    break
                gained = False
                spans = _book(spans, shapes, kind, places, first, promised_at, promised_at + distribution, 1)
                start = earliest(spans, nodes, up, demands, distribution, now, promised_at, least)
                if start == np.inf:
                    spans = _book(spans, shapes, kind, places, first, promised_at, promised_at + distribution, -1)
                    break
                opened_now = _open_places(places, first, need.instances, opened, opened_now)
            elif promised == head:
                start = promised_at
                spans = _book(spans, shapes, kind, places, first, start, start + distribution, 1)
            else:
                start = earliest(spans, nodes, up, demands, distribution, now, np.inf, least)
                gained = False
            if promised != head or start != promised_at:
                fill_window(spans, nodes, gpus, bits, start, start + distribution, least)
                place(rule, nodes, gpus, bits, shapes, kind, kind, memory, expected, known, racks, places, first)
            spans = _book(spans, shapes, kind, places, first, start, start + distribution, -1)
            if promised != head:
                _remove(lines[line_of[kind] : line_of[kind + 1]], in_line[kind], head)
                in_line[kind] -= 1
            promised, promised_at = head, start
            if start > now:
                break
            started[head], ended[head] = now, now + work[head]
            push(times, running, size, ended[head], head)
            size += 1
            waiting -= 1
            promised, promised_at = -1, np.inf

        # 3. Others start where there is room for as long as they last.
        if opened_now > 0:
            for kind in range(kinds):
                if in_line[kind] > 0 and until[kind] < np.inf:
                    if shapes[kind, 0] > 1:
                        until[kind] = np.inf
                    else:
                        demands = shapes[kind : kind + 1]
                        lasts = longest_on(spans, nodes, up, opened[:opened_now], demands, now, least)
                        until[kind] = max(until[kind], now + lasts)
        is_open[:] = False
        while True:
            best, best_lasting = -1, np.inf
            for kind in range(kinds):
                if in_line[kind] == 0 or until[kind] <= now:
                    continue
                line = lines[line_of[kind] : line_of[kind] + in_line[kind]]
                task = _best_in_line(line, work, until[kind] - now, shortest_first)
                if task < 0:
                    continue
                distribution = max(work[task], AT_LEAST)
                shorter = distribution < best_lasting or (distribution == best_lasting and task < best)
                if best < 0 or (shorter if shortest_first else task < best):
                    best, best_lasting = task, distribution
            if best < 0:
                break
            kind, first = demand_of[best], first_place[best]
            demands = shapes[kind : kind + 1]
            lasts = longest(spans, nodes, up, demands, now, least)
            until[kind] = now + lasts
            if best_lasting > lasts:
                continue
            fill_window(spans, nodes, gpus, bits, now, now + best_lasting, least)
            place(rule, nodes, gpus, bits, shapes, kind, kind, memory, expected, known, racks, places, first)
            spans = _book(spans, shapes, kind, places, first, now, now + best_lasting, -1)
            _remove(lines[line_of[kind] : line_of[kind + 1]], in_line[kind], best)
            in_line[kind] -= 1
            started[best], ended[best] = now, now + work[best]
            push(times, running, size, ended[best], best)
            size += 1
            waiting -= 1


@compiled
def _open_places(places: Ints, first: int, rows: int, opened: Ints, count: int) -> int:
    """Note the nodes of a place that was left; returns how many are noted."""
    for row in range(first, first + rows):
        known = False
        for position in range(count):
            known = known or opened[position] == places[row, NODE]
        if not known:
            opened[count] = places[row, NODE]
            count += 1
    return count
