"""Sia (SOSP'23): every minute an integer programme gives each job the number of GPUs that serves all of them best.

As in Rubick's comparison (MLSys'25) the global batch is fixed, and only the number of replicas changes. What a job gets
out of n GPUs, against its smallest share, is its goodput G. The programme minimises, over who gets which share,

    Σ G^p + λ · (jobs that get nothing),    p = -0.5, λ = 1.1

so that a second GPU for one job counts less than a first one for another. A running job that would change its share
is taken to be slower by r = (T - N·S) / (T + S), at age T after N restarts of S seconds, so that changes are rare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Seconds
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Knowledge
from refold.policies.common import Budget, Option, Outlook, Rounds, Wishes, is_held, possible
from refold.policies.published.replicas import Replicas

Floats = NDArray[np.float64]

MOST_COST = 3000.0
"""No share costs more than this: a job that has only ever restarted would cost without end."""

TIE = 1e-3
"""Decides between equal sums, being less than the hundredths that costs are rounded to.

What is held goes before what is not, who runs before who waits, and who came first before the others.
"""


class JobRow(NamedTuple):
    """One job of the programme: its options, which of them it has now (-1: none), and r."""

    options: Sequence[Option]
    current: int
    restart_factor: float


class Sia:
    """Numbers of replicas by an integer programme over goodput, in rounds."""

    name = "sia"

    def __init__(
        self,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
        placement: str = "best-fit",
        seed: int = 0,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 78.0,
        fairness_power: float = -0.5,
        queue_penalty: float = 1.1,
        growth: float = 2.0,
        gap: float = 1e-4,
        nodes: int = 2000,
    ) -> None:
        if not -inf < fairness_power < 0:
            raise BadValue(f"fairness_power is {fairness_power}, expected < 0")
        if not 1 < queue_penalty < MOST_COST:
            raise BadValue(f"queue_penalty is {queue_penalty}, expected > 1: else nobody would be started")
        if not growth > 1:
            raise BadValue(f"growth is {growth}, expected > 1")
        if not gap >= 0 or nodes < 1:
            raise BadValue(f"gap is {gap} and nodes is {nodes}, expected ≥ 0 and ≥ 1")
        self._knowledge = Knowledge.of(knowledge)
        self._restart_seconds = restart_seconds
        self._power, self._penalty, self._growth = fairness_power, queue_penalty, growth
        self._limits = {"mip_rel_gap": gap, "node_limit": nodes}
        self._rounds = Rounds(round_seconds, Placer(placement, seed))
        self._most_held: dict[str, float] = {}
        self._outlook: Outlook | None = None
        self._replicas: Replicas | None = None

    def decide(self, view: View) -> Decision:
        """Share out once a round."""
        if self._outlook is None:
            self._outlook = Outlook(view, self._knowledge, self._restart_seconds)
            self._replicas = Replicas(self._outlook.speeds, self._knowledge, powers_of_two=True)
        self._note_what_was_held(view)
        return self._rounds.decide(view, self, self._outlook)

    def options(self, job: Job) -> Sequence[Option]:
        """What a job could have: at most twice what it ever had, so it begins as small as can be."""
        assert self._replicas is not None
        return self._replicas.of(job, int(self._growth * self._most_held.get(job.id, 0)))

    def share_out(self, view: View, jobs: Mapping[str, Job], budget: Budget) -> Wishes:
        """Solve the programme: who should have what, and, if there is no place for that, which less will do."""
        in_order = sorted(jobs.values(), key=lambda job: (job.id not in view.runs, job.submitted, job.id))
        rows = [self._row(view, job) for job in in_order]
        chosen = solved(rows, budget, self._power, self._penalty, self._limits)
        return {
            job.id: row.options[choice::-1]
            for job, row, choice in zip(in_order, rows, chosen, strict=True)
            if choice >= 0
        }

    def _row(self, view: View, job: Job) -> JobRow:
        options, run = possible(view, job, self.options(job)), view.runs.get(job.id)
        if run is None:
            return JobRow(options, -1, 1.0)
        current = next((i for i, option in enumerate(options) if is_held(view, option, run.allocation)), -1)
        return JobRow(options, current, self._restart_factor(view.now - job.submitted, run.number - 1))

    def _restart_factor(self, age: Seconds, restarts: int) -> float:
        """What is left of a job's goodput if it restarts as often as it has, once more; young jobs may."""
        cost = self._restart_seconds
        return 1.0 if age < cost or cost == 0 else max(0.0, age - restarts * cost) / (age + cost)

    def _note_what_was_held(self, view: View) -> None:
        changes = view.changes
        for run in changes.started:
            gpus = sum(run.allocation.gpus_on_node)
            self._most_held[run.job] = max(gpus, self._most_held.get(run.job, 0))
        for job_id in [run.job for run in changes.ended] + changes.gone:
            if job_id not in view.waiting and job_id not in view.active:
                self._most_held.pop(job_id, None)


