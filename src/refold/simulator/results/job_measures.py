"""Measures of single jobs, from which those of any group of jobs can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refold.journal import Ending, History, Outcome
from refold.placement import Floats, Ints
from refold.simulator.results.measures import finish_time_fairness, work_or_run_time


@dataclass(frozen=True, slots=True, eq=False)
class JobMeasures:
    """One value per job. `delay`: completion time less the run time on the requested resources.

    The run time of a reshapable job depends on the policy: its delay is its completion time. `fairness`: finish-time
    fairness. Both are infinite for a job that was not finished. `preemptions`: how often its runs were stopped.
    """

    delay: Floats
    fairness: Floats
    preemptions: Floats

    def __len__(self) -> int:
        return len(self.delay)

    def of(self, jobs: Ints) -> JobMeasures:
        return JobMeasures(self.delay[jobs], self.fairness[jobs], self.preemptions[jobs])


def measure_jobs(history: History) -> JobMeasures:
    """Compute the measures of each job of a history, in the order of submission."""
    jobs, work = history.jobs, work_or_run_time(history)
    finished = jobs.outcome == Outcome.FINISHED
    completion = np.where(finished, jobs.ended - jobs.submitted, np.nan)
    fairness = finish_time_fairness(history, completion, work)
    own = np.where([job.reshapable for job in jobs.jobs], 0.0, work)
    stopped = (history.runs.ending == Ending.STOPPED).astype(np.float64)
    return JobMeasures(
        np.where(finished, np.maximum(completion - own, 0.0), np.inf),
        np.where(finished, fairness, np.inf),
        history.per_job(stopped),
    )


def join_measures(parts: Sequence[JobMeasures]) -> JobMeasures:
    return JobMeasures(
        np.concatenate([part.delay for part in parts]),
        np.concatenate([part.fairness for part in parts]),
        np.concatenate([part.preemptions for part in parts]),
    )
