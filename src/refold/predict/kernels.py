"""Compiled kernels of the run-time predictor: time bins, context tables, mixing and calibration."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refold.jit import compiled, compiled_without_references, inlined

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

LEVELS = 7
BINS = 1 << LEVELS
FIRST_EDGE = 0.5
BINS_PER_DOUBLING = 5
BIN_WIDTH = math.log(2.0) / BINS_PER_DOUBLING
LAST_EDGE = FIRST_EDGE * 2.0 ** (BINS / BINS_PER_DOUBLING)
"""Bins have equal width in log time: five per doubling, from half a second to 294 days."""


@inlined
def bin_position(seconds: float) -> float:
    """Return the position of a time on the axis of bins: 2.5 is the middle of the third bin."""
    return math.log(seconds / FIRST_EDGE) / BIN_WIDTH if seconds > FIRST_EDGE else 0.0


@inlined
def edge_time(position: float) -> float:
    """Return the time at a position on the axis of bins, in seconds."""
    return FIRST_EDGE * math.exp(position * BIN_WIDTH)


@inlined
def bin_of(seconds: float) -> int:
    """Return the bin of a time; the first and the last bin include all times beyond them."""
    return min(int(bin_position(seconds)), BINS - 1)


@compiled
def survival_at(survival: Floats, seconds: float) -> float:
    """Return the probability that a duration exceeds a time; beyond the last edge it falls with the square of time."""
    if seconds >= LAST_EDGE:
        return float(survival[BINS] * (LAST_EDGE / seconds) ** 2)
    position = bin_position(seconds)
    at = min(int(position), BINS - 1)
    return float(survival[at] + (position - at) * (survival[at + 1] - survival[at]))


@compiled
def time_exceeded_with(survival: Floats, probability: float) -> float:
    """Return the time that a duration exceeds with this probability."""
    if probability < survival[BINS]:
        return float(LAST_EDGE * math.sqrt(survival[BINS] / probability))
    low, high = 0, BINS  # survival[low] > probability >= survival[high], unless probability is 1
    while high - low > 1:
        middle = (low + high) >> 1
        if survival[middle] > probability:
            low = middle
        else:
            high = middle
    mass = survival[low] - survival[high]
    return edge_time(low + (survival[low] - probability) / mass) if mass > 0.0 else edge_time(float(low))


@compiled
def mean_between(survival: Floats, floor: float, ceiling: float) -> float:
    """Return the mean duration, given that it exceeds `floor` and is cut off at `ceiling`: the integral of survival."""
    total, start = 0.0, max(floor, FIRST_EDGE)
    for at in range(min(int(bin_position(start)), BINS), BINS):
        lower, upper = edge_time(float(at)), edge_time(at + 1.0)
        since, until = max(lower, start), min(upper, ceiling)
        if until <= since:
            continue
        slope = (survival[at] - survival[at + 1]) / BIN_WIDTH
        logs = until * (math.log(until / lower) - 1.0) - since * (math.log(since / lower) - 1.0)
        total += survival[at] * (until - since) - slope * logs
    since = max(start, LAST_EDGE)
    if ceiling > since:
        total += survival[BINS] * LAST_EDGE * (LAST_EDGE / since - LAST_EDGE / ceiling)
    return min(start + total / survival_at(survival, start), ceiling)


@compiled
def service_per_completion(survival: Floats, floor: float, ceiling: float, min_service: float) -> float:
    """Return the least expected service per completion beyond `floor`, over all lengths of service from `min_service`.

    Service of length d after `floor` takes E[min(rest, d)] seconds and completes the job with probability
    P(rest ≤ d). The least ratio of both is the inverse of the Gittins index.
    """
    start = max(floor, FIRST_EDGE)
    at_start = survival_at(survival, start)
    if start >= LAST_EDGE or at_start <= 0.0:
        return start  # survival falls with the square of time: as much again on average
    least, total = math.inf, 0.0
    for at in range(int(bin_position(start)), BINS):
        lower, upper = edge_time(float(at)), edge_time(at + 1.0)
        since, until = max(lower, start), min(upper, ceiling)
        if until <= since:
            continue
        slope = (survival[at] - survival[at + 1]) / BIN_WIDTH
        logs = until * (math.log(until / lower) - 1.0) - since * (math.log(since / lower) - 1.0)
        total += survival[at] * (until - since) - slope * logs
        completed = at_start - (survival_at(survival, until) if until < ceiling else 0.0)
        if completed > 0.0 and (until >= start + min_service or until >= ceiling):
            least = min(least, total / completed)
    return start if least == math.inf else least


# Context tables: one row per context, found by the hash of the context. A row stores the durations of the jobs of its
# context as a binary tree over the bins: node 1 predicts whether a job runs longer than the middle of all bins, nodes
# 2 and 3 the same for either half, and so on. Each node has log odds at two learning rates and a count of examples.

TABLE_ROWS = 1 << 15
PROBES = 8
RATES = 2
MIN_LEARNING_RATES = (0.08, 0.01)
"""Minimum weight of the newest example: the estimates average about the last 12, and the last 100 examples."""

LAST_BIN, PREVIOUS_BIN, AVERAGE_BIN, LAST_ARRIVAL, LAST_END, UNFINISHED, RECENT_COLUMNS = 0, 1, 2, 3, 4, 5, 6
"""Columns of `recent`: bins of the last two jobs, their running average, times, and the number of unfinished jobs."""

# The contexts. First the static ones, from the job's own fields, coarse to fine; then those that include recent jobs
# like it; then those of the ratio of a duration to a hint: two contexts, coarse and fine, for each hint (the last two
# jobs like it, its time limit, and a performance model); then those that are not mixed, but borrowed from: the jobs of
# the owner's tenant, and those of other owners with the same name and workload.
ALL, GPUS, DEMAND, OWNER, OWNER_DEMAND, KIND, FULL, STATIC_CONTEXTS = 0, 1, 2, 3, 4, 5, 6, 7
HOUR, OWNER_RECENT, TIME_CONTEXTS = 10, 11, 17
TENANT, NAME, CONTEXTS = 23, 24, 25
BACKOFF = (ALL, ALL, GPUS, ALL, DEMAND, OWNER, OWNER_DEMAND, *(FULL,) * 3, GPUS, OWNER, *(FULL,) * 5)
"""The coarser context that a context with few examples backs off to."""

NAME_WEIGHT = 0.5
"""How much of what a name and workload change for all owners is expected for an owner without such jobs."""

RECENT_HINT, LIMIT_HINT, MODEL_HINT, HINTS = 0, 1, 2, 3
"""Hints of the duration, in seconds; 0: no hint."""

INPUTS = 1 + (TIME_CONTEXTS + HINTS) * RATES
"""Number of mixed inputs: the prior, and for each learning rate the time contexts and the fine ratio contexts."""

LIMITED, MODELLED, VARIANTS = 1, 2, 4
"""Mixing weights are separate for jobs with and without a limit and a model; the variant is the sum, 0 to 3."""

EXPERIENCE_BUCKETS = 8
BACKOFF_EXAMPLES = 1.0
"""After this many examples a context counts as much as the coarser one."""

RATIO_ONE_BIN = 112
"""For ratios instead of times: the bin that starts at ratio 1, a duration equal to the hint."""

MAX_LOG_ODDS = 12.0
MIXING_RATE = 0.0002
"""Learning rate of the mixing weights. Low, because bursts of equal jobs all favour the same context."""

CALIBRATION_BINS = 20
CALIBRATION_PRIOR, CALIBRATION_MEMORY = 1000.0, 20_000.0
"""Calibration: number of bins, weight of the prior in examples, and number of examples remembered."""


class ContextTables(NamedTuple):
    """The rows of the contexts. The last row is read-only and stands for contexts without examples."""

    hashes: Hashes
    last_used: Ints
    log_odds: Singles
    examples: Singles
    recent: Floats


class MixingWeights(NamedTuple):
    """Weights of the inputs for each variant: by tree node, and by experience and tree level; and the calibration."""

    by_node: Singles
    by_level: Singles
    calibration: Floats


@inlined
def combine_hash(hash_value: np.uint64, value: int) -> np.uint64:
    """Return a hash of a hash and a number; never 0, which means no context."""
    word = (hash_value ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(29)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    return (word ^ (word >> np.uint64(32))) | np.uint64(1)


@inlined
def sigmoid(log_odds: float) -> float:
    """Return the probability of these log odds, clamped."""
    return 1.0 / (1.0 + math.exp(-min(max(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)))


@inlined
def find_row(hashes: Hashes, hash_value: np.uint64) -> int:
    """Return the row of a context, or the last row if it has none."""
    start = int(hash_value >> np.uint64(40))
    for probe in range(PROBES):
        row = (start + probe) % TABLE_ROWS
        if hashes[row] == hash_value and hash_value != np.uint64(0):
            return row
    return TABLE_ROWS


@inlined
def find_or_claim_row(tables: ContextTables, tick: int, hash_value: np.uint64) -> int:
    """Return the row of a context; if it has none, replace the least recently used row within the probe range."""
    start = int(hash_value >> np.uint64(40))
    oldest = start % TABLE_ROWS
    for probe in range(PROBES):
        row = (start + probe) % TABLE_ROWS
        if tables.hashes[row] == hash_value:
            tables.last_used[row] = tick
            return row
        if tables.last_used[row] < tables.last_used[oldest]:
            oldest = row
    tables.hashes[oldest], tables.last_used[oldest] = hash_value, tick
    tables.log_odds[oldest], tables.examples[oldest] = 0.0, 0.0
    for column in range(RECENT_COLUMNS):
        tables.recent[oldest, column] = tables.recent[TABLE_ROWS, column]
    return oldest


@inlined
def magnitude(number: float) -> int:
    """Return the binary order of magnitude of a number: ≤ 0, 1, 2-3, 4-7, …"""
    return int(math.log2(max(number, 0.0) + 1.0)) if number < 1e12 else 40


@compiled
def context_keys(static: Hashes, now: float, hints: Floats, tables: ContextTables) -> Hashes:
    """Return the keys of all contexts of a job that arrives now; write the hint from recent jobs to `hints`."""
    keys = np.zeros(CONTEXTS, np.uint64)
    for at in range(STATIC_CONTEXTS):
        keys[at] = combine_hash(static[at], at)
    for at in range(TENANT, CONTEXTS):
        borrowed = static[STATIC_CONTEXTS + at - TENANT]
        if borrowed != np.uint64(0):
            keys[at] = combine_hash(borrowed, at)
    hashes, recent = tables.hashes, tables.recent
    full, owner, all_jobs = keys[FULL], keys[OWNER], keys[ALL]
    similar, own, whole = (
        recent[find_row(hashes, full)],
        recent[find_row(hashes, owner)],
        recent[find_row(hashes, all_jobs)],
    )
    last, previous, average = int(similar[LAST_BIN]), int(similar[PREVIOUS_BIN]), int(similar[AVERAGE_BIN])
    gap, unfinished = magnitude(now - similar[LAST_ARRIVAL]), magnitude(similar[UNFINISHED])
    keys[7] = combine_hash(combine_hash(full, 7), last // 2)
    keys[8] = combine_hash(combine_hash(combine_hash(full, 8), last // 4), previous // 4)
    keys[9] = combine_hash(combine_hash(combine_hash(full, 9), gap), unfinished)
    keys[HOUR] = combine_hash(combine_hash(keys[GPUS], 10), int(now // 7200.0) % 12)
    keys[OWNER_RECENT] = combine_hash(
        combine_hash(combine_hash(owner, 11), int(own[LAST_BIN]) // 3), int(whole[LAST_BIN]) // 8
    )
    keys[12] = combine_hash(combine_hash(combine_hash(full, 12), average // 3), gap // 2)
    keys[13] = combine_hash(combine_hash(full, 13), gap)
    keys[14] = combine_hash(combine_hash(combine_hash(full, 14), magnitude(now - similar[LAST_END]) // 2), last // 3)
    keys[15] = combine_hash(
        combine_hash(combine_hash(full, 15), magnitude(now - own[LAST_ARRIVAL])), magnitude(own[UNFINISHED])
    )
    keys[16] = combine_hash(combine_hash(full, 16), unfinished)
    if last >= 0:
        hints[RECENT_HINT] = edge_time(0.5 + (0.5 * (last + previous) if previous >= 0 else last))
    fine_keys = (full, owner, keys[KIND])
    for hint in range(HINTS):
        if hints[hint] > 0.0:
            at = TIME_CONTEXTS + 2 * hint
            keys[at], keys[at + 1] = combine_hash(all_jobs, at), combine_hash(fine_keys[hint], at + 1)
    return keys


@inlined
def replaces_context(hashes: Hashes, hash_value: np.uint64) -> bool:
    """Return whether a context has no row, and there is no unused one for it."""
    start = int(hash_value >> np.uint64(40))
    for probe in range(PROBES):
        found = hashes[(start + probe) % TABLE_ROWS]
        if found == hash_value or found == np.uint64(0):
            return False
    return True


@compiled_without_references
def count_arrival(keys: Hashes, now: float, tables: ContextTables, tick: int) -> int:
    """Count a job of these contexts as unfinished; return how many other contexts have lost their rows to them."""
    replaced = 0
    for at in range(STATIC_CONTEXTS):
        replaced += replaces_context(tables.hashes, keys[at])
        row = find_or_claim_row(tables, tick, keys[at])
        tables.recent[row, UNFINISHED] += 1.0
        tables.recent[row, LAST_ARRIVAL] = now
    return replaced


@compiled_without_references
def count_departure(keys: Hashes, tables: ContextTables) -> None:
    """Count a job of these contexts as no longer unfinished."""
    for at in range(STATIC_CONTEXTS):
        row = find_row(tables.hashes, keys[at])
        if row < TABLE_ROWS:
            tables.recent[row, UNFINISHED] = max(tables.recent[row, UNFINISHED] - 1.0, 0.0)


@compiled
def log_odds_tree(masses: Floats) -> Singles:
    """Return the tree of log odds for these bin probabilities."""
    tree, log_odds = np.empty(2 * BINS), np.zeros(BINS, np.float32)
    tree[BINS:] = masses
    write_log_odds(tree, log_odds)
    return log_odds


@compiled_without_references
def write_log_odds(tree: Floats, log_odds: Singles) -> None:
    """Write the log odds of a tree whose second half are the bin probabilities; the first half is overwritten."""
    for node in range(BINS - 1, 0, -1):
        shorter, longer = tree[2 * node], tree[2 * node + 1]
        tree[node] = shorter + longer
        log_odds[node] = math.log(longer / shorter)


@compiled
def log_normal_bins(seconds: float, width: float, uniform: float) -> Floats:
    """Return bin probabilities: a normal curve in log time around `seconds`, plus `uniform` spread evenly."""
    middle, masses = math.log(seconds / FIRST_EDGE), np.empty(BINS)
    for at in range(BINS):
        distance = ((at + 0.5) * BIN_WIDTH - middle) / width
        masses[at] = (
            math.exp(-0.5 * distance * distance) * BIN_WIDTH / width / math.sqrt(2.0 * math.pi) + uniform / BINS
        )
    return masses


@compiled_without_references
def predict_row(row: int, rate: int, coarser: Singles, tables: ContextTables, output: Singles) -> None:
    """Write the log odds of a row for each node, blended with the coarser context where it has few examples."""
    for node in range(BINS):
        count = tables.examples[row, node]
        own = count / (count + np.float32(BACKOFF_EXAMPLES))
        output[node] = coarser[node] + own * (tables.log_odds[row, rate, node] - coarser[node])


@compiled_without_references
def predict_both_rates(row: int, coarser: int, step: int, tables: ContextTables, inputs: Singles, output: int) -> None:
    """Write both inputs of a row, from `output` on, as `predict_row` does; `coarser`, `step`: of the coarser inputs."""
    for node in range(BINS):
        count = tables.examples[row, node]
        own = count / (count + np.float32(BACKOFF_EXAMPLES))
        fast, slow = inputs[coarser, node], inputs[coarser + step, node]
        inputs[output, node] = fast + own * (tables.log_odds[row, 0, node] - fast)
        inputs[output + 1, node] = slow + own * (tables.log_odds[row, 1, node] - slow)


@compiled_without_references
def times_from_ratios(ratios: Singles, hint_seconds: float, masses: Floats, shifted: Floats, output: Singles) -> None:
    """Convert log odds of ratios to a hint into log odds of times. `masses` and `shifted` are overwritten."""
    masses[1] = 1.0
    for node in range(1, BINS):
        longer = sigmoid(ratios[node])
        masses[2 * node] = masses[node] * (1.0 - longer)
        masses[2 * node + 1] = masses[node] * longer
    shift = RATIO_ONE_BIN - bin_position(hint_seconds)
    whole = math.floor(shift)
    for at in range(BINS):
        ratio = at + whole
        lower = masses[BINS + ratio] if 0 <= ratio < BINS else 0.0
        upper = masses[BINS + ratio + 1] if -1 <= ratio < BINS - 1 else 0.0
        shifted[BINS + at] = lower + (shift - whole) * (upper - lower) + 1e-6
    output[0] = 0.0
    write_log_odds(shifted, output)


@compiled_without_references
def borrow(
    at: int, rate: int, keys: Hashes, tables: ContextTables, inputs: Singles, found: Singles, coarser: Singles
) -> None:
    """Change what a context backs off to by other owners' jobs: an owner to its tenant, a kind by its name."""
    all_jobs = inputs[1 + ALL * RATES + rate]
    if at == OWNER and keys[TENANT] != np.uint64(0):
        predict_row(find_row(tables.hashes, keys[TENANT]), rate, all_jobs, tables, coarser)
    elif at == KIND and keys[NAME] != np.uint64(0):
        predict_row(find_row(tables.hashes, keys[NAME]), rate, all_jobs, tables, found)
        for node in range(BINS):
            coarser[node] += np.float32(NAME_WEIGHT) * (found[node] - all_jobs[node])


