"""Mixing of the contexts of a job into one prediction, learned online, and its calibration. Compiled."""

from __future__ import annotations

from math import inf

import cython
import numpy as np

from refold.model.arrays import view
from refold.predict.layout import (
    ALL,
    AVERAGE_BIN,
    BACKOFF,
    BACKOFF_EXAMPLES,
    BINS,
    CALIBRATION_BINS,
    CALIBRATION_MEMORY,
    COARSER,
    CONTEXTS,
    EXPERIENCE_BUCKETS,
    FINE,
    FULL,
    HINTS,
    INPUT_ROWS,
    KIND,
    LAST_BIN,
    LAST_END,
    LEVELS,
    LIMIT_HINT,
    LIMITED,
    MAX_LOG_ODDS,
    MIN_LEARNING_RATES,
    MIXING_RATE,
    MODEL_HINT,
    MODELLED,
    NAME,
    NAME_WEIGHT,
    OWNER,
    PREVIOUS_BIN,
    RATES,
    RATIO_ONE_BIN,
    RATIO_PRIOR,
    RECENT_HINT,
    STATIC_CONTEXTS,
    TABLE_ROWS,
    TENANT,
    TIME_CONTEXTS,
    TOTAL,
    Floats,
    Halves,
    Singles,
)

if not cython.compiled:
    from math import exp, floor, log

    from refold.predict.contexts import ContextTables, JobContexts, find_or_claim_row, find_row, magnitude
    from refold.predict.survival import bin_of, bin_position, service_per_completion, sum_masses, whole_part


class MixingWeights:
    """Weights of the inputs for each variant: by tree node, and by experience and tree level; and the calibration.

    `priors`: the log odds of the prior of times, and of those of ratios to hints. The other arrays are working memory.
    """

    def __init__(self, by_node: Singles, by_level: Singles, calibration: Floats, priors: Singles) -> None:
        self.arrays = (by_node, by_level, calibration, priors)
        self.by_node, self.by_level, self.calibration = view(by_node), view(by_level), view(calibration)
        self.input_array = np.zeros((INPUT_ROWS, BINS), np.float32)
        self.input_array[0], self.input_array[RATIO_PRIOR:] = priors[0], priors[1:]
        self.inputs = view(self.input_array)
        self.masses, self.shifted = view(np.empty(2 * BINS)), view(np.empty(2 * BINS))
        self.shares = view(np.empty(BINS, np.float32))
        self.below = view(np.zeros(CALIBRATION_BINS + 1))

    def __reduce__(self) -> tuple[object, ...]:
        return MixingWeights, self.arrays


def variant_of(contexts: JobContexts) -> int:
    """Return the variant of mixing weights for a job."""
    variant = LIMITED if contexts.hints[LIMIT_HINT] > 0.0 else 0
    return variant + MODELLED if contexts.hints[MODEL_HINT] > 0.0 else variant


def hint_count(contexts: JobContexts) -> int:
    """Return for how many hints a job has inputs."""
    return HINTS if contexts.hints[MODEL_HINT] > 0.0 else 2 if contexts.hints[LIMIT_HINT] > 0.0 else 1


def input_count(contexts: JobContexts) -> int:
    """Return how many inputs are mixed for a job."""
    return 1 + (TIME_CONTEXTS + hint_count(contexts)) * RATES


def experience_with(contexts: JobContexts, tables: ContextTables) -> int:
    """Return the experience with jobs like this one, from 0 on."""
    return min(magnitude(tables.examples[find_row(tables, contexts.keys[FULL]), 1]), EXPERIENCE_BUCKETS - 1)


def log_odds_tree(masses: Floats) -> Singles:
    """Return the tree of log odds for these bin probabilities."""
    log_odds: Singles = np.zeros((1, BINS), np.float32)
    write_log_odds(np.append(np.empty(BINS), masses), log_odds, 0)
    return log_odds.ravel()


def write_log_odds(tree: Floats, log_odds: Singles, row: int) -> None:
    """Write the log odds of a tree whose second half are the bin probabilities; the first half is overwritten."""
    for node in range(BINS - 1, 0, -1):
        shorter, longer = tree[2 * node], tree[2 * node + 1]
        tree[node] = shorter + longer
        log_odds[row, node] = log(longer / shorter)


