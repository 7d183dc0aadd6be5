"""Jobs as the columns of the compiled round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refold.model import Demand, Job, Seconds
from refold.packing import Floats
from refold.policies.learned.arrays import JobColumns, Shares, Singles
from refold.policies.learned.scores import AGES, fill_expectations
from refold.predict import DurationDistribution, bin_edges

_EDGES = bin_edges()


class Expectations(NamedTuple):
    """What is expected of each job at submission: its run time, if known (else NaN), and the tables by age."""

    known: Floats
    service: Singles
    rest: Singles

    @staticmethod
    def allocate(count: int) -> Expectations:
        """Return expectations of jobs of which nothing is set yet."""
        return Expectations(
            np.full(count, np.nan), np.ones((count, AGES), dtype=np.float32), np.ones((count, AGES), dtype=np.float32)
        )

    def rows(self, indices: Sequence[int]) -> Expectations:
        """Return those of some jobs."""
        return Expectations(self.known[indices], self.service[indices], self.rest[indices])

    def doubled(self) -> Expectations:
        """Return expectations of twice as many jobs, the first half of them these."""
        return self.rows([*range(len(self.known))] * 2)

    def set_known(self, index: int, seconds: Seconds) -> None:
        """Set a run time that is known."""
        self.known[index] = seconds

    def set_predicted(self, index: int, predicted: DurationDistribution) -> None:
        """Set what follows from a predicted distribution."""
        self.known[index] = np.nan
        fill_expectations(predicted.survival, _EDGES, predicted.ceiling, self.service[index], self.rest[index])


def job_columns(jobs: Sequence[Job], demand_numbers: Sequence[int], expected: Expectations) -> JobColumns:
    """Return the columns of jobs."""
    return JobColumns(
        np.array([job.submitted for job in jobs], dtype=np.float64),
        np.array([job.priority for job in jobs], dtype=np.int64),
        np.array(demand_numbers, dtype=np.int64),
        np.array([job.demand.total_gpus for job in jobs], dtype=np.float64),
        *expected,
    )


def share_rows(demands: Sequence[Demand]) -> Shares:
    """Return empty rows for the instances of jobs with these demands."""
    first_row = np.zeros(len(demands) + 1, dtype=np.int64)
    np.cumsum([demand.instances for demand in demands], out=first_row[1:])
    amounts = np.array([(demand.gpu_milli, demand.cpu_milli, demand.memory_mib) for demand in demands], dtype=np.int64)
    instances = np.diff(first_row)
    return Shares(
        first_row,
        np.zeros((int(first_row[-1]), 2), dtype=np.int64),
        np.repeat(amounts.reshape(len(demands), 3), instances, axis=0),
    )