def solved(
    rows: Sequence[JobRow], budget: Budget, power: float, penalty: float, limits: Mapping[str, float]
) -> Sequence[int]:
    """For each job which option it gets; -1: none.

    The solver stops at a gap or a number of nodes, never at a time. If it has found nothing by then, everybody keeps
    what they have.
    """
    if not rows:
        return []
    job_of = np.repeat(np.arange(len(rows)), [len(row.options) for row in rows])
    is_current = np.concatenate([np.arange(len(row.options)) == row.current for row in rows])
    gain = costs(rows, power) - penalty + TIE / 2 * (job_of / len(rows) + ~is_current)
    answer = milp(
        gain,
        integrality=np.ones(len(gain)),
        bounds=Bounds(0, 1),
        constraints=constraints(rows, job_of, budget),
        options=dict(limits),
    )
    if answer.x is None:
        return [row.current for row in rows]
    first = np.concatenate([[0], np.cumsum([len(row.options) for row in rows])])
    chosen = np.full(len(rows), -1)
    taken = np.flatnonzero(answer.x > 0.5)
    chosen[job_of[taken]] = taken - first[job_of[taken]]
    return [int(choice) for choice in chosen]


def costs(rows: Sequence[JobRow], power: float) -> Floats:
    """G^p of every option of every job, in hundredths. The least goodput of a job counts as the GPUs it takes."""
    return np.concatenate([_row_costs(row, power) for row in rows])


def _row_costs(row: JobRow, power: float) -> Floats:
    speeds = np.array([option.speed for option in row.options])
    least = int(np.argmin(speeds))
    goodput = speeds / speeds[least] * max(1.0, row.options[least].demand.total_gpus)
    if row.current >= 0:
        goodput[np.arange(len(goodput)) != row.current] *= row.restart_factor
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(np.round(goodput**power, 2), MOST_COST))


def constraints(rows: Sequence[JobRow], job_of: NDArray[np.intp], budget: Budget) -> LinearConstraint:
    """One option at most for each job; no more GPUs than there are, of each type and in all."""
    options = [option for row in rows for option in row.options]
    columns = np.arange(len(options))
    one_each = csr_array((np.ones(len(options)), (job_of, columns)), shape=(len(rows), len(options)))
    types = {name: index for index, name in enumerate(budget.by_type)}
    gpus = np.array([option.demand.total_gpus for option in options])
    type_of = np.array([_only_type(option, types) for option in options])
    typed = type_of >= 0
    by_type = csr_array((gpus[typed], (type_of[typed], columns[typed])), shape=(len(types), len(options)))
    most = np.array([*np.ones(len(rows)), *(milli / WHOLE for milli in budget.by_type.values()), budget.total / WHOLE])
    matrix = vstack([one_each, by_type, csr_array(gpus[None, :])], format="csc")
    return LinearConstraint(matrix, 0.0, most)


def _only_type(option: Option, types: Mapping[str, int]) -> int:
    """The GPU type that an option is of; -1: it may be of several."""
    accepted = option.demand.gpu_types
    return types.get(accepted[0], -1) if len(accepted) == 1 else -1
