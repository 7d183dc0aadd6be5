"""Context tables of the run-time predictor: the contexts of a job, and the durations in each of them. Compiled."""

from __future__ import annotations

from array import array
from math import inf
from typing import Any, NamedTuple

import cython
import numpy as np
import numpy.typing as npt

from refold.model.arrays import view, zeros_on_demand
from refold.predict.layout import (
    ALL,
    AVERAGE_BIN,
    BINS,
    CONTEXTS,
    FULL,
    GPUS,
    HINT_CONTEXTS,
    HINTS,
    HOUR,
    LAST_ARRIVAL,
    LAST_BIN,
    LAST_END,
    OWNER,
    OWNER_RECENT,
    PREVIOUS_BIN,
    PROBES,
    RATES,
    RECENT_COLUMNS,
    RECENT_HINT,
    STATIC_CONTEXTS,
    TABLE_ROWS,
    TENANT,
    TIME_CONTEXTS,
    UNFINISHED,
    Floats,
    Hashes,
    Ints,
    Singles,
)

if not cython.compiled:
    from math import floor, log2

    from refold.predict.survival import edge_time, whole_part

FIRST_FACTOR, SECOND_FACTOR, HASH_BITS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, (1 << 64) - 1


class ContextTables:
    """The contexts, found by their hashes in slots, and what is known of each in a row.

    Rows are numbered as they are needed, so that few jobs use little memory; a context that replaces another one takes
    over its slot and row. The last row is read-only and stands for contexts without examples.
    """

    def __init__(self, slots: Slots, log_odds: Singles, examples: Singles, recent: Floats, used: int) -> None:
        """`used`: number of rows in use. `learned` is increased by everything that changes predictions."""
        self.slots: Slots = slots
        self.rows: tuple[npt.NDArray[Any], ...] = (log_odds, examples, recent)
        self.hashes, self.last_used, self.row_of = view(slots.hashes), view(slots.last_used), view(slots.row_of)
        self.log_odds, self.examples, self.recent = view(log_odds), view(examples), view(recent)
        self.used, self.learned = used, 0

    def __reduce__(self) -> tuple[object, ...]:
        """Return the used slots and rows only: mostly few of them are."""
        at = np.flatnonzero(self.slots.hashes)
        slots = self.slots
        stored = Slots(slots.hashes[at], slots.last_used[at], slots.row_of[at])
        return tables_with_rows, (at, stored, [column[: self.used] for column in self.rows])


class Slots(NamedTuple):
    """Columns of the slots: the hash of the context (0: none), when it was used last, and its row."""

    hashes: Hashes
    last_used: Ints
    row_of: Ints


def empty_tables() -> ContextTables:
    """Return tables without contexts."""
    recent = zeros_on_demand((TABLE_ROWS + 1, RECENT_COLUMNS), np.float64)
    recent[TABLE_ROWS] = (-1.0, -1.0, -1.0, -inf, -inf, 0.0)
    return ContextTables(
        Slots(*(zeros_on_demand((TABLE_ROWS,), kind) for kind in (np.uint64, np.int64, np.int64))),
        zeros_on_demand((TABLE_ROWS + 1, RATES, BINS), np.float32),
        zeros_on_demand((TABLE_ROWS + 1, BINS), np.float32),
        recent,
        0,
    )


def tables_with_rows(at: Ints, stored: Slots, rows: list[npt.NDArray[Any]]) -> ContextTables:
    """Return tables with these slots and rows, from what `__reduce__` has stored."""
    tables = empty_tables()
    for column, values in zip(tables.slots, stored, strict=True):
        column[at] = values
    for column, values in zip(tables.rows, rows, strict=True):
        column[: len(at)] = values
    tables.used = len(at)
    return tables


class JobContexts:
    """The keys of a job's contexts, and the hints of its duration; as of its submission.

    `survival`: the last prediction, and `predicted_at`: how much the tables had learned then; -1: there is none.
    """

    def __init__(self, keys: Hashes, hints: Floats) -> None:
        self.arrays = (keys, hints)
        self.keys, self.hints = view(keys), view(hints)
        self.survival, self.predicted_at = view(np.empty(BINS + 1)), -1

    def __reduce__(self) -> tuple[object, ...]:
        return JobContexts, self.arrays


def combine_hash(hash_value: int, value: int) -> int:
    """Return a hash of a hash and a number; never 0, which means no context."""
    word = (hash_value ^ value) * FIRST_FACTOR & HASH_BITS
    word ^= word >> 29
    word = word * SECOND_FACTOR & HASH_BITS
    return (word ^ (word >> 32)) | 1


def find_row(tables: ContextTables, hash_value: int) -> int:
    """Return the row of a context, or the last row if it has none."""
    if hash_value == 0:
        return TABLE_ROWS
    for probe in range(PROBES):
        slot = ((hash_value >> 40) + probe) & (TABLE_ROWS - 1)
        if tables.hashes[slot] == hash_value:
            return int(tables.row_of[slot])
    return TABLE_ROWS


