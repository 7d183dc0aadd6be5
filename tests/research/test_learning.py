"""Training of the learned policy."""

import numpy as np
import pytest
from msgspec.structs import replace

from refold.errors import BadInput
from refold.research import (
    START,
    Evolution,
    EvolutionState,
    JobHistory,
    LearningOptions,
    cost_function,
    draw_slices,
    expect_at_submission,
    first_state,
    from_vector,
    mean_cost,
    to_vector,
    train,
)
from refold.testing import make_cluster, make_job
from refold.traces import everyday_workload, generate

CLUSTER = make_cluster(8, 8)
OPTIONS = LearningOptions(slices=3, jobs_per_slice=150, generations=4, population=6, batch=2, seed=1)


def history() -> JobHistory:
    shape = everyday_workload(600).for_load(CLUSTER, 1.2)
    return JobHistory("synthetic", generate(shape, seed=1).jobs, CLUSTER)


def test_the_evolution_strategy_finds_the_minimum_of_a_scaled_quadratic_function() -> None:
    target, scale = np.array([3.0, -2.0, 0.5]), np.array([1.0, 10.0, 100.0])
    evolution = Evolution(EvolutionState.initial([0.0, 0.0, 0.0], 1.0), population=8, seed=0)
    for _ in range(120):
        samples = evolution.ask()
        evolution.tell(samples, [float((((sample - target) * scale) ** 2).sum()) for sample in samples])
    assert evolution.state.mean == pytest.approx(target, abs=1e-3)


def test_parameters_survive_the_conversion_to_a_vector() -> None:
    vector = to_vector(START, hidden=2, seed=3)
    found = from_vector(vector)
    assert found.features["service"] == START.features["service"]
    assert found.features["rest"] == 0.0
    assert found.preemption_margin == pytest.approx(START.preemption_margin)
    assert found.patience_seconds == pytest.approx(START.patience_seconds)
    assert [unit.output for unit in found.hidden] == [0.0, 0.0]
    assert to_vector(found, hidden=2, seed=3) == pytest.approx(vector)


def test_slices_depend_on_the_seed_only_and_have_a_queue() -> None:
    first, again = (list(draw_slices([history()], OPTIONS)) for _ in range(2))
    other = list(draw_slices([history()], replace(OPTIONS, seed=2)))
    assert [part.name for part in first] == [part.name for part in again] != [part.name for part in other]
    assert all(part.units["mean"] >= 60.0 for part in first)


def test_histories_without_a_queue_or_with_too_few_jobs_are_refused() -> None:
    with pytest.raises(BadInput, match="jobs wait in only"):
        idle = history()._replace(cluster=make_cluster(*[8] * 60))
        list(draw_slices([idle], replace(OPTIONS, slices=1)))
    with pytest.raises(BadInput, match=r"synthetic has 588 jobs .* expected at least 700"):
        list(draw_slices([history()], replace(OPTIONS, jobs_per_slice=700)))


def test_expectations_at_submission_use_only_jobs_that_have_ended() -> None:
    jobs = [make_job(f"a{number}", at=10.0 * number, work=1000.0) for number in range(60)]
    longer = [*jobs[:-1], replace(jobs[-1], work=9e5)]
    assert np.array_equal(expect_at_submission(jobs).rest, expect_at_submission(longer).rest)
    ended_by_then = [replace(job, submitted=100 * job.submitted) for job in jobs]
    spread_before, spread_after = (expect_at_submission(some).rest[-1, 0] for some in (jobs[:5], ended_by_then))
    assert abs(spread_after - np.log(1000.0)) < abs(spread_before - np.log(1000.0))


def test_training_lowers_the_cost_of_bad_weights_and_is_the_same_when_resumed() -> None:
    slices = list(draw_slices([history()], OPTIONS))
    bad = replace(START, features={"service": -0.3, "gpus": -0.3})
    state = first_state(bad, OPTIONS)
    with cost_function(slices, OPTIONS, workers=1) as costs_of:
        states = [progress.state for progress in train(slices, OPTIONS, costs_of, state)]
        resumed = [progress.state for progress in train(slices, OPTIONS, costs_of, states[1])]
        assert [one.generation for one in states] == [1, 2, 3, 4]
        assert resumed == states[2:]
        assert mean_cost(slices, costs_of, from_vector(states[-1].mean)) < mean_cost(slices, costs_of, bad)


def test_several_processes_compute_the_same_costs() -> None:
    options = replace(OPTIONS, slices=1)
    slices = list(draw_slices([history()], options))
    with cost_function(slices, options, workers=1) as here, cost_function(slices, options, workers=2) as elsewhere:
        assert here([(0, START)]) == elsewhere([(0, START)])
