"""Sia (SOSP'23): an integer linear program chooses the configuration of each job in rounds of one minute.

As in Rubick's comparison (MLSys'25), the global batch size is fixed and only the number of replicas changes. The
goodput G of a configuration is its speed relative to the slowest configuration of the job, times the GPUs of the
latter. The program minimises

    Σ G^p + λ · (number of jobs without GPUs),    p = -0.5, λ = 1.1

over the assignment of at most one configuration per job, so that a second GPU for one job gains less than a first GPU
for another. The goodput of every configuration other than a run's current one is multiplied by the restart factor
r = (T - N·S) / (T + S), with age T, N restarts, and S seconds per restart, so that changes are rare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Seconds
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.common import (
    GpuBudget,
    Option,
    PreferredOptions,
    ProgressEstimator,
    Rounds,
    feasible_options,
    matches_option,
)
from refold.policies.published.replicas import Replicas

Floats = NDArray[np.float64]

GROWTH = 2
"""Largest ratio of a job's GPUs to the most it has had so far: the scale-up rule of the paper."""

SOLVER_LIMITS = {"mip_rel_gap": 1e-4, "node_limit": 2000}
"""Relative gap and branch-and-bound nodes at which the solver stops; counts, not seconds, so that a replay is equal."""

MAX_COST = 3000.0
"""Upper bound of a configuration's cost, which is infinite where the restart factor is 0."""

TIE_BREAKER = 1e-3
"""Breaks ties between equal sums; smaller than the 0.01 to which costs are rounded.

Current configurations come before others, running jobs before waiting ones, then earlier submissions first.
"""


class JobRow(NamedTuple):
    """One job of the program: its options, the index of its current one (-1: none), and its restart factor."""

    options: Sequence[Option]
    current: int
    restart_factor: float


class Sia:
    """In rounds, an integer linear program over goodput chooses the number of replicas of each job."""

    name = "sia"

    def __init__(
        self,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
        placement: str = "best-fit",
        seed: int = 0,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 78.0,
        fairness_power: float = -0.5,
        queue_penalty: float = 1.1,
    ) -> None:
        """Create the policy; `fairness_power`: p; `queue_penalty`: λ."""
        if not -inf < fairness_power < 0:
            raise BadValue(f"fairness_power is {fairness_power}, expected a number < 0")
        if not 1 < queue_penalty < MAX_COST:
            raise BadValue(f"queue_penalty is {queue_penalty}, expected a number > 1; otherwise no job would start")
        self._knowledge = Knowledge.from_settings(knowledge)
        self._restart_seconds = restart_seconds
        self._power, self._penalty = fairness_power, queue_penalty
        self._rounds = Rounds(round_seconds, Placer(placement, seed))
        self._max_gpus_held: dict[str, float] = {}
        self._estimator: ProgressEstimator | None = None
        self._replicas: Replicas | None = None

    def decide(self, view: View) -> Decision:
        """Divide the GPUs once per round."""
        if self._estimator is None or self._replicas is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self._restart_seconds)
            self._replicas = Replicas(self._estimator.speeds, self._knowledge, powers_of_two=True)
        if self._estimator.learn(view):
            self._replicas.clear()
        self._record_gpus_held(view)
        return self._rounds.decide(view, self, self._estimator)

    def options(self, job: Job) -> Sequence[Option]:
        """Return a job's options up to `GROWTH` times the most GPUs it has had; a new job has its smallest only."""
        assert self._replicas is not None
        return self._replicas.for_job(job, int(GROWTH * self._max_gpus_held.get(job.id, 0)))

    def allocate_gpus(self, view: View, jobs: Mapping[str, Job], budget: GpuBudget) -> PreferredOptions:
        """Solve the program; for each job, return the chosen option, then smaller ones in case it does not fit."""
        in_order = sorted(jobs.values(), key=lambda job: (job.id not in view.runs, job.submitted, job.id))
        rows = [self._row(view, job) for job in in_order]
        chosen = solve(rows, budget, self._power, self._penalty, SOLVER_LIMITS)
        return {
            job.id: row.options[choice::-1]
            for job, row, choice in zip(in_order, rows, chosen, strict=True)
            if choice >= 0
        }

    def _row(self, view: View, job: Job) -> JobRow:
        options, run = feasible_options(view, job, self.options(job)), view.runs.get(job.id)
        if run is None:
            return JobRow(options, -1, 1.0)
        current = next((i for i, option in enumerate(options) if matches_option(view, option, run.allocation)), -1)
        return JobRow(options, current, self._restart_factor(view.now - job.submitted, run.number - 1))

    def _restart_factor(self, age: Seconds, restarts: int) -> float:
        """Return r, or 1 for jobs younger than a restart."""
        cost = self._restart_seconds
        return 1.0 if age < cost or cost == 0 else max(0.0, age - restarts * cost) / (age + cost)

    def _record_gpus_held(self, view: View) -> None:
        changes = view.changes
        for run in changes.started:
            gpus = sum(run.allocation.gpus_on_node)
            self._max_gpus_held[run.job] = max(gpus, self._max_gpus_held.get(run.job, 0))
        for job_id in [run.job for run in changes.ended] + changes.removed:
            if job_id not in view.waiting and job_id not in view.active:
                self._max_gpus_held.pop(job_id, None)