@compiled
def collect_inputs(
    keys: Hashes, hints: Floats, tables: ContextTables, prior: Singles, ratios: Singles
) -> tuple[Singles, int]:
    """Return the log odds of each input for each tree node, and the experience with jobs like this one.

    `prior` and `ratios` are the priors of times and of ratios to hints.
    """
    inputs = np.zeros((1 + (TIME_CONTEXTS + hint_count(hints)) * RATES, BINS), np.float32)
    inputs[0] = prior
    write_inputs(keys, hints, tables, ratios, inputs, np.empty((2, BINS), np.float32), np.empty((2, 2 * BINS)))
    return inputs, min(magnitude(tables.examples[find_row(tables.hashes, keys[FULL]), 1]), EXPERIENCE_BUCKETS - 1)


@inlined
def hint_count(hints: Floats) -> int:
    """Return for how many hints a job has inputs."""
    return HINTS if hints[MODEL_HINT] > 0.0 else 2 if hints[LIMIT_HINT] > 0.0 else 1


@compiled_without_references
def write_inputs(
    keys: Hashes, hints: Floats, tables: ContextTables, ratios: Singles, inputs: Singles, rows: Singles, trees: Floats
) -> None:
    """Write the log odds of each input. Its first row is the prior; `rows` and `trees` are overwritten."""
    coarser, fine = rows[0], rows[1]
    for at in range(TIME_CONTEXTS):
        row, first = find_row(tables.hashes, keys[at]), 1 + BACKOFF[at] * RATES
        if at == ALL:
            predict_both_rates(row, 0, 0, tables, inputs, 1)
        elif at not in (OWNER, KIND):
            predict_both_rates(row, first, 1, tables, inputs, 1 + at * RATES)
        else:
            for rate in range(RATES):
                for node in range(BINS):
                    coarser[node] = inputs[first + rate, node]
                borrow(at, rate, keys, tables, inputs, fine, coarser)
                predict_row(row, rate, coarser, tables, inputs[1 + at * RATES + rate])
    for hint in range(hint_count(hints)):
        at = TIME_CONTEXTS + 2 * hint
        for rate in range(RATES):
            output = inputs[1 + (TIME_CONTEXTS + hint) * RATES + rate]
            if hints[hint] > 0.0:
                predict_row(find_row(tables.hashes, keys[at]), rate, ratios[hint], tables, coarser)
                predict_row(find_row(tables.hashes, keys[at + 1]), rate, coarser, tables, fine)
                times_from_ratios(fine, hints[hint], trees[0], trees[1], output)
            elif hint == RECENT_HINT:  # no job like it has ended yet
                full = inputs[1 + FULL * RATES + rate]
                for node in range(BINS):
                    output[node] = full[node]


