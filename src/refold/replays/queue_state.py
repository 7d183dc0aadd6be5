"""The state of the compiled replay of `sjf`, `srtf` and `las`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.packing import Bools, Floats, FreeArrays, Ints, PlacementRule
from refold.replays.waiting_tasks import WaitingTasks

SJF, SRTF, LAS = range(3)

# Entries of `Claims.counts`.
TOUCHED, CLAIMS, STOPS = range(3)

# Entries of `QueueState.counts`. `STARTED`, `REPORTED` and `REQUEUED` are the lengths of lists.
STEPS, ARRIVED, WAITING, WAITING_ROWS, RUNNING, STARTED, REPORTED, REQUEUED, FREED = range(9)


class QueueRules(NamedTuple):
    """The order of the queue, the threshold of `las`, and the costs of runs in seconds.

    `demoted_from`: the threshold less the tolerance for rounding.
    """

    order: int
    threshold: float
    demoted_from: float
    start: float
    stop: float
    restart: float


class QueueTasks(NamedTuple):
    """What is known of tasks. `urgency`: the negative priority; `milli`: thousandths of GPUs of all instances.

    `placements`: the rows of what a task holds, or claims, from `first_row` on.
    """

    submitted: Floats
    work: Floats
    urgency: Ints
    demand_of: Ints
    milli: Ints
    is_preemptible: Bools
    first_row: Ints
    placements: Ints


class TaskRuns(NamedTuple):
    """The state of each task: its current run (-1: none), and how many runs it has had.

    `start`: when that was ordered; `counted_from`: since when the policy counts its work, `computing_from`: since when
    it works; `done`: seconds of work saved by earlier runs; `attained`: their GPU-seconds.
    """

    run: Ints
    number: Ints
    is_stopping: Bools
    start: Floats
    counted_from: Floats
    computing_from: Floats
    speed: Floats
    done: Floats
    attained: Floats

    @staticmethod
    def allocate(tasks: int) -> TaskRuns:
        """Return the state of tasks that have not been started."""
        times = (np.zeros(tasks) for _ in range(6))
        return TaskRuns(
            np.full(tasks, -1, dtype=np.int64), np.zeros(tasks, dtype=np.int64), np.zeros(tasks, dtype=np.bool_), *times
        )


class RankedRuns(NamedTuple):
    """Tasks whose runs may be preempted, the most urgent first: by rank, start of the run, and job id."""

    order: Ints
    major: Ints
    minor: Floats
    id_rank: Ints
    is_ranked: Bools
    size: Ints

    @staticmethod
    def allocate(id_rank: Ints) -> RankedRuns:
        """Return an empty ranking. `id_rank`: the position of each task in the order of job ids."""
        tasks = len(id_rank)
        return RankedRuns(
            np.zeros(tasks, dtype=np.int64),
            np.zeros(tasks, dtype=np.int64),
            np.zeros(tasks),
            id_rank,
            np.zeros(tasks, dtype=np.bool_),
            np.zeros(1, dtype=np.int64),
        )


class Claims(NamedTuple):
    """What the tasks in `tasks` have claimed in this round: of each GPU, and of the CPUs and memory of nodes.

    `stops`: the tasks that are preempted for them. `victims`: those that are considered for one claim.
    """

    gpu_milli: Ints
    cpu: Ints
    memory: Ints
    is_touched: Bools
    touched: Ints
    tasks: Ints
    stops: Ints
    victims: Ints
    counts: Ints

    @staticmethod
    def allocate(tasks: int, nodes: int, gpus: int) -> Claims:
        """Return the claims of a round without any."""
        gpu_milli = np.zeros(gpus, dtype=np.int64)
        cpu, memory, touched = np.zeros((3, nodes), dtype=np.int64)
        claiming, stops, victims = np.zeros((3, tasks), dtype=np.int64)
        is_touched, counts = np.zeros(nodes, dtype=np.bool_), np.zeros(3, dtype=np.int64)
        return Claims(gpu_milli, cpu, memory, is_touched, touched, claiming, stops, victims, counts)


class QueueState(NamedTuple):
    """The state of a replay, apart from future events and the log of runs, which grow.

    `fits_empty`: by demand. `free`: what is free and not claimed; `future`: what will be free and not claimed once all
    stopping runs have stopped. `started`: tasks that were started in the step before; `reported` and `requeued`: those
    that have reported their start and that have stopped in this step.
    """

    rules: QueueRules
    placement: PlacementRule
    fits_empty: Ints
    speed_of_node: Floats
    tasks: QueueTasks
    waiting: WaitingTasks
    runs: TaskRuns
    ranking: RankedRuns
    claims: Claims
    free: FreeArrays
    future: FreeArrays
    counts: Ints
    started: Ints
    reported: Ints
    requeued: Ints
