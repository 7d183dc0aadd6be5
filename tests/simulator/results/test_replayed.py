"""The history of a compiled replay has the same measures as the journal of the general simulator."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from msgspec.structs import replace

from refold.errors import BadValue
from refold.journal import History, HistoryJournal
from refold.model import Cluster, Job, Tenant
from refold.simulator import Costs, Fault, RecordedSpeeds, SpeedModel, Stuck, simulate
from refold.simulator.registry import make_policy
from refold.simulator.replays import Conditions, Experiment, find_replay
from refold.simulator.results import Measures, measure, replayed_history
from refold.testing import make_cluster, make_job, seeded_workload

REPLAYED: list[tuple[str, dict[str, Any]]] = [
    ("fifo", {}),
    ("fifo", {"placement": "random", "seed": 3}),
    ("fifo-skip", {"placement": "worth"}),
]


def replayed(policy: str, settings: Mapping[str, Any], jobs: Sequence[Job], cluster: Cluster) -> History:
    replay = find_replay(Experiment(policy, settings, jobs, cluster))
    assert replay is not None
    return replayed_history(jobs, cluster, replay.run())


def simulated(policy: str, settings: Mapping[str, Any], jobs: Sequence[Job], cluster: Cluster) -> History:
    journal = HistoryJournal()
    simulate(jobs, cluster, make_policy(policy, settings), journal=journal)
    return journal.history(cluster)


def equal_workload(seed: int) -> tuple[list[Job], Cluster]:
    """Return jobs of one priority that run as requested, some of them infeasible, some of them very short."""
    jobs, cluster = seeded_workload(seed, jobs=60)
    jobs = [replace(job, reshapable=False, gpu_range=None, priority=0) for job in jobs]
    jobs.append(make_job("too-large", gpus=64, at=jobs[-1].submitted))
    jobs.append(make_job("instant", gpus=1, at=jobs[-1].submitted, work=0.0))
    return jobs, cluster


@pytest.mark.parametrize(("policy", "settings"), REPLAYED)
@hypothesis_settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_all_measures_are_the_same(policy: str, settings: dict[str, Any], seed: int) -> None:
    jobs, cluster = equal_workload(seed)
    ours, general = replayed(policy, settings, jobs, cluster), simulated(policy, settings, jobs, cluster)
    assert measure(ours) == measure(general)
    assert [*ours.runs.allocations] == [*general.runs.allocations]
    assert ours.until == general.until


def test_a_history_without_jobs_has_measures() -> None:
    measures: Measures = measure(replayed("fifo", {}, [], make_cluster(1)))
    assert (measures.jobs, measures.runs) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("sjf", {}),
        ("las", {}),
        ("fifo", {"defragment": True}),
        ("fifo", {"placement": "genetic"}),
        ("fifo", {"watch": {}}),
        ("easy", {}),
        ("easy", {"start_estimates": False, "durations": "known"}),
        ("./fifo.py", {}),
    ],
)
def test_other_policies_and_settings_have_no_replay(policy: str, settings: dict[str, Any]) -> None:
    jobs, cluster = equal_workload(1)
    assert find_replay(Experiment(policy, settings, jobs, cluster)) is None


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(costs=Costs(start=1.0)),
        Conditions(faults=(Fault(0, 1.0, 2.0),)),
        Conditions(never_end=(Stuck("j0", 1.0),)),
    ],
)
def test_costs_and_faults_have_no_replay(conditions: Conditions) -> None:
    jobs, cluster = equal_workload(1)
    assert find_replay(Experiment("fifo", {}, jobs, cluster, conditions)) is None


def test_priorities_limits_and_unknown_run_times_have_no_replay() -> None:
    jobs, cluster = equal_workload(1)
    limited = replace(cluster, tenants=(Tenant("default", limit_gpus=2),))
    urgent, unknown = replace(jobs[3], priority=1), replace(jobs[3], work=None)
    for case in (
        (jobs, limited),
        ([*jobs[:3], urgent, *jobs[4:]], cluster),
        ([*jobs[:3], unknown, *jobs[4:]], cluster),
    ):
        assert find_replay(Experiment("fifo", {}, *case)) is None


def test_jobs_that_cannot_be_simulated_are_refused_as_by_the_general_simulator() -> None:
    jobs, cluster = equal_workload(1)
    for bad in ([*jobs, replace(jobs[-1], work=1.0)], jobs[::-1]):
        with pytest.raises(BadValue) as general:
            simulate(bad, cluster, make_policy("fifo"))
        with pytest.raises(BadValue, match=str(general.value)):
            find_replay(Experiment("fifo", {}, bad, cluster))


class TwiceAsFast(RecordedSpeeds):
    def work(self, job: Job) -> float:
        return super().work(job) / 2


def test_only_recorded_run_times_of_the_same_cluster_have_a_replay() -> None:
    jobs, cluster = equal_workload(1)

    def has_replay(charge: SpeedModel) -> bool:
        return find_replay(Experiment("fifo", {}, jobs, cluster, Conditions(charge))) is not None

    assert has_replay(RecordedSpeeds(cluster))
    assert not has_replay(RecordedSpeeds(make_cluster(1)))
    assert not has_replay(TwiceAsFast(cluster))
