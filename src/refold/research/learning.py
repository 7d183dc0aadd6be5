"""Training of the learned policy: an evolution strategy over slices of job histories, in the compiled simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from math import exp, log
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refold.errors import BadInput
from refold.model import MINUTE, Cluster, Job, Seconds
from refold.packing import FreeResources
from refold.policies.learned import FEATURES, Expectations, HiddenUnit, Parameters
from refold.predict import Predictor
from refold.replays import TrainingTasks, replay_learned, training_tasks
from refold.research.evolution import Evolution, EvolutionState
from refold.worker_processes import Report, worker_processes

Floats = npt.NDArray[np.float64]

WIDE_GPUS = 8.0
MIN_DELAY: Seconds = MINUTE
"""Added to delays before they are compared, so that slices without a queue count little."""

MEASURES = {"mean": 0.5, "p99": 0.25, "wide": 0.25}
"""Mean delay, 99th percentile, and mean delay of jobs with eight or more GPUs: their weights in the cost of a slice."""

INTERVAL_SCALES = (0.6, 1.2)
"""In a slice, the times between submissions are multiplied by a random number from this range."""

MAX_DRAWS_PER_SLICE = 10
"""A slice in which jobs hardly wait, even under the best simple rule, is drawn again, at most so often on average."""

START = Parameters({"service": 1.0, "gpus": 1.0, "wide": -2.0, "delay": -1.0}, 1.1, 86_400.0, 1.0)
"""Where training starts: least expected work first, as `refold` orders jobs of unknown length."""

SIMPLE_RULES = {
    "order of arrival": Parameters({"delay": -1.0}, 1e6, 1e12, 0.0),
    "least expected service": Parameters({"service": 1.0}, 1e6, 1e12, 0.0),
    "least expected service, preemptive": Parameters({"service": 1.0}, 0.7, 1e12, 1.0),
    "least expected work, preemptive": Parameters({"service": 1.0, "gpus": 1.0}, 0.7, 1e12, 1.0),
}
"""Rules whose best delay, of each measure, is the unit in which the delays of a slice are expressed."""

SIGMA = 0.3
HIDDEN_SCALE = 0.1


class LearningOptions(msgspec.Struct, frozen=True):
    """How to train. `batch`: slices per generation; `hidden`: hidden units of the score."""

    slices: int = 24
    jobs_per_slice: int = 1500
    generations: int = 60
    population: int = 12
    batch: int = 6
    hidden: int = 0
    restart_seconds: Seconds = 78.0
    max_restarts: int = 10
    seed: int = 0


class JobHistory(NamedTuple):
    """Jobs in order of submission, and the cluster on which they are simulated."""

    name: str
    jobs: Sequence[Job]
    cluster: Cluster


class TrainingSlice(msgspec.Struct, frozen=True):
    """Jobs on a cluster, and the best simple delays, by measure."""

    name: str
    tasks: TrainingTasks
    units: dict[str, Seconds]


class LearningProgress(msgspec.Struct, frozen=True):
    """The state after a generation, and the mean cost of its samples: log delay, relative to the best simple rule."""

    state: EvolutionState
    cost: float


def expect_at_submission(jobs: Sequence[Job]) -> Expectations:
    """Return what a predictor that starts without knowledge expects of each job when it is submitted.

    It learns the run time of a job as if the job had started when it was submitted.
    """
    expected, predictor = Expectations.allocate(len(jobs)), Predictor()
    ends: list[tuple[Seconds, int]] = []
    for index, job in enumerate(jobs):
        while ends and ends[0][0] <= job.submitted:
            at, ended = heappop(ends)
            predictor.finished(jobs[ended], jobs[ended].work or 0.0, at)
        predictor.submitted(job, job.submitted)
        expected.set_predicted(index, predictor.expect(job, job.submitted))
        heappush(ends, (job.submitted + (job.work or 0.0), index))
    return expected


def draw_slices(histories: Sequence[JobHistory], options: LearningOptions) -> Iterator[TrainingSlice]:
    """Draw slices of several job histories in turn, at random places and with random intervals between submissions.

    Slices with less than MIN_DELAY of mean delay under the best simple rule teach nothing, and are left out.
    """
    rng = np.random.default_rng(options.seed)
    usable = [_usable(history, options) for history in histories]
    found = 0
    for number in range(options.slices * MAX_DRAWS_PER_SLICE):
        history = usable[number % len(usable)]
        first = int(rng.integers(len(history.jobs) - options.jobs_per_slice + 1))
        part = _make_slice(history, first, float(rng.uniform(*INTERVAL_SCALES)), options)
        if part.units["mean"] >= MIN_DELAY:
            yield part
            found += 1
        if found == options.slices:
            return
    raise BadInput(
        f"jobs wait in only {found} of {options.slices * MAX_DRAWS_PER_SLICE} slices, expected {options.slices}: "
        "train on a smaller cluster, or with fewer slices"
    )


def _usable(history: JobHistory, options: LearningOptions) -> JobHistory:
    """Return a history with only the jobs that have a duration and fit the cluster."""
    free = FreeResources(history.cluster)
    jobs = [job for job in history.jobs if job.work is not None and free.fits_when_empty(job.demand)]
    if len(jobs) < options.jobs_per_slice:
        raise BadInput(
            f"{history.name} has {len(jobs)} jobs with a duration that fit the cluster, "
            f"expected at least {options.jobs_per_slice}, the number of jobs of a slice"
        )
    return history._replace(jobs=jobs)


def _make_slice(history: JobHistory, first: int, scale: float, options: LearningOptions) -> TrainingSlice:
    drawn = history.jobs[first : first + options.jobs_per_slice]
    begin = drawn[0].submitted
    jobs = [msgspec.structs.replace(job, submitted=scale * (job.submitted - begin)) for job in drawn]
    tasks = training_tasks(jobs, history.cluster, expect_at_submission(jobs))
    simple = [delays(tasks, rule, options) for rule in SIMPLE_RULES.values()]
    units = {measure: min(one[measure] for one in simple) for measure in MEASURES}
    return TrainingSlice(f"{history.name} from {first}, intervals × {scale:.2f}", tasks, units)


def delays(tasks: TrainingTasks, parameters: Parameters, options: LearningOptions) -> dict[str, Seconds]:
    """Return the delays of a slice under these parameters, by measure; without wide jobs, the mean stands for them."""
    result = replay_learned(tasks, parameters.weights(), options.restart_seconds, options.max_restarts)
    delay = result.ended - tasks.jobs.submitted - tasks.work
    wide = delay[tasks.jobs.gpus >= WIDE_GPUS]
    mean = float(delay.mean())
    return {"mean": mean, "p99": float(np.percentile(delay, 99)), "wide": float(wide.mean()) if len(wide) else mean}


def slice_cost(part: TrainingSlice, parameters: Parameters, options: LearningOptions) -> float:
    """Return the weighted mean logarithm of the delays of a slice, relative to the best simple rules."""
    found = delays(part.tasks, parameters, options)
    return sum(
        weight * log((found[measure] + MIN_DELAY) / (part.units[measure] + MIN_DELAY))
        for measure, weight in MEASURES.items()
    )


def to_vector(parameters: Parameters, hidden: int, seed: int) -> list[float]:
    """Return parameters as the numbers that are trained. Hidden units that are missing begin without influence."""
    rules = (parameters.preemption_margin, parameters.patience_seconds, parameters.protection)
    vector = [parameters.features.get(name, 0.0) for name in FEATURES]
    vector += [log(max(rule, 1e-3)) for rule in rules]
    for unit in parameters.hidden[:hidden]:
        vector += [*(unit.features.get(name, 0.0) for name in FEATURES), unit.bias, unit.output]
    rng = np.random.default_rng(seed)
    for _ in range(hidden - len(parameters.hidden)):
        vector += [*rng.normal(0.0, HIDDEN_SCALE, len(FEATURES) + 1).tolist(), 0.0]
    return vector


def first_state(parameters: Parameters, options: LearningOptions) -> EvolutionState:
    """Return the state in which training begins."""
    return EvolutionState.initial(to_vector(parameters, options.hidden, options.seed), SIGMA)


def from_vector(vector: Sequence[float], trained_on: str = "") -> Parameters:
    """Return the parameters that a vector of trained numbers stands for."""
    count = len(FEATURES)
    margin, patience, protection = (exp(min(max(value, -7.0), 17.0)) for value in vector[count : count + 3])
    units = [vector[first : first + count + 2] for first in range(count + 3, len(vector), count + 2)]
    return Parameters(
        dict(zip(FEATURES, map(float, vector[:count]), strict=True)),
        margin,
        patience,
        protection,
        tuple(
            HiddenUnit(dict(zip(FEATURES, map(float, unit[:count]), strict=True)), float(unit[-2]), float(unit[-1]))
            for unit in units
        ),
        trained_on,
    )


CostFunction = Callable[[Sequence[tuple[int, Parameters]]], list[float]]
"""Returns the costs of pairs of a slice's number and parameters."""


