"""Time bins, contexts and arrays of the run-time predictor."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

LEVELS = 7
BINS = 1 << LEVELS
FIRST_EDGE = 0.5
BINS_PER_DOUBLING = 5
BIN_WIDTH = math.log(2.0) / BINS_PER_DOUBLING
LAST_EDGE = FIRST_EDGE * 2.0 ** (BINS / BINS_PER_DOUBLING)
"""Bins have equal width in log time: five per doubling, from half a second to 294 days."""

# Context tables: one row per context, found by the hash of the context. A row stores the durations of the jobs of its
# context as a binary tree over the bins: node 1 predicts whether a job runs longer than the middle of all bins, nodes
# 2 and 3 the same for either half, and so on. Each node has log odds at two learning rates and a count of examples.

HEIGHTS = np.arange(LEVELS, 0, -1)
"""The node at a height above bin `at` is `(BINS + at) >> height`."""

TABLE_ROWS = 1 << 15
PROBES = 8
RATES = 2
MIN_LEARNING_RATES = np.array([0.08, 0.01])
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
BACKOFF = np.array([ALL, ALL, GPUS, ALL, DEMAND, OWNER, OWNER_DEMAND, *[FULL] * 3, GPUS, OWNER, *[FULL] * 5])
"""The coarser context that a context with few examples backs off to."""

NAME_WEIGHT = 0.5
"""How much of what a name and workload change for all owners is expected for an owner without such jobs."""

RECENT_HINT, LIMIT_HINT, MODEL_HINT, HINTS = 0, 1, 2, 3
"""Hints of the duration, in seconds; 0: no hint."""

HINT_CONTEXTS = np.array([FULL, OWNER, KIND])
"""The static context of which the fine context of each hint is a part."""

INPUTS = 1 + (TIME_CONTEXTS + HINTS) * RATES
"""Number of mixed inputs: the prior, and for each learning rate the time contexts and the fine ratio contexts."""

COARSER, FINE, TOTAL, RATIO_PRIOR, INPUT_ROWS = INPUTS, INPUTS + 1, INPUTS + 2, INPUTS + 3, INPUTS + 3 + HINTS
"""Rows after the inputs: what a context backs off to, a fine ratio context, the sum, and the priors of ratios."""

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
