"""The compiled replay of `easy` with predicted run times gives the same runs as the general simulator, to the bit."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from histories import assert_same_history, simulated_history
from hypothesis import given, settings as hypothesis_settings, strategies as st
from msgspec.structs import replace

from refold.errors import UnknownName
from refold.journal import RunColumns
from refold.model import Cluster, GpuType, Job
from refold.replays import replay_predicted_easy
from refold.replays.easy import PLACEMENTS
from refold.results import replayed_history
from refold.simulator import NO_COSTS, Costs
from refold.testing import make_cluster, make_job, seeded_workload
from refold.traces import read_cluster, read_trace

COSTS = [NO_COSTS, Costs(start=3.25), Costs(stop=2.75), Costs(start=1.5, stop=0.75, restart=7.1), Costs(stop=130.0)]


def assert_same(
    jobs: Sequence[Job], cluster: Cluster, settings: dict[str, Any] | None = None, costs: Costs = NO_COSTS
) -> RunColumns:
    """Compare a replay with the general simulator; return its runs."""
    chosen = settings or {}
    ours = replayed_history(jobs, cluster, replay_predicted_easy(jobs, cluster, costs=costs, **chosen))
    assert_same_history(ours, simulated_history(jobs, cluster, "easy", {**chosen, "start_estimates": False}, costs))
    return ours.runs


def mixed_workload(seed: int) -> tuple[list[Job], Cluster]:
    """Return jobs of several users, names and tenants, some limited, urgent, not preemptible, equal or very short."""
    draw = random.Random(seed)
    jobs, cluster = seeded_workload(seed, jobs=draw.randint(5, 90))
    changed = [
        replace(
            job,
            id=f"{draw.randrange(1_000_000):06}-{job.id}",
            tenant=draw.choice(["default", "other"]),
            user=draw.choice(["", "ann", "bob"]),
            group=draw.choice(["", "train", "eval"]),
            workload=draw.choice(["", "resnet"]),
            priority=draw.choice([0, 0, 0, 0, 1]),
            preemptible=draw.random() < 0.9,
            time_limit=draw.choice([None, None, 60.0, 3600.0]),
            work=(job.work or 0.0) * draw.choice([0.0, 1.0, 1.0, 0.1, 3.7]),
        )
        for job in jobs
    ]
    last = changed[-1].submitted
    return [*changed, make_job("too-large", gpus=64, at=last), make_job("instant", at=last, work=0.0)], cluster


@hypothesis_settings(max_examples=80)
@given(seed=st.integers(0, 2**32), costs=st.sampled_from(COSTS))
def test_random_workloads_give_the_same_runs(seed: int, costs: Costs) -> None:
    assert_same(*mixed_workload(seed), costs=costs)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("preempt", ["never", "whole-node", "always"])
@hypothesis_settings(max_examples=5)
@given(seed=st.integers(0, 2**32), quantiles=st.tuples(st.floats(0.05, 0.95), st.floats(0.05, 0.95)))
def test_all_settings_give_the_same_runs(
    placement: str, preempt: str, seed: int, quantiles: tuple[float, float]
) -> None:
    settings = {"placement": placement, "preempt": preempt}
    assert_same(*mixed_workload(seed), {**settings, "duration_quantile": quantiles[0], "confidence": quantiles[1]})


@hypothesis_settings(max_examples=20)
@given(seed=st.integers(0, 2**32), costs=st.sampled_from(COSTS))
def test_gpus_of_different_speed_give_the_same_runs(seed: int, costs: Costs) -> None:
    jobs, cluster = mixed_workload(seed)
    fast = replace(cluster, gpu_types=(GpuType("A100", speed=1.7), GpuType("T4", speed=0.3)))
    assert_same(jobs, fast, costs=costs)


def test_more_jobs_at_once_than_are_recorded_in_a_step_give_the_same_runs() -> None:
    draw = random.Random(1)
    users = [draw.choice(["ann", "bob"]) for _ in range(400)]
    jobs = [make_job(f"j{number}", work=draw.choice([0.0, 5.0, 700.0]), user=user) for number, user in enumerate(users)]
    assert_same(jobs, make_cluster(8, 8))


@pytest.mark.parametrize(("file", "cluster"), [("jobs_philly.csv.gz", "24x8"), ("jobs_helios_venus.csv.gz", "20x8")])
def test_a_published_trace_gives_the_same_runs_with_preemptions(file: str, cluster: str, shared_data: Path) -> None:
    jobs = read_trace(shared_data / "traces" / file).jobs[20_000:21_500]
    runs = assert_same(jobs, read_cluster(cluster))
    assert runs.number.max() > 1


def test_an_empty_trace_gives_no_runs() -> None:
    assert len(replay_predicted_easy([], make_cluster(1)).task) == 0


def test_unsupported_settings_are_rejected() -> None:
    with pytest.raises(UnknownName, match="placement of the compiled EASY replay 'worth'"):
        replay_predicted_easy([], make_cluster(1), "worth")
    with pytest.raises(UnknownName, match="preempt 'sometimes'"):
        replay_predicted_easy([], make_cluster(1), preempt="sometimes")