def _worker_cost(
    shared: tuple[Sequence[TrainingSlice], LearningOptions], pair: tuple[int, Parameters], _report: Report
) -> float:
    slices, options = shared
    return slice_cost(slices[pair[0]], pair[1], options)


@contextmanager
def cost_function(slices: Sequence[TrainingSlice], options: LearningOptions, workers: int) -> Iterator[CostFunction]:
    """Yield a function that computes costs in this process or in several."""
    if workers == 1:
        yield lambda pairs: [slice_cost(slices[number], parameters, options) for number, parameters in pairs]
        return
    with worker_processes((slices, options), workers, "--workers") as processes:
        yield lambda pairs: [cost for _, cost in sorted(processes.map(_worker_cost, pairs))]


def train(
    slices: Sequence[TrainingSlice], options: LearningOptions, costs_of: CostFunction, state: EvolutionState
) -> Iterator[LearningProgress]:
    """Run the generations that are left, and yield the state after each."""
    evolution = Evolution(state, options.population, options.seed)
    while evolution.state.generation < options.generations:
        rng = np.random.default_rng((options.seed, evolution.state.generation, 1))
        batch = rng.choice(len(slices), size=min(options.batch, len(slices)), replace=False).tolist()
        samples = evolution.ask()
        pairs = [(number, from_vector(sample)) for sample in samples.tolist() for number in batch]
        costs = np.array(costs_of(pairs)).reshape(len(samples), len(batch)).mean(axis=1)
        evolution.tell(samples, costs.tolist())
        yield LearningProgress(evolution.state, float(costs.mean()))


def mean_cost(slices: Sequence[TrainingSlice], costs_of: CostFunction, parameters: Parameters) -> float:
    """Return the mean cost of parameters over all slices."""
    return float(np.mean(costs_of([(number, parameters) for number in range(len(slices))])))
