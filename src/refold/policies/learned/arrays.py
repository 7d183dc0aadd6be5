"""The arrays of the compiled scheduling round: what it is given, and what it decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refold.model import Seconds
from refold.packing import Bools, Floats, Ints

Singles = npt.NDArray[np.float32]

REVIEW_SECONDS: Seconds = 120.0
"""While jobs wait, there is a round at each multiple of this time: scores change with time."""

WAITS, STARTS, STOPS, CLAIMS, RESERVES = range(5)
"""What a round decides for a job. `CLAIMS`: it starts when runs have stopped; `RESERVES`: when runs have ended."""


class Weights(NamedTuple):
    """The parameters of the policy. `hidden`: a row per hidden unit, the last entry its bias; `output`: its weight."""

    linear: Floats
    hidden: Floats
    output: Floats
    rules: Floats


class JobColumns(NamedTuple):
    """What is known of jobs. `known`: run time, NaN if it is predicted; `service` and `rest`: the features by age."""

    submitted: Floats
    priority: Ints
    demand: Ints
    gpus: Floats
    known: Floats
    service: Singles
    rest: Singles


class RunColumns(NamedTuple):
    """The state of each job: start of its run, since when it computes, work done until then, number of starts.

    `milli`: thousandths of GPUs that the run holds. `fixed`: it may not be stopped. `stopping`: it is being stopped.
    """

    started: Floats
    since: Floats
    done: Floats
    starts: Ints
    milli: Ints
    fixed: Bools
    stopping: Bools


class Shares(NamedTuple):
    """What each job holds or will hold: rows of (node, GPU mask) from `first_row` on, each with (GPU, CPU, memory)."""

    first_row: Ints
    placements: Ints
    amounts: Ints


class RoundLimits(NamedTuple):
    """The costs and limits of preemption, and the GPUs of the cluster."""

    restart_seconds: float
    max_restarts: int
    cluster_gpus: float


class RoundResult(NamedTuple):
    """What a round decides: the action for each job, and for a stopped job the one that it is stopped for."""

    action: Ints
    stopped_for: Ints
