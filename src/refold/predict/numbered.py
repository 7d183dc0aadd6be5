"""The predictor for compiled loops: the same predictions as `Predictor`, for jobs that are numbered beforehand.

Jobs that have been submitted and not finished have a record in a slot: the keys of their contexts, and the prediction
with its inputs, as half-precision numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refold.jit import compiled, struct
from refold.model import Job
from refold.predict.kernels import (
    BINS,
    CONTEXTS,
    HINTS,
    LEVELS,
    LIMIT_HINT,
    LIMITED,
    RATES,
    STATIC_CONTEXTS,
    TENANT,
    TIME_CONTEXTS,
    ContextTables,
    Floats,
    Hashes,
    Ints,
    MixingWeights,
    Singles,
    bin_of,
    calibrate,
    collect_inputs,
    context_keys,
    count_arrival,
    count_departure,
    hint_count,
    mix_survival,
    predict_survival,
    survival_at,
    time_exceeded_with,
    update_contexts,
    update_weights,
)
from refold.predict.predictor import (
    empty_tables,
    hash_fields,
    hint_seconds,
    initial_weights,
    job_kind,
    prior,
    ratio_priors,
)

Halves = npt.NDArray[np.uint16]

INITIAL_SLOTS = 256

STATIC_HASHES = STATIC_CONTEXTS + CONTEXTS - TENANT
"""Number of hashes of a kind of job: of its static contexts, and of those that it borrows from."""

# Entries of `counters`. `GENERATION`: how often the contexts or weights of predictions have changed.
TICK, FREE_SLOTS, GENERATION = range(3)


@struct
class NumberedPredictor:
    """The state of the predictor. `static`: the hashes of each kind of job; `slot_of`: -1 for jobs without a record.

    The arrays from `keys` on are the records, by slot. `free_slots` is a stack of the unused ones. While `generation`
    is the current one, the prediction for a waiting job is that of its record.
    """

    static: Hashes
    kind_of: Ints
    limit: Floats
    tables: ContextTables
    weights: MixingWeights
    prior: Singles
    ratio_priors: Singles
    counters: Ints
    slot_of: Ints
    keys: Hashes
    hints: Floats
    inputs: Halves
    experience: Ints
    survival: Floats
    generation: Ints
    free_slots: Ints

    @staticmethod
    def allocate(jobs: Sequence[Job]) -> NumberedPredictor:
        """Return a predictor that has learned nothing yet, for jobs whose number of steps is unknown."""
        kinds: dict[tuple[object, ...], int] = {}
        first_of_kind: list[Job] = []
        kind_of = np.empty(len(jobs), dtype=np.int64)
        for number, job in enumerate(jobs):
            kind_of[number] = kind = kinds.setdefault(job_kind(job), len(kinds))
            if kind == len(first_of_kind):
                first_of_kind.append(job)
        hinted = 2 if any(hint_seconds(job.time_limit) for job in jobs) else 1
        return NumberedPredictor(
            np.array([hash_fields(job) for job in first_of_kind], np.uint64).reshape(-1, STATIC_HASHES),
            kind_of,
            np.array([math.inf if job.time_limit is None else job.time_limit for job in jobs], dtype=np.float64),
            empty_tables(),
            initial_weights(),
            prior(),
            ratio_priors(),
            counters=np.array([0, INITIAL_SLOTS, 0], dtype=np.int64),
            slot_of=np.full(len(jobs), -1, dtype=np.int64),
            keys=np.zeros((INITIAL_SLOTS, CONTEXTS), np.uint64),
            hints=np.zeros((INITIAL_SLOTS, HINTS)),
            inputs=np.zeros((INITIAL_SLOTS, 1 + (TIME_CONTEXTS + hinted) * RATES, BINS), np.uint16),
            experience=np.zeros(INITIAL_SLOTS, np.int64),
            survival=np.zeros((INITIAL_SLOTS, BINS + 1)),
            generation=np.zeros(INITIAL_SLOTS, np.int64),
            free_slots=np.arange(INITIAL_SLOTS),
        )


@compiled
def _free_slot(predictor: NumberedPredictor) -> int:
    """Return an unused slot; double their number if there is none."""
    counters = predictor.counters
    if counters[FREE_SLOTS] == 0:
        slots = predictor.experience.shape[0]
        predictor.keys = np.concatenate((predictor.keys, np.zeros_like(predictor.keys)))
        predictor.hints = np.concatenate((predictor.hints, np.zeros_like(predictor.hints)))
        predictor.inputs = np.concatenate((predictor.inputs, np.zeros_like(predictor.inputs)))
        predictor.experience = np.concatenate((predictor.experience, np.zeros_like(predictor.experience)))
        predictor.survival = np.concatenate((predictor.survival, np.zeros_like(predictor.survival)))
        predictor.generation = np.concatenate((predictor.generation, np.zeros_like(predictor.generation)))
        predictor.free_slots = np.arange(slots, 3 * slots)
        counters[FREE_SLOTS] = slots
    return int(predictor.free_slots[counters[FREE_SLOTS] - 1])


@compiled
def _to_halves(inputs: Singles, halves: Halves) -> None:
    """Round to half precision, to the nearest and to even, and store the bits. All numbers must be below 65,504."""
    for at in range(inputs.shape[0]):
        words = inputs[at].view(np.int32)
        for node in range(BINS):
            word = words[node]
            sign, size = (word >> 16) & 0x8000, word & 0x7FFFFFFF
            if size >= 0x38800000:
                half = ((size + 0xFFF + ((size >> 13) & 1)) >> 13) - (112 << 10)
            else:  # below 2^-14 the steps are 2^-24
                half = np.int32(np.rint(abs(inputs[at, node]) * np.float32(16777216.0)))
            halves[at, node] = np.uint16(sign | half)


@compiled
def _from_half(half: int) -> float:
    sign, exponent, fraction = -1.0 if half >> 15 else 1.0, (half >> 10) & 31, half & 1023
    return sign * (math.ldexp(fraction + 1024.0, exponent - 25) if exponent else math.ldexp(float(fraction), -24))


@compiled
def _hints_of(predictor: NumberedPredictor, job: int) -> Floats:
    hints, limit = np.zeros(HINTS), predictor.limit[job]
    if limit < np.inf:
        hints[LIMIT_HINT] = limit
    return hints


@compiled
def _variant_of(hints: Floats) -> int:
    return LIMITED if hints[LIMIT_HINT] > 0.0 else 0


@compiled
def _record(predictor: NumberedPredictor, job: int, slot: int, now: float) -> None:
    """Write the record of a job to a slot."""
    hints = _hints_of(predictor, job)
    keys = context_keys(predictor.static[predictor.kind_of[job]], now, hints, predictor.tables)
    inputs, experience = collect_inputs(keys, hints, predictor.tables, predictor.prior, predictor.ratio_priors)
    predictor.keys[slot], predictor.hints[slot], predictor.experience[slot] = keys, hints, experience
    predictor.survival[slot] = mix_survival(inputs, _variant_of(hints), experience, predictor.weights)
    _to_halves(inputs, predictor.inputs[slot])


@compiled
def submit_numbered(predictor: NumberedPredictor, job: int, now: float) -> None:
    """Record the submission of a job."""
    counters, slot = predictor.counters, _free_slot(predictor)
    counters[FREE_SLOTS] -= 1
    _record(predictor, job, slot, now)
    predictor.slot_of[job] = slot
    counters[TICK] += 1
    predictor.generation[slot] = counters[GENERATION]
    counters[GENERATION] += count_arrival(predictor.keys[slot], now, predictor.tables, counters[TICK])


@compiled
def expected_survival(predictor: NumberedPredictor, job: int, now: float) -> Floats:
    """Return the predicted probability to exceed each bin edge."""
    slot = predictor.slot_of[job]
    if slot >= 0 and predictor.generation[slot] == predictor.counters[GENERATION]:
        return calibrate(predictor.survival[slot], predictor.weights.calibration)
    if slot >= 0:
        keys, hints = predictor.keys[slot], predictor.hints[slot]
    else:
        hints = _hints_of(predictor, job)
        keys = context_keys(predictor.static[predictor.kind_of[job]], now, hints, predictor.tables)
    return predict_survival(
        keys,
        hints,
        _variant_of(hints),
        predictor.tables,
        predictor.prior,
        predictor.ratio_priors,
        predictor.weights,
    )


@compiled
def quantile_beyond(survival: Floats, elapsed: float, limit: float, quantile: float) -> float:
    """Return a quantile of a run time, which exceeds `elapsed` and is at most `limit`, unless that has passed."""
    ceiling = limit if elapsed < limit else np.inf
    probability = survival_at(survival, elapsed) * (1.0 - quantile)
    return min(max(time_exceeded_with(survival, probability), elapsed), ceiling)


@compiled
def finish_numbered(predictor: NumberedPredictor, job: int, seconds: float, now: float) -> None:
    """Learn from a job that has finished after `seconds`."""
    counters, slot = predictor.counters, predictor.slot_of[job]
    if slot < 0:
        slot = _free_slot(predictor)
        _record(predictor, job, slot, now)
    else:
        count_departure(predictor.keys[slot], predictor.tables)
        predictor.free_slots[counters[FREE_SLOTS]] = slot
        counters[FREE_SLOTS] += 1
        predictor.slot_of[job] = -1
    survival, hints = predictor.survival[slot], predictor.hints[slot]
    probability = 1.0 - survival_at(survival, seconds) / survival_at(survival, 0.0) if seconds > 0.0 else 0.0
    predicted_survival = min(max(1.0 - probability, 0.0), 1.0)
    experience, inputs = predictor.experience[slot], _inputs_on_path(predictor.inputs[slot], hints, bin_of(seconds))
    update_weights(inputs, _variant_of(hints), experience, predicted_survival, seconds, predictor.weights)
    counters[TICK] += 1
    counters[GENERATION] += 1
    update_contexts(predictor.keys[slot], seconds, hints, now, predictor.tables, counters[TICK])


@compiled
def _inputs_on_path(halves: Halves, hints: Floats, leaf: int) -> Singles:
    """Return the inputs of a record for the tree nodes on the path to a bin: the others are not needed to learn."""
    count = 1 + (TIME_CONTEXTS + hint_count(hints)) * RATES
    inputs = np.zeros((count, BINS), np.float32)
    node = 1
    for level in range(LEVELS):
        for at in range(count):
            inputs[at, node] = _from_half(halves[at, node])
        node = 2 * node + (leaf >> (LEVELS - 1 - level) & 1)
    return inputs
