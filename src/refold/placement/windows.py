"""When instances fit into the intervals of a timetable, and for how long. Compiled; see `timetable`.

The instances of a gang are counted on all nodes together, or, if it requests that, by domain: in each domain of the
required level on its own, or in as many of these as it accepts, and in whole segments.
"""

from __future__ import annotations

from math import inf

import cython

from refold.placement.layout import FIRST_NODE, LAST_NODE, MOST, REQUIRED, SEGMENT_LEVEL, Ints

if not cython.compiled:
    from math import nextafter

    from refold.placement.allowed import has_request, room_of_largest, segment_size
    from refold.placement.heap import pop, push
    from refold.placement.intervals import (
        FreeIntervals,
        earliest_start_on_node,
        free_duration_on_node,
        has_suitable_gpus,
        instances_in,
        interval_at,
    )
    from refold.placement.kernels import need_at

SPAN, HALF = 1 << 22, 1 << 21
"""Changes of a number of instances are between -HALF and HALF; with the group of a node they are one number."""


def earliest_start(intervals: FreeIntervals, demands: Ints, duration: float, after: float, before: float) -> float:
    """Return the first time in [after, before) from which all instances fit at once for `duration`; inf: none."""
    if not after < before:
        return inf
    intervals.need = need_at(demands, 0)
    best = before
    if intervals.need.instances == 1:
        for node in range(intervals.number.shape[0]):
            best = min(best, earliest_start_on_node(intervals, node, duration, after, best))
            if best <= after:
                return best
        return best if best < before else inf
    required = _required_level(intervals)
    if required < 0:
        return _earliest_start_of_gang(intervals, duration, after, before, -1, 0) if required == -1 else inf
    for domain in range(intervals.allowed.number[required]):
        best = min(best, _earliest_start_of_gang(intervals, duration, after, best, required, domain))
        if best <= after:
            return best
    return best if best < before else inf


def _required_level(intervals: FreeIntervals) -> int:
    """Return the level of which one domain is required; -1: none, or several are accepted, -2: it does not exist."""
    if not has_request(intervals.allowed, intervals.need) or _most(intervals) > 1:
        return -1
    return intervals.allowed.requests[intervals.need.allowed, REQUIRED] - 1


def _most(intervals: FreeIntervals) -> int:
    """Return how many domains of the required level are accepted."""
    if not has_request(intervals.allowed, intervals.need):
        return 1
    if intervals.allowed.requests[intervals.need.allowed, REQUIRED] <= 0:
        return 1
    return intervals.allowed.requests[intervals.need.allowed, MOST]


def _fit_together(intervals: FreeIntervals, fitting: int) -> int:
    """Return how many fit as requested, if so many do in all groups: in as many groups as are accepted."""
    most = _most(intervals)
    if most == 1:
        return fitting
    level = intervals.allowed.requests[intervals.need.allowed, REQUIRED] - 1
    for group in range(intervals.allowed.number[level]):
        intervals.allowed.counts[level, group] = intervals.fitting[group]
    return room_of_largest(intervals.allowed, level, most)


def _group(intervals: FreeIntervals, node: int, segment: int) -> int:
    """Return the group of nodes that are counted together: the domain at the level of segments, or of several."""
    column = REQUIRED if _most(intervals) > 1 else SEGMENT_LEVEL
    if segment == 1 and column == SEGMENT_LEVEL:
        return 0
    level = intervals.allowed.requests[intervals.need.allowed, column] - 1
    return intervals.allowed.domain_of[level, node]


def _start_count(intervals: FreeIntervals) -> int:
    """Set the number of instances that fit in each group to 0, and return the instances of a segment."""
    for group in range(intervals.fitting.shape[0]):
        intervals.fitting[group] = 0
    return segment_size(intervals.allowed, intervals.need)


def _count(intervals: FreeIntervals, group: int, change: int, segment: int) -> int:
    """Change the number of instances that fit in a group, and return by how many segments it has changed."""
    before = intervals.fitting[group] // segment
    intervals.fitting[group] += change
    return intervals.fitting[group] // segment - before


def _first_node(intervals: FreeIntervals, level: int, domain: int) -> int:
    return 0 if level < 0 else intervals.allowed.domains[level, domain, FIRST_NODE]


def _last_node(intervals: FreeIntervals, level: int, domain: int) -> int:
    return intervals.number.shape[0] - 1 if level < 0 else intervals.allowed.domains[level, domain, LAST_NODE]


def _is_outside(intervals: FreeIntervals, node: int, level: int, domain: int) -> bool:
    """Whether instances cannot be placed on a node, or not in a domain (level -1: in the cluster)."""
    if not has_suitable_gpus(intervals, node):
        return True
    return level >= 0 and intervals.allowed.domain_of[level, node] != domain


def _earliest_start_of_gang(
    intervals: FreeIntervals, duration: float, after: float, before: float, level: int, domain: int
) -> float:
    """Slide the window forward and track how many instances fit on all nodes of a domain together.

    The count of a node rises when the window starts at one of its intervals, and falls as soon as the end of the
    window has passed the start of another. So gains count at their time, and losses after it.
    """
    fitting = changes = 0
    segment = _start_count(intervals)
    for node in range(_first_node(intervals, level, domain), _last_node(intervals, level, domain) + 1):
        if _is_outside(intervals, node, level, domain):
            continue
        group = _group(intervals, node, segment)
        fitting += _count(intervals, group, _room_at(intervals, node, after, duration), segment)
        changes = _push_changes(intervals, node, duration, after, before, group, changes)
    wanted = intervals.need.instances // segment
    return (
        after
        if _fit_together(intervals, fitting) >= wanted
        else _first_time_with_all(intervals, changes, fitting, segment)
    )