@compiled
def mix_survival(inputs: Singles, variant: int, experience: int, weights: MixingWeights) -> Floats:
    """Mix the inputs and return the probability to exceed each bin edge; not calibrated."""
    masses = np.empty(2 * BINS)
    mix_masses(inputs, variant, experience, weights, np.zeros(BINS, np.float32), masses)
    return survival_from_masses(masses[BINS:])


@compiled_without_references
def mix_masses(
    inputs: Singles, variant: int, experience: int, weights: MixingWeights, total: Singles, masses: Floats
) -> None:
    """Mix the inputs and write the tree of probabilities; `total` has zeros."""
    for at in range(inputs.shape[0]):
        output, node_weights = inputs[at], weights.by_node[variant, at]
        for node in range(BINS):
            total[node] += output[node] * node_weights[node]
        for level in range(LEVELS):  # level n has the nodes from 2^n to 2^(n+1)
            weight, of_level, sums = (
                weights.by_level[variant, experience, level, at],
                output[1 << level :],
                total[1 << level :],
            )
            for node in range(1 << level):
                sums[node] += of_level[node] * weight
    masses[1] = 1.0
    for node in range(1, BINS):
        longer = sigmoid(0.5 * total[node])
        masses[2 * node] = masses[node] * (1.0 - longer)
        masses[2 * node + 1] = masses[node] * longer


