"""Futures of a queue: jobs start in the order of the policy when GPUs become free, and arrivals take their turn."""

from collections.abc import Sequence
from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.model import Demand
from refold.placement import FreeResources, Ints
from refold.policies import QueueOrder
from refold.policies.common.queue_futures import (
    HELD_UNITS,
    QUEUE_JOB,
    QUEUE_NODE,
    SHARES,
    OrderRule,
    Scene,
    draw_rest,
    simulate_starts,
)
from refold.simulator.queue_forecast import QueueForecast
from refold.testing import make_cluster

ONE_GPU = 10
"""Units of a whole GPU."""


class Row(tuple[float, int, int, int, float, float, float, float]):
    """A job: run time, units, instances, types, rank, time of queueing, gap, priority."""

    def __new__(
        cls,
        seconds: float,
        units: int = ONE_GPU,
        instances: int = 1,
        types: int = 1,
        rank: float = 0.0,
        queued: float = 0.0,
        gap: float = 0.0,
        priority: float = 0.0,
    ) -> "Row":
        return super().__new__(cls, (seconds, units, instances, types, rank, queued, gap, priority))


def scene(
    nodes: Sequence[tuple[int, int]],
    runs: Sequence[tuple[int, Row]] = (),
    waiting: Sequence[Row] = (),
    arrivals: Sequence[Row] = (),
    futures: int = 1,
) -> Scene:
    """Return a scene. `nodes`: units and type. `runs`: the node, and the run, which began at 0.

    A further run, on a node of its own, ends at once: nothing starts before something has happened.
    """
    nodes, runs = [*nodes, (ONE_GPU, 5)], [*runs, (len(nodes), Row(0.5))]
    rows = [*(run for _, run in runs), *waiting, *arrivals]
    count = len(rows)
    jobs = np.zeros(count, QUEUE_JOB)
    fields = ["units", "instances", "type_bits", "rank", "queued", "gap", "priority"]
    seconds, *columns = zip(*rows, strict=True)
    for name, column in zip(fields, columns, strict=True):
        jobs[name] = column
    jobs["speed"], jobs["number"] = 1.0, np.arange(count)
    first = len(runs)
    return Scene(
        np.array(nodes, QUEUE_NODE),
        jobs,
        np.outer(seconds, 1 + 1e-9 * np.arange(len(SHARES))),
        np.array([(row, node, run[1]) for row, (node, run) in enumerate(runs)], HELD_UNITS),
        np.arange(first, first + len(waiting)),
        np.arange(first + len(waiting), count),
        np.full((futures, count), np.nan),
    )


def starts(now: float, state: Scene, rule: OrderRule = OrderRule()) -> list[float]:  # noqa: B008
    state.ends[:, state.held["row"][-1]] = now + 1e-6
    targets: Ints = np.arange(len(state.waiting))
    return [round(at, 3) for at in simulate_starts(state, now, targets, 1, rule)[0].tolist()]


@pytest.mark.parametrize(("rule", "expected"), [(OrderRule(), [61, 10, 10]), (OrderRule(reserves=True), [60, 10, 160])])
def test_jobs_behind_the_first_overtake_it_as_the_order_allows(rule: OrderRule, expected: list[float]) -> None:
    """The first job needs both GPUs, the second ends before it can start, the third does not."""
    waiting = [Row(100.0, 20), Row(49.0, 5), Row(51.0, 5)]
    assert starts(10.0, scene([(20, 0)], [(0, Row(60.0))], waiting), rule) == expected


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(1, 1000)), min_size=1, max_size=30), st.booleans())
def test_a_queue_on_one_node_starts_as_in_the_forecast_of_the_simulator(
    jobs: list[tuple[int, float]], reserves: bool
) -> None:
    forecast = QueueForecast(FreeResources(make_cluster(4)), [], [Demand(gpus=gpus) for gpus, _ in jobs])
    durations = np.array([[seconds for _, seconds in jobs]])
    order: QueueOrder = "easy" if reserves else "fifo-skip"
    expected = forecast.starts(order, 0.0, np.empty((1, 0)), durations)[0].tolist()
    waiting = [Row(seconds, gpus * ONE_GPU, rank=rank) for rank, (gpus, seconds) in enumerate(jobs)]
    found = starts(0.0, scene([(40, 0)], waiting=waiting), OrderRule(reserves))
    assert all(isclose(one, other, abs_tol=0.01) for one, other in zip(found, expected, strict=True))


def test_an_instance_needs_one_node_and_all_instances_start_together() -> None:
    """Two nodes of two GPUs: 3 GPUs fit nowhere; a gang of two whole nodes starts when both are empty."""
    runs = [(0, Row(30.0)), (1, Row(20.0))]
    waiting = [Row(5.0, 30), Row(5.0, 20, instances=2)]
    assert starts(0.0, scene([(20, 0), (20, 0)], runs, waiting)) == [inf, 30]


def test_jobs_start_only_on_nodes_of_their_types() -> None:
    waiting = [Row(5.0, types=0b10), Row(5.0, types=0b11)]
    assert starts(0.0, scene([(10, 0), (10, 1)], [(1, Row(40.0))], waiting)) == [40, 0]


def test_arrivals_with_a_smaller_rank_go_first_until_the_rank_of_the_waiting_job_has_fallen() -> None:
    """One GPU; arrivals that run for 10 s keep it busy. The waiting job has ten times their rank."""

    def state(gap: float) -> Scene:
        return scene([(10, 0)], [(0, Row(10.0))], [Row(5.0, rank=10.0)], [Row(10.0, rank=1.0, gap=gap)])

    assert starts(0.0, state(gap=5.0)) == [inf]
    always_behind, overtakes = (starts(0.0, state(gap=9.0), OrderRule(halving=halving))[0] for halving in (1e9, 10.0))
    assert overtakes < 500 < always_behind


def test_starving_jobs_and_jobs_of_higher_priority_go_first() -> None:
    arrivals = [Row(10.0, rank=1.0, gap=5.0)]
    running = [(0, Row(10.0))]
    assert starts(0.0, scene([(10, 0)], running, [Row(5.0, rank=2.0, priority=1.0)], arrivals)) == [10]
    starved = starts(0.0, scene([(10, 0)], running, [Row(5.0, rank=2.0)], arrivals), OrderRule(starvation=1000.0))
    assert 1000 < starved[0] < 1500


def test_a_job_that_fits_after_a_run_of_unknown_end_has_many_starts() -> None:
    """The run has an even chance to end in each doubling of its time."""
    state = scene([(10, 0)], [(0, Row(1.0))], [Row(5.0)], futures=64)
    found = np.sort(simulate_starts(state, 1000.0, np.array([0]), 64, OrderRule())[:, 0])
    assert 1500 < found[32] < 3000
    assert found[60] > 5000


@given(st.floats(0, 1e7), st.floats(0, 0.999999))
def test_the_rest_of_a_run_time_is_what_its_distribution_leaves(elapsed: float, uniform: float) -> None:
    """Between quantiles that double from share to share, the median of what is left doubles, too."""
    quantiles = np.cumprod(np.full(len(SHARES), 2.0))
    rest = draw_rest(quantiles, elapsed, uniform)
    assert rest >= 1.0
    assert rest <= draw_rest(quantiles, elapsed, min(uniform + 0.1, 0.9999999))


def test_a_run_time_that_has_not_begun_is_drawn_from_its_quantiles() -> None:
    quantiles = np.linspace(100, 10_000, len(SHARES))
    for share, seconds in zip(SHARES.tolist(), quantiles.tolist(), strict=True):
        assert draw_rest(quantiles, 0.0, share) == pytest.approx(seconds)
