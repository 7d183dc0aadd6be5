"""The scoring function of the learned policy, compiled: what is expected of a job, its features, and their score.

A score is a linear function of the features of a job, plus the outputs of hidden units, if there are any; the job with
the lowest score is the most urgent one.
"""

from __future__ import annotations

import math

import numpy as np

from refold.jit import compiled, inlined
from refold.model import HOUR, MINUTE
from refold.packing import Floats
from refold.policies.learned.arrays import JobColumns, RunColumns, Singles, Weights

FEATURES = (
    "service",
    "rest",
    "gpus",
    "wide",
    "delay",
    "short_delay",
    "attained",
    "service_in_queue",
    "gpus_in_queue",
    "delay_in_queue",
)
"""The features of a job, all but one logarithms. `service`: expected service per completion (the inverse of the Gittins
index); `rest`: mean remaining time; `gpus`: GPUs requested; `wide`: 1 if these are eight or more; `delay`: time since
submission in which the job did not run, 1 + hours; `short_delay`: the same in minutes; `attained`: 1 + GPU-hours used;
`…_in_queue`: features multiplied by the length of the queue (GPUs requested, relative to the cluster).
"""

(SERVICE, REST, GPUS_REQUESTED, WIDE, DELAY, SHORT_DELAY, ATTAINED, SERVICE_Q, GPUS_Q, DELAY_Q) = range(10)

MARGIN, PATIENCE, PROTECTION = range(3)
"""Entries of `Weights.rules`.

`MARGIN`: by how much the score of a run must exceed that of a job which preempts it. `PATIENCE`: delay in seconds from
which a job goes first, and has a reservation if it cannot start. `PROTECTION`: a run is not preempted before this
multiple of its restart cost and its starts.
"""

AGES = 27
"""Number of ages for which expectations are stored: 0, and powers of two from one second on."""

WIDE_GPUS = 8.0
MIN_SECONDS = 1.0
MIN_GPUS = 0.1
MAX_SCORE = 1e3
OVERDUE_STEP = 1e4
PRIORITY_STEP = 1e6
"""Keys are scores less these steps: jobs that have waited for long go before others, and higher priorities first."""


@compiled
def fill_expectations(survival: Floats, edges: Floats, ceiling: float, service: Singles, rest: Singles) -> None:
    """Write the logarithms of the expected service per completion, and of the mean rest, of a job of each age.

    `survival` is the probability that the run time exceeds each of `edges`; beyond the last edge nothing is expected.
    """
    count = edges.shape[0]
    area = np.zeros(count)  # the integral of survival up to each edge
    alive = np.empty(count)
    for at in range(count):
        alive[at] = survival[at] if edges[at] < ceiling else 0.0
        if at:
            area[at] = area[at - 1] + 0.5 * (alive[at] + survival[at - 1]) * (
                min(edges[at], ceiling) - min(edges[at - 1], ceiling)
            )
    first = 0
    for age in range(AGES):
        seconds = 0.0 if age == 0 else 2.0 ** (age - 1)
        while first < count - 1 and edges[first] < seconds:
            first += 1
        least = math.inf
        for at in range(first + 1, count):
            completed = alive[first] - alive[at]
            if completed > 1e-9:
                least = min(least, (area[at] - area[first]) / completed)
        mean = (area[count - 1] - area[first]) / alive[first] if alive[first] > 1e-9 else seconds
        service[age] = math.log(max(MIN_SECONDS, least if least < math.inf else max(seconds, mean)))
        rest[age] = math.log(max(MIN_SECONDS, mean))


@inlined
def done_by(runs: RunColumns, job: int, now: float) -> float:
    """Return the work that a job has done, in seconds."""
    return float(runs.done[job] + max(0.0, now - runs.since[job]))


@inlined
def age_of(done: float) -> int:
    """Return the entry of the tables by age for a job that has done so much."""
    return 0 if done < 1.0 else min(AGES - 1, math.frexp(done)[1])


@inlined
def mean_rest(jobs: JobColumns, job: int, done: float) -> float:
    """Return the mean remaining time of a job."""
    if not math.isnan(jobs.known[job]):
        return float(max(MIN_SECONDS, jobs.known[job] - done))
    return math.exp(jobs.rest[job, age_of(done)])


@inlined
def write_features(jobs: JobColumns, job: int, now: float, done: float, queue: float, features: Floats) -> None:
    """Write the features of a job."""
    if math.isnan(jobs.known[job]):
        features[SERVICE], features[REST] = jobs.service[job, age_of(done)], jobs.rest[job, age_of(done)]
    else:
        features[SERVICE] = features[REST] = math.log(max(MIN_SECONDS, jobs.known[job] - done))
    gpus = max(jobs.gpus[job], MIN_GPUS)
    delay = max(0.0, now - jobs.submitted[job] - done)
    features[GPUS_REQUESTED] = math.log(gpus)
    features[WIDE] = 1.0 if gpus >= WIDE_GPUS else 0.0
    features[DELAY] = math.log1p(delay / HOUR) if delay > 0.0 else 0.0
    features[SHORT_DELAY] = math.log1p(delay / MINUTE) if delay > 0.0 else 0.0
    features[ATTAINED] = math.log1p(gpus * done / HOUR) if done > 0.0 else 0.0
    features[SERVICE_Q] = queue * features[SERVICE]
    features[GPUS_Q] = queue * features[GPUS_REQUESTED]
    features[DELAY_Q] = queue * features[DELAY]


@inlined
def score(weights: Weights, features: Floats) -> float:
    """Return the score of a job: the lowest is the most urgent."""
    total = 0.0
    for feature in range(features.shape[0]):
        total += weights.linear[feature] * features[feature]
    for unit in range(weights.output.shape[0]):
        inner = weights.hidden[unit, features.shape[0]]
        for feature in range(features.shape[0]):
            inner += weights.hidden[unit, feature] * features[feature]
        total += weights.output[unit] * math.tanh(inner)
    return min(max(total, -MAX_SCORE), MAX_SCORE)


@inlined
def sort_key(
    weights: Weights, jobs: JobColumns, job: int, now: float, done: float, queue: float, features: Floats
) -> float:
    """Return the sort key of a job: its score, less steps for its priority and for a long delay."""
    write_features(jobs, job, now, done, queue, features)
    key = score(weights, features) - PRIORITY_STEP * jobs.priority[job]
    return float(key - OVERDUE_STEP if is_overdue(weights, jobs, job, now, done) else key)


@inlined
def is_overdue(weights: Weights, jobs: JobColumns, job: int, now: float, done: float) -> bool:
    """Return whether a job has waited for so long that it goes first."""
    return bool(now - jobs.submitted[job] - done >= weights.rules[PATIENCE])
