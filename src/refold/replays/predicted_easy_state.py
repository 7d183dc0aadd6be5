"""The state of the compiled replay of EASY backfilling with predicted run times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import struct
from refold.packing import Bools, Floats, FreeArrays, Ints
from refold.predict import NumberedPredictor
from refold.replays.heaps import OrderedHeap
from refold.replays.predicted_easy_schedule import Schedule
from refold.replays.run_log import RunLog

PREEMPT: dict[str, int] = {"never": 0, "whole-node": 1, "always": 2}
NEVER, WHOLE_NODE = 0, 1

# Entries of `State.counters`. `RECORDED`: the tasks before it have been passed to the predictor. `FIRST_RUN`,
# `LAST_RUN`: the ends of the list of runs in the order of starts. `STARTED`, `STOPPED`, `REQUEUED`: lengths of lists.
(
    STEP,
    ARRIVED,
    WAITING,
    WAITING_ROWS,
    RUNNING,
    RECORDED,
    FIRST_RUN,
    LAST_RUN,
    STARTED,
    STOPPED,
    REQUEUED,
    ORDERED,
    STOPPING,
) = range(13)


class Rules(NamedTuple):
    """The settings of the policy, the GPUs of the largest node, and the costs of runs in seconds."""

    duration_quantile: float
    confidence: float
    preempt: int
    whole_node_gpus: int
    start: float
    stop: float
    restart: float


@struct
class Runs:
    """The state of each task: its current run in the log (-1: none), and how many runs it has had.

    `elapsed` and `done`: run time and work of its earlier runs. `overtook`: how many tasks had arrived when it started
    ahead of others; -1: it did not. `following` and `preceding`: the list of runs in the order of starts.
    """

    run: Ints
    number: Ints
    is_stopping: Bools
    is_finished: Bools
    start: Floats
    computing_from: Floats
    speed: Floats
    done: Floats
    elapsed: Floats
    booked_end: Floats
    overtook: Ints
    following: Ints
    preceding: Ints

    @staticmethod
    def allocate(tasks: int) -> Runs:
        """Return the state of tasks that have not been started."""
        run, overtook, following, preceding = np.full((4, tasks), -1, dtype=np.int64)
        is_stopping, is_finished = np.zeros((2, tasks), dtype=np.bool_)
        start, computing_from, speed, done, elapsed, booked_end = np.zeros((6, tasks))
        return Runs(
            run,
            np.zeros(tasks, dtype=np.int64),
            is_stopping,
            is_finished,
            start,
            computing_from,
            speed,
            done,
            elapsed,
            booked_end,
            overtook,
            following,
            preceding,
        )


@struct
class Lists:
    """Lists of tasks: those that start, stop and are queued again in a step, and two for intermediate results."""

    starts: Ints
    stops: Ints
    requeued: Ints
    overdue: Ints
    considered: Ints

    @staticmethod
    def allocate(tasks: int) -> Lists:
        """Return empty lists."""
        return Lists(*(np.zeros(2 * tasks + 1, dtype=np.int64) for _ in range(5)))


@struct
class State:
    """The state of a replay. `ends`: runs by booked end, `wakes`: times at which the policy wants to be called."""

    schedule: Schedule
    predictor: NumberedPredictor
    runs: Runs
    lists: Lists
    rules: Rules
    submitted: Floats
    work: Floats
    is_preemptible: Bools
    fits_empty: Ints
    speed_of_node: Floats
    free: FreeArrays
    events: OrderedHeap
    ends: OrderedHeap
    wakes: OrderedHeap
    last_wake: Floats
    log: RunLog
    counters: Ints