@compiled
def survival_from_masses(masses: Floats) -> Floats:
    """Return the probability to exceed each edge; half of the last bin lies beyond it. Sums start at the small end."""
    survival = np.empty(BINS + 1)
    survival[BINS] = 0.5 * masses[BINS - 1]
    total = 0.0
    for at in range(BINS - 1, -1, -1):
        total += masses[at]
        survival[at] = total
    return survival / total


@compiled
def calibrate(survival: Floats, calibration: Floats) -> Floats:
    """Map predicted to observed survival: `calibration` is the histogram of predicted survival at the actual ends."""
    below = np.zeros(CALIBRATION_BINS + 1)
    for at in range(CALIBRATION_BINS):
        below[at + 1] = below[at] + calibration[at]
    shifted = np.empty(BINS + 1)
    for at in range(BINS + 1):
        position = min(survival[at], 1.0) * CALIBRATION_BINS
        share = min(int(position), CALIBRATION_BINS - 1)
        shifted[at] = (below[share] + (position - share) * calibration[share]) / below[CALIBRATION_BINS]
    return shifted


@inlined
def variant_of(hints: Floats) -> int:
    """Return the variant of mixing weights for a job with these hints."""
    return LIMITED * int(hints[LIMIT_HINT] > 0.0) + MODELLED * int(hints[MODEL_HINT] > 0.0)