def find_or_claim_row(tables: ContextTables, tick: int, hash_value: int) -> int:
    """Return the row of a context; if it has none, replace the least recently used one within the probe range."""
    oldest = (hash_value >> 40) & (TABLE_ROWS - 1)
    for probe in range(PROBES):
        slot = ((hash_value >> 40) + probe) & (TABLE_ROWS - 1)
        if tables.hashes[slot] == hash_value:
            tables.last_used[slot] = tick
            return int(tables.row_of[slot])
        if tables.last_used[slot] < tables.last_used[oldest]:
            oldest = slot
    if tables.hashes[oldest] == 0:
        tables.row_of[oldest] = tables.used
        tables.used += 1
    else:
        tables.learned += 1
    tables.hashes[oldest], tables.last_used[oldest] = hash_value, tick
    row = tables.row_of[oldest]
    for node in range(BINS):
        tables.examples[row, node] = 0.0
        for rate in range(RATES):
            tables.log_odds[row, rate, node] = 0.0
    for column in range(RECENT_COLUMNS):
        tables.recent[row, column] = tables.recent[TABLE_ROWS, column]
    return int(row)


def magnitude(number: float) -> int:
    """Return the binary order of magnitude of a number: ≤ 0, 1, 2-3, 4-7, …"""
    return whole_part(log2(max(number, 0.0) + 1.0)) if number < 1e12 else 40


def bin_group(at: float, size: int) -> int:
    """Return the group of adjacent bins that a bin is in; -1: no bin."""
    return whole_part(at) // size if at >= 0.0 else -1


def contexts_of(static: array[int], now: float, hints: Floats, tables: ContextTables) -> JobContexts:
    """Return the contexts of a job that arrives now; write the hint from recent jobs to `hints`."""
    contexts = JobContexts(np.zeros(CONTEXTS, np.uint64), hints)
    write_keys(contexts, static, now, tables)
    return contexts


def write_keys(contexts: JobContexts, static: array[int], now: float, tables: ContextTables) -> None:
    """Write the keys of all contexts of a job that arrives now, and the hint from recent jobs."""
    keys, hints, recent = contexts.keys, contexts.hints, tables.recent
    for at in range(STATIC_CONTEXTS):
        keys[at] = combine_hash(static[at], at)
    for at in range(TENANT, CONTEXTS):
        borrowed = static[STATIC_CONTEXTS + at - TENANT]
        if borrowed != 0:
            keys[at] = combine_hash(borrowed, at)
    full, owner = keys[FULL], keys[OWNER]
    similar, own, whole = find_row(tables, full), find_row(tables, owner), find_row(tables, keys[ALL])
    last, previous, own_last = recent[similar, LAST_BIN], recent[similar, PREVIOUS_BIN], recent[own, LAST_BIN]
    two_hours = whole_part(floor(now / 7200.0) - 12.0 * floor(now / 86_400.0))
    gap, unfinished = magnitude(now - recent[similar, LAST_ARRIVAL]), magnitude(recent[similar, UNFINISHED])
    since_end, own_gap = magnitude(now - recent[similar, LAST_END]), magnitude(now - recent[own, LAST_ARRIVAL])
    keys[7] = combine_hash(combine_hash(full, 7), bin_group(last, 2))
    keys[8] = combine_hash(combine_hash(combine_hash(full, 8), bin_group(last, 4)), bin_group(previous, 4))
    keys[9] = combine_hash(combine_hash(combine_hash(full, 9), gap), unfinished)
    keys[HOUR] = combine_hash(combine_hash(keys[GPUS], 10), two_hours)
    keys[OWNER_RECENT] = combine_hash(
        combine_hash(combine_hash(owner, 11), bin_group(own_last, 3)), bin_group(recent[whole, LAST_BIN], 8)
    )
    keys[12] = combine_hash(combine_hash(combine_hash(full, 12), bin_group(recent[similar, AVERAGE_BIN], 3)), gap // 2)
    keys[13] = combine_hash(combine_hash(full, 13), gap)
    keys[14] = combine_hash(combine_hash(combine_hash(full, 14), since_end // 2), bin_group(last, 3))
    keys[15] = combine_hash(combine_hash(combine_hash(full, 15), own_gap), magnitude(recent[own, UNFINISHED]))
    keys[16] = combine_hash(combine_hash(full, 16), unfinished)
    if last >= 0.0:
        hints[RECENT_HINT] = edge_time(0.5 + (0.5 * (last + previous) if previous >= 0.0 else last))
    for hint in range(HINTS):
        if hints[hint] > 0.0:
            at = TIME_CONTEXTS + 2 * hint
            keys[at], keys[at + 1] = combine_hash(keys[ALL], at), combine_hash(keys[HINT_CONTEXTS[hint]], at + 1)


def count_arrival(contexts: JobContexts, now: float, tables: ContextTables, tick: int) -> None:
    """Count a job of these contexts as unfinished."""
    for at in range(STATIC_CONTEXTS):
        row = find_or_claim_row(tables, tick, contexts.keys[at])
        tables.recent[row, UNFINISHED] += 1.0
        tables.recent[row, LAST_ARRIVAL] = now


def count_departure(contexts: JobContexts, tables: ContextTables) -> None:
    """Count a job of these contexts as no longer unfinished."""
    for at in range(STATIC_CONTEXTS):
        row = find_row(tables, contexts.keys[at])
        if row < TABLE_ROWS:
            tables.recent[row, UNFINISHED] = max(tables.recent[row, UNFINISHED] - 1.0, 0.0)