def solve(
    rows: Sequence[JobRow], budget: GpuBudget, power: float, penalty: float, limits: Mapping[str, float]
) -> Sequence[int]:
    """Return the index of each job's option; -1 for none.

    The solver stops at a relative gap or a number of nodes, never after a time, so that results are reproducible. If
    it has found no solution by then, every job keeps its current option.
    """
    from scipy.optimize import Bounds, milp  # imported late: it takes long to load

    if not rows:
        return []
    job_of = np.repeat(np.arange(len(rows)), [len(row.options) for row in rows])
    is_current = np.concatenate([np.arange(len(row.options)) == row.current for row in rows])
    objective = costs(rows, power) - penalty + TIE_BREAKER / 2 * (job_of / len(rows) + ~is_current)
    solution = milp(
        objective,
        integrality=np.ones(len(objective)),
        bounds=Bounds(0, 1),
        constraints=constraints(rows, job_of, budget),
        options=dict(limits),
    )
    if solution.x is None:
        return [row.current for row in rows]
    first = np.concatenate([[0], np.cumsum([len(row.options) for row in rows])])
    chosen = np.full(len(rows), -1)
    selected = np.flatnonzero(solution.x > 0.5)
    chosen[job_of[selected]] = selected - first[job_of[selected]]
    return [int(choice) for choice in chosen]


def costs(rows: Sequence[JobRow], power: float) -> Floats:
    """Return G^p of every option of every job, rounded to 0.01. G of the slowest option is its number of GPUs."""
    return np.concatenate([_row_costs(row, power) for row in rows])


def _row_costs(row: JobRow, power: float) -> Floats:
    speeds = np.array([option.speed for option in row.options])
    smallest = int(np.argmin(speeds))
    goodput = speeds / speeds[smallest] * max(1.0, row.options[smallest].demand.total_gpus)
    if row.current >= 0:
        goodput[np.arange(len(goodput)) != row.current] *= row.restart_factor
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(np.round(goodput**power, 2), MAX_COST))


def constraints(rows: Sequence[JobRow], job_of: NDArray[np.intp], budget: GpuBudget) -> Any:
    """Return the constraints: at most one option per job; GPUs per type and in total within the budget."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array, vstack

    options = [option for row in rows for option in row.options]
    columns = np.arange(len(options))
    one_each = csr_array((np.ones(len(options)), (job_of, columns)), shape=(len(rows), len(options)))
    types = {name: index for index, name in enumerate(budget.by_type)}
    gpus = np.array([option.demand.total_gpus for option in options])
    type_of = np.array([_only_type(option, types) for option in options])
    typed = type_of >= 0
    by_type = csr_array((gpus[typed], (type_of[typed], columns[typed])), shape=(len(types), len(options)))
    limits = np.array(
        [*np.ones(len(rows)), *(milli / WHOLE for milli in budget.by_type.values()), budget.total / WHOLE]
    )
    matrix = vstack([one_each, by_type, csr_array(gpus[None, :])], format="csc")
    return LinearConstraint(matrix, 0.0, limits)


def _only_type(option: Option, types: Mapping[str, int]) -> int:
    """Return the index of an option's GPU type; -1 if it accepts several."""
    accepted = option.demand.gpu_types
    return types.get(accepted[0], -1) if len(accepted) == 1 else -1