@compiled
def predict_survival(
    keys: Hashes,
    hints: Floats,
    variant: int,
    tables: ContextTables,
    prior: Singles,
    ratios: Singles,
    weights: MixingWeights,
) -> Floats:
    """Return the calibrated probability to exceed each bin edge: collect, mix and calibrate in one call."""
    inputs, experience = collect_inputs(keys, hints, tables, prior, ratios)
    return calibrate(mix_survival(inputs, variant, experience, weights), weights.calibration)


class RecordedJobs(NamedTuple):
    """Jobs in columns: context keys and hints of their submission, run time so far, and time limit."""

    keys: Hashes
    hints: Floats
    elapsed: Floats
    limit: Floats


@compiled
def service_of(
    jobs: RecordedJobs,
    min_service: float,
    tables: ContextTables,
    prior: Singles,
    ratios: Singles,
    weights: MixingWeights,
) -> Floats:
    """Return the least expected service per completion of many jobs: predicted, and given their run time so far."""
    service = np.empty(len(jobs.elapsed))
    for at in range(len(service)):
        hints, elapsed, limit = jobs.hints[at], jobs.elapsed[at], jobs.limit[at]
        survival = predict_survival(jobs.keys[at], hints, variant_of(hints), tables, prior, ratios, weights)
        ceiling = limit if elapsed < limit else math.inf
        service[at] = service_per_completion(survival, elapsed, ceiling, min_service)
    return service