def sigmoid(log_odds: float) -> float:
    """Return the probability of these log odds, clamped."""
    return 1.0 / (1.0 + exp(-min(max(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)))


# The inputs are rows of `weights.inputs`: `coarser` and `output` are such rows, while `row` is one of the tables, whose
# last one has no examples.


def predict_row(weights: MixingWeights, tables: ContextTables, row: int, rate: int, coarser: int, output: int) -> None:
    """Write the log odds of a row for each node, blended with the coarser context where it has few examples."""
    if row == TABLE_ROWS:
        copy_row(weights, coarser, output)
        return
    write_shares(weights, tables, row)
    blend_row(weights, tables, row, rate, coarser, output)


def predict_both_rates(
    weights: MixingWeights, tables: ContextTables, row: int, coarser: int, step: int, output: int
) -> None:
    """Write both inputs of a row, from `output` on, as `predict_row` does; `coarser`, `step`: of the coarser inputs."""
    if row == TABLE_ROWS:
        copy_row(weights, coarser, output)
        copy_row(weights, coarser + step, output + 1)
        return
    write_shares(weights, tables, row)
    blend_row(weights, tables, row, 0, coarser, output)
    blend_row(weights, tables, row, 1, coarser + step, output + 1)


def write_shares(weights: MixingWeights, tables: ContextTables, row: int) -> None:
    """Write how much each node of a row counts, beside the coarser context."""
    enough = BACKOFF_EXAMPLES
    for node in range(BINS):
        count = tables.examples[row, node]
        weights.shares[node] = count / (count + enough)


def blend_row(weights: MixingWeights, tables: ContextTables, row: int, rate: int, coarser: int, output: int) -> None:
    """Write the log odds of a row, blended with the coarser context by `shares`."""
    for node in range(BINS):
        other = weights.inputs[coarser, node]
        weights.inputs[output, node] = other + weights.shares[node] * (tables.log_odds[row, rate, node] - other)


def write_masses(weights: MixingWeights, row: int, factor: float) -> None:
    """Write the tree of probabilities for log odds: those in a row, multiplied by `factor`."""
    weights.masses[1] = 1.0
    for node in range(1, BINS):
        longer = sigmoid(factor * weights.inputs[row, node])
        weights.masses[2 * node] = weights.masses[node] * (1.0 - longer)
        weights.masses[2 * node + 1] = weights.masses[node] * longer


def times_from_ratios(weights: MixingWeights, hint_seconds: float, output: int) -> None:
    """Convert the log odds of ratios to a hint, in row `FINE`, into log odds of times."""
    write_masses(weights, FINE, 1.0)
    shift = RATIO_ONE_BIN - bin_position(hint_seconds)
    whole = whole_part(floor(shift))
    for at in range(BINS):
        ratio = at + whole
        lower = weights.masses[BINS + ratio] if 0 <= ratio < BINS else 0.0
        upper = weights.masses[BINS + ratio + 1] if -1 <= ratio < BINS - 1 else 0.0
        weights.shifted[BINS + at] = lower + (shift - whole) * (upper - lower) + 1e-6
    write_log_odds(weights.shifted, weights.inputs, output)


def borrow(weights: MixingWeights, tables: ContextTables, contexts: JobContexts, at: int, rate: int) -> None:
    """Change what a context backs off to by other owners' jobs: an owner to its tenant, a kind by its name."""
    all_jobs = 1 + ALL * RATES + rate
    if at == OWNER and contexts.keys[TENANT] != 0:
        predict_row(weights, tables, find_row(tables, contexts.keys[TENANT]), rate, all_jobs, COARSER)
    elif at == KIND and contexts.keys[NAME] != 0:
        predict_row(weights, tables, find_row(tables, contexts.keys[NAME]), rate, all_jobs, FINE)
        for node in range(BINS):
            change = weights.inputs[FINE, node] - weights.inputs[all_jobs, node]
            weights.inputs[COARSER, node] += NAME_WEIGHT * change


def write_inputs(weights: MixingWeights, tables: ContextTables, contexts: JobContexts) -> None:
    """Write the log odds of each input of a job, after the first, which is the prior."""
    for at in range(TIME_CONTEXTS):
        row, first, output = find_row(tables, contexts.keys[at]), 1 + BACKOFF[at] * RATES, 1 + at * RATES
        if at == ALL:
            predict_both_rates(weights, tables, row, 0, 0, output)
        elif at not in (OWNER, KIND):
            predict_both_rates(weights, tables, row, first, 1, output)
        else:
            for rate in range(RATES):
                copy_row(weights, first + rate, COARSER)
                borrow(weights, tables, contexts, at, rate)
                predict_row(weights, tables, row, rate, COARSER, output + rate)
    for hint in range(hint_count(contexts)):
        coarse = find_row(tables, contexts.keys[TIME_CONTEXTS + 2 * hint])
        fine = find_row(tables, contexts.keys[TIME_CONTEXTS + 2 * hint + 1])
        for rate in range(RATES):
            output = 1 + (TIME_CONTEXTS + hint) * RATES + rate
            if contexts.hints[hint] > 0.0:
                predict_row(weights, tables, coarse, rate, RATIO_PRIOR + hint, COARSER)
                predict_row(weights, tables, fine, rate, COARSER, FINE)
                times_from_ratios(weights, contexts.hints[hint], output)
            elif hint == RECENT_HINT:  # no job like it has ended yet
                copy_row(weights, 1 + FULL * RATES + rate, output)
            else:
                clear_row(weights, output)


def copy_row(weights: MixingWeights, row: int, output: int) -> None:
    """Copy an input."""
    for node in range(BINS):
        weights.inputs[output, node] = weights.inputs[row, node]


def clear_row(weights: MixingWeights, output: int) -> None:
    """Set an input to zeros."""
    for node in range(BINS):
        weights.inputs[output, node] = 0.0


def mix(weights: MixingWeights, contexts: JobContexts, experience: int, survival: Floats) -> None:
    """Mix the inputs of a job and write the probability to exceed each bin edge; not calibrated."""
    variant = variant_of(contexts)
    clear_row(weights, TOTAL)
    for at in range(input_count(contexts)):
        for level in range(LEVELS):  # level n has the nodes from 2^n to 2^(n+1)
            weight = weights.by_level[variant, experience, level, at]
            for node in range(1 << level, 2 << level):
                value = weights.inputs[at, node]
                total = weights.inputs[TOTAL, node] + value * weights.by_node[variant, at, node]
                weights.inputs[TOTAL, node] = total + value * weight
    write_masses(weights, TOTAL, 0.5)
    for at in range(BINS):
        survival[at] = weights.masses[BINS + at]
    sum_masses(survival)


def calibrate(weights: MixingWeights, survival: Floats) -> None:
    """Map predicted to observed survival: `calibration` is the histogram of predicted survival at the actual ends."""
    for at in range(CALIBRATION_BINS):
        weights.below[at + 1] = weights.below[at] + weights.calibration[at]
    for at in range(BINS + 1):
        position = min(survival[at], 1.0) * CALIBRATION_BINS
        share = min(whole_part(position), CALIBRATION_BINS - 1)
        ends = weights.below[share] + (position - share) * weights.calibration[share]
        survival[at] = ends / weights.below[CALIBRATION_BINS]


def write_prediction(weights: MixingWeights, tables: ContextTables, contexts: JobContexts, survival: Floats) -> None:
    """Write the calibrated probability to exceed each bin edge."""
    write_inputs(weights, tables, contexts)
    mix(weights, contexts, experience_with(contexts, tables), survival)
    calibrate(weights, survival)


def update_prediction(weights: MixingWeights, tables: ContextTables, contexts: JobContexts) -> None:
    """Predict again if anything has been learned since the last prediction for a job."""
    if contexts.predicted_at != tables.learned:
        write_prediction(weights, tables, contexts, contexts.survival)
        contexts.predicted_at = tables.learned


def predict_survival(weights: MixingWeights, tables: ContextTables, contexts: JobContexts) -> Floats:
    """Return the calibrated probability to exceed each bin edge."""
    update_prediction(weights, tables, contexts)
    return np.array(contexts.survival)


def predict_inputs(weights: MixingWeights, tables: ContextTables, contexts: JobContexts) -> tuple[Halves, int, Floats]:
    """Return the inputs of a job, the experience with jobs like it, and its survival, not calibrated."""
    survival, experience = np.empty(BINS + 1), experience_with(contexts, tables)
    write_inputs(weights, tables, contexts)
    mix(weights, contexts, experience, survival)
    return weights.input_array[: input_count(contexts)].astype(np.float16), experience, survival


def service_of(
    weights: MixingWeights,
    tables: ContextTables,
    jobs: list[JobContexts],
    elapsed: Floats,
    limits: Floats,
    min_service: float,
) -> Floats:
    """Return the least expected service per completion of many jobs: predicted, and given their run time so far."""
    result = np.empty(len(jobs))
    service = result
    for at in range(len(jobs)):
        contexts = jobs[at]
        update_prediction(weights, tables, contexts)
        ceiling = limits[at] if elapsed[at] < limits[at] else inf
        service[at] = service_per_completion(contexts.survival, elapsed[at], ceiling, min_service)
    return result


def update_weights(
    weights: MixingWeights, inputs: Singles, variant: int, experience: int, predicted_survival: float, seconds: float
) -> None:
    """Move the weights towards the inputs that predicted this job well; add its end to the calibration.

    `inputs`: at the nodes on the path to the bin of the duration. `predicted_survival`: the predicted probability that
    the job would run longer than it did.
    """
    leaf = BINS + bin_of(seconds)
    for level in range(LEVELS):
        node, longer = leaf >> (LEVELS - level), leaf >> (LEVELS - 1 - level) & 1
        first = second = 0.0
        for at in range(inputs.shape[0]):
            first += inputs[at, level] * weights.by_node[variant, at, node]
            second += inputs[at, level] * weights.by_level[variant, experience, level, at]
        first, second = MIXING_RATE * (longer - sigmoid(first)), MIXING_RATE * (longer - sigmoid(second))
        for at in range(inputs.shape[0]):
            weights.by_node[variant, at, node] += first * inputs[at, level]
            weights.by_level[variant, experience, level, at] += second * inputs[at, level]
    for at in range(CALIBRATION_BINS):
        weights.calibration[at] *= 1.0 - 1.0 / CALIBRATION_MEMORY
    weights.calibration[min(whole_part(predicted_survival * CALIBRATION_BINS), CALIBRATION_BINS - 1)] += 1.0


def update_contexts(contexts: JobContexts, seconds: float, now: float, tables: ContextTables, tick: int) -> None:
    """Add the duration of a finished job to its contexts."""
    leaf, position, recent = bin_of(seconds), bin_position(seconds), tables.recent
    tables.learned += 1
    for at in range(CONTEXTS):
        if contexts.keys[at] == 0:
            continue
        row = find_or_claim_row(tables, tick, contexts.keys[at])
        if TIME_CONTEXTS <= at < TENANT:
            hint = contexts.hints[(at - TIME_CONTEXTS) >> 1]
            ratio = whole_part(floor(position - bin_position(hint))) + RATIO_ONE_BIN
            update_row(tables, row, min(max(ratio, 0), BINS - 1))
            continue
        update_row(tables, row, leaf)
        if at < STATIC_CONTEXTS:
            change = 0.3 * (leaf - recent[row, AVERAGE_BIN])
            recent[row, AVERAGE_BIN] = recent[row, AVERAGE_BIN] + change if recent[row, LAST_BIN] >= 0.0 else leaf
            recent[row, PREVIOUS_BIN] = recent[row, LAST_BIN]
            recent[row, LAST_BIN], recent[row, LAST_END] = leaf, now


def update_row(tables: ContextTables, row: int, leaf: int) -> None:
    """Add an example to a row: update the nodes on the path to the bin of its duration."""
    node = 1
    for level in range(LEVELS):
        longer = leaf >> (LEVELS - 1 - level) & 1
        count = tables.examples[row, node]
        for rate in range(RATES):
            probability = sigmoid(tables.log_odds[row, rate, node])
            probability += max(1.0 / (count + 1.6), MIN_LEARNING_RATES[rate]) * (longer - probability)
            tables.log_odds[row, rate, node] = log(probability / (1.0 - probability))
        tables.examples[row, node] = min(count + 1.0, 1e6)
        node = 2 * node + longer