def _room_at(intervals: FreeIntervals, node: int, start: float, duration: float) -> int:
    """Return how many instances fit on a node for `duration` from a time on."""
    return instances_in(intervals, node, interval_at(intervals, node, start), start + duration)


def _push_changes(
    intervals: FreeIntervals, node: int, duration: float, after: float, before: float, group: int, changes: int
) -> int:
    """Push the times at which the number of instances that fit on a node changes; return how many are on the heap."""
    interval, count = interval_at(intervals, node, after), intervals.number[node]
    fitting_before = instances_in(intervals, node, interval, after + duration)
    next_conflict = interval + 1
    while next_conflict < count and intervals.starts[node, next_conflict] < after + duration:
        next_conflict += 1
    while interval + 1 < count or next_conflict < count:
        starts = intervals.starts[node, interval + 1] if interval + 1 < count else inf
        conflict = intervals.starts[node, next_conflict] - duration if next_conflict < count else inf
        time = min(starts, conflict)
        if time >= before:
            break
        if starts <= conflict:
            interval += 1
            fitting_now = instances_in(intervals, node, interval, time + duration)
        else:
            until = nextafter(intervals.starts[node, next_conflict], inf)
            fitting_now = instances_in(intervals, node, interval, until)
            next_conflict += 1
        if fitting_now != fitting_before:
            change = group * SPAN + HALF + fitting_now - fitting_before
            push(intervals.times, intervals.changes, changes, time, change)
            changes += 1
            fitting_before = fitting_now
    return changes


def _first_time_with_all(intervals: FreeIntervals, changes: int, fitting: int, segment: int) -> float:
    """Return the first time at which all segments fit, if `fitting` do so before so many changes on the heap."""
    wanted = intervals.need.instances // segment
    while changes > 0:
        time, losses = intervals.times[0], 0
        while changes > 0 and intervals.times[0] == time:
            change = pop(intervals.times, intervals.changes, changes)
            changes -= 1
            if change % SPAN > HALF:
                fitting += _count(intervals, change // SPAN, change % SPAN - HALF, segment)
            else:
                intervals.losses[losses] = change
                losses += 1
        if _fit_together(intervals, fitting) >= wanted:
            return time
        for index in range(losses):
            change = intervals.losses[index]
            fitting += _count(intervals, change // SPAN, change % SPAN - HALF, segment)
    return inf


def longest_free_duration(intervals: FreeIntervals, demands: Ints, now: float) -> float:
    """Return for how long all instances fit, from now on."""
    intervals.need, best = need_at(demands, 0), 0.0
    if intervals.need.instances == 1:
        for node in range(intervals.number.shape[0]):
            if has_suitable_gpus(intervals, node):
                best = max(best, free_duration_on_node(intervals, node, now))
                if best == inf:
                    break
        return best
    required = _required_level(intervals)
    if required < 0:
        return _longest_free_duration_of_gang(intervals, now, -1, 0) if required == -1 else 0.0
    for domain in range(intervals.allowed.number[required]):
        best = max(best, _longest_free_duration_of_gang(intervals, now, required, domain))
    return best


def _longest_free_duration_of_gang(intervals: FreeIntervals, now: float, level: int, domain: int) -> float:
    """Extend the window, which starts now, and track how many instances fit in a domain; the count can only fall."""
    fitting = changes = 0
    segment = _start_count(intervals)
    for node in range(_first_node(intervals, level, domain), _last_node(intervals, level, domain) + 1):
        if _is_outside(intervals, node, level, domain):
            continue
        first = interval = interval_at(intervals, node, now)
        fitting_before, group = intervals.need.instances, _group(intervals, node, segment)
        while interval < intervals.number[node] and fitting_before > 0:
            until = intervals.starts[node, interval + 1] if interval + 1 < intervals.number[node] else inf
            fitting_now = instances_in(intervals, node, first, until)
            if interval == first:
                fitting += _count(intervals, group, fitting_now, segment)
            elif fitting_now < fitting_before:
                change = group * SPAN + HALF + fitting_now - fitting_before
                push(intervals.times, intervals.changes, changes, intervals.starts[node, interval], change)
                changes += 1
            fitting_before = fitting_now
            interval += 1
    if _fit_together(intervals, fitting) < intervals.need.instances // segment:
        return 0.0
    return _time_with_all(intervals, changes, fitting, segment) - now


def _time_with_all(intervals: FreeIntervals, changes: int, fitting: int, segment: int) -> float:
    """Return until when all segments fit, if `fitting` do so before so many changes on the heap."""
    while changes > 0:
        time = intervals.times[0]
        change = pop(intervals.times, intervals.changes, changes)
        fitting += _count(intervals, change // SPAN, change % SPAN - HALF, segment)
        changes -= 1
        if _fit_together(intervals, fitting) < intervals.need.instances // segment:
            return time
    return inf