@compiled_without_references
def update_weights(
    inputs: Singles, variant: int, experience: int, predicted_survival: float, seconds: float, weights: MixingWeights
) -> None:
    """Move the weights towards the inputs that predicted this job well; add its end to the calibration.

    `predicted_survival` is the predicted probability that the job would run longer than it did.
    """
    leaf, node = bin_of(seconds), 1
    by_node, by_level = weights.by_node[variant], weights.by_level[variant, experience]
    for level in range(LEVELS):
        longer = leaf >> (LEVELS - 1 - level) & 1
        first = second = 0.0
        for at in range(inputs.shape[0]):
            first += inputs[at, node] * by_node[at, node]
            second += inputs[at, node] * by_level[level, at]
        first, second = MIXING_RATE * (longer - sigmoid(first)), MIXING_RATE * (longer - sigmoid(second))
        for at in range(inputs.shape[0]):
            by_node[at, node] += first * inputs[at, node]
            by_level[level, at] += second * inputs[at, node]
        node = 2 * node + longer
    for at in range(CALIBRATION_BINS):
        weights.calibration[at] *= 1.0 - 1.0 / CALIBRATION_MEMORY
    weights.calibration[min(int(predicted_survival * CALIBRATION_BINS), CALIBRATION_BINS - 1)] += 1.0


