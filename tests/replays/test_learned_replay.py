"""The simulator that trains the learned policy starts and ends every job when the general one does, to the bit."""

import numpy as np
import pytest
from msgspec.structs import replace

from refold.core import View
from refold.journal import History, HistoryJournal
from refold.model import Cluster, Decision, Job
from refold.policies.learned import Expectations, Learned, Parameters
from refold.replays import TrainingResult, replay_learned, training_tasks
from refold.simulator import simulate
from refold.testing import seeded_workload

PREEMPTING = Parameters({"service": 1.0, "gpus": 1.0, "wide": -2.0, "delay": -1.0}, 0.5, 86_400.0, 1.0)
IMPATIENT = Parameters({"service": 1.0, "rest": -0.2, "short_delay": -0.5, "delay_in_queue": -0.3}, 0.2, 300.0, 0.0)


def workload(seed: int) -> tuple[list[Job], Cluster]:
    """Return jobs of all kinds, some of higher priority or not preemptible; no two jobs are equal, so that none tie."""
    jobs, cluster = seeded_workload(seed, jobs=120)
    rng = np.random.default_rng(seed)
    return [
        replace(
            job,
            submitted=job.submitted / 3,
            work=((job.work or 0.0) + 1.0) * float(rng.uniform(0.5, 2.0)),
            priority=int(rng.random() < 0.1),
            preemptible=bool(rng.random() < 0.9),
        )
        for job in jobs
    ], cluster


def simulated(jobs: list[Job], cluster: Cluster, policy: Learned) -> History:
    journal = HistoryJournal()
    simulate(jobs, cluster, policy, journal=journal)
    return journal.history(cluster)


def assert_same(history: History, replayed: TrainingResult) -> None:
    assert history.jobs.first_start.tolist() == replayed.started.tolist()
    assert history.jobs.ended.tolist() == replayed.ended.tolist()
    assert np.bincount(history.runs.job).tolist() == replayed.starts.tolist()


@pytest.mark.parametrize("parameters", [PREEMPTING, IMPATIENT])
@pytest.mark.parametrize("seed", range(6))
def test_with_known_run_times_every_job_starts_and_ends_at_the_same_time(seed: int, parameters: Parameters) -> None:
    jobs, cluster = workload(seed)
    expected = Expectations.allocate(len(jobs))
    for index, job in enumerate(jobs):
        assert job.work is not None
        expected.set_known(index, job.work)
    replayed = replay_learned(training_tasks(jobs, cluster, expected), parameters.weights(), 0.0, 10)
    history = simulated(jobs, cluster, Learned(parameters, restart_seconds=0.0, durations="known"))
    assert_same(history, replayed)
    assert replayed.starts.sum() > len(jobs)  # runs were preempted


class RecordingPredictions(Learned):
    """Records what the policy expects of each job when it first sees it."""

    def __init__(self, jobs: list[Job], parameters: Parameters) -> None:
        super().__init__(parameters, restart_seconds=0.0)
        self._index = {job.id: index for index, job in enumerate(jobs)}
        self.expected = Expectations.allocate(len(jobs))

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        for job in view.changes.submitted:
            columns, index = self._jobs.columns([job]), self._index[job.id]
            self.expected.known[index] = columns.known[0]
            self.expected.service[index] = columns.service[0]
            self.expected.rest[index] = columns.rest[0]
        return decision


@pytest.mark.parametrize("seed", range(3))
def test_with_the_predictions_of_the_policy_every_job_starts_and_ends_at_the_same_time(seed: int) -> None:
    jobs, cluster = workload(seed)
    policy = RecordingPredictions(jobs, PREEMPTING)
    history = simulated(jobs, cluster, policy)
    assert np.isnan(policy.expected.known).all()
    tasks = training_tasks(jobs, cluster, policy.expected)
    assert_same(history, replay_learned(tasks, PREEMPTING.weights(), 0.0, 10))


def test_a_restart_costs_time_in_which_no_work_is_done() -> None:
    jobs, cluster = workload(0)
    expected = Expectations.allocate(len(jobs))
    for index, job in enumerate(jobs):
        expected.set_known(index, job.work or 0.0)
    tasks = training_tasks(jobs, cluster, expected)
    result = replay_learned(tasks, PREEMPTING.weights(), 78.0, 10)
    ran_at_least = tasks.work + 78.0 * (result.starts - 1)
    assert (result.ended - result.started >= ran_at_least - 1e-6).all()
    assert result.starts.max() > 1