@compiled_without_references
def update_contexts(keys: Hashes, seconds: float, hints: Floats, now: float, tables: ContextTables, tick: int) -> None:
    """Add the duration of a finished job to its contexts."""
    leaf = bin_of(seconds)
    for at in range(CONTEXTS):
        if keys[at] == np.uint64(0):
            continue
        row = find_or_claim_row(tables, tick, keys[at])
        if TIME_CONTEXTS <= at < TENANT:
            ratio = math.floor(bin_position(seconds) - bin_position(hints[(at - TIME_CONTEXTS) >> 1])) + RATIO_ONE_BIN
            update_row(row, min(max(ratio, 0), BINS - 1), tables)
            continue
        update_row(row, leaf, tables)
        if at < STATIC_CONTEXTS:
            recent = tables.recent[row]
            experience = recent[LAST_BIN] >= 0.0
            recent[PREVIOUS_BIN], recent[LAST_BIN], recent[LAST_END] = recent[LAST_BIN], leaf, now
            recent[AVERAGE_BIN] = recent[AVERAGE_BIN] + 0.3 * (leaf - recent[AVERAGE_BIN]) if experience else leaf


@inlined
def update_row(row: int, leaf: int, tables: ContextTables) -> None:
    """Add an example to a row: update the nodes on the path to the bin of its duration."""
    node = 1
    for level in range(LEVELS):
        longer = leaf >> (LEVELS - 1 - level) & 1
        count = tables.examples[row, node]
        for rate in range(RATES):
            probability = sigmoid(tables.log_odds[row, rate, node])
            probability += max(1.0 / (count + 1.6), MIN_LEARNING_RATES[rate]) * (longer - probability)
            tables.log_odds[row, rate, node] = math.log(probability / (1.0 - probability))
        tables.examples[row, node] = min(count + 1.0, 1e6)
        node = 2 * node + longer


@compiled
def condition_on_progress(survival: Floats, total_seconds: float, width: float) -> Floats:
    """Return the survival of a job whose reported progress implies about `total_seconds` in total."""
    masses = np.empty(BINS)
    middle = math.log(max(total_seconds, FIRST_EDGE) / FIRST_EDGE)
    for at in range(BINS):
        distance = abs((at + 0.5) * BIN_WIDTH - middle) / width
        masses[at] = (survival[at] - survival[at + 1] + 1e-6) * (math.exp(-distance) + 1e-6)
    return survival_from_masses(masses)


@compiled
def quantiles(survival: Floats, probabilities: Floats) -> Floats:
    """Return the quantiles for several probabilities, in seconds."""
    times = np.empty(len(probabilities))
    for at in range(len(probabilities)):
        times[at] = time_exceeded_with(survival, 1.0 - probabilities[at])
    return times
