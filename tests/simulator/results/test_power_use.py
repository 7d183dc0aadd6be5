"""Rack power over a history, calculated by hand and second by second, and its tables and charts."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from journals import start, step, submitted

from refold.core import Entry
from refold.core.events import RunFailed, RunFinished
from refold.journal import HistoryJournal
from refold.journal.history import History
from refold.model import Cluster, GpuType, Node, Rack
from refold.model.units import HOUR
from refold.policies.queueing.fifo import FifoSkip
from refold.simulator import simulate
from refold.simulator.results.axes import Axis
from refold.simulator.results.charts import Band, ChartLine, ReferenceLine, line_chart
from refold.simulator.results.figures import ReportRun
from refold.simulator.results.measures import Measures, measure
from refold.simulator.results.power import (
    PowerUse,
    RackPower,
    power_use,
    rack_curves,
    rack_power_series,
    sort_by_limit_margin,
)
from refold.simulator.results.report import report_html
from refold.simulator.results.svg import FIRST_NON_POLICY_SERIES, series_class
from refold.simulator.results.tables import POWER_MEASURES, format_value, measure_table
from refold.testing import make_cluster, make_job

GPU = GpuType("A100", idle_watts=100, busy_watts=500)


def make_racks(*sizes: int, limit: float = 0.0) -> Cluster:
    """Return a cluster with one node in each rack r0, r1, …"""
    nodes = tuple(Node(f"n{index}", gpus, "A100", rack=f"r{index}") for index, gpus in enumerate(sizes))
    racks = tuple(Rack(f"r{index}", limit) for index in range(len(sizes)))
    return Cluster(nodes, (GPU,), racks, cpus_known=False, memory_known=False)


TWO_JOBS = (
    step(0, submitted(make_job("a", at=0, gpus=2)), start("a", gpus=(0, 1))),
    step(1800, submitted(make_job("b", at=1800)), start("b", node=1)),
    step(3600, RunFinished("a", 1)),
    step(7200, RunFinished("b", 1)),
)
"""`a` holds two GPUs of rack r0 from 0 h to 1 h; `b` holds one of r1 from 0.5 h to 2 h."""


def measure_power(cluster: Cluster, *entries: Entry) -> PowerUse | None:
    return power_use(History.from_entries(cluster, entries))


def test_power_of_two_racks_equals_a_calculation_by_hand() -> None:
    assert measure_power(make_racks(2, 2, limit=800.0), *TWO_JOBS) == PowerUse(
        mean_watts=(1000 + 200 + 1.5 * 600 + 0.5 * 200) / 2,
        peak_watts=1600.0,
        above_limit_seconds=3600.0,
        energy_kwh=2.2,
        kwh_per_finished_gpu_hour=2.2 / (2 * 1 + 1 * 1.5),
        imbalance=(0.5 * (1.25 - 0.25) + 0.5 * (1.25 - 0.75) + 1 * (0.75 - 0.25)) / 2,
        racks=(
            RackPower("r0", 600.0, 1000.0, 800.0, 3600.0, 1.2),
            RackPower("r1", 500.0, 600.0, 800.0, 0.0, 1.0),
        ),
    )


def test_a_rack_exactly_at_its_limit_is_not_above_it() -> None:
    found = measure_power(make_racks(2, 2, limit=1000.0), *TWO_JOBS)
    assert found is not None
    assert found.above_limit_seconds == 0.0


def test_a_run_that_starts_when_another_ends_causes_no_peak() -> None:
    after = (
        step(0, submitted(make_job("a")), submitted(make_job("b")), start("a")),
        step(100, RunFinished("a", 1), start("b", gpus=(1,))),
        step(200, RunFinished("b", 1)),
    )
    found = measure_power(make_racks(2), *after)
    assert found is not None
    assert (found.peak_watts, found.mean_watts) == (600.0, 600.0)


def test_energy_per_gpu_hour_divides_all_energy_by_the_gpu_hours_of_finished_jobs() -> None:
    failed = (
        step(0, submitted(make_job("a")), start("a"), submitted(make_job("b")), start("b", gpus=(1,))),
        step(3600, RunFinished("a", 1), RunFailed("b", 1, "crashed", 0.0, False)),
    )
    found = measure_power(make_racks(2), *failed)
    assert found is not None
    assert found.kwh_per_finished_gpu_hour == pytest.approx(1.0)


def test_power_is_none_if_it_is_unknown_or_nothing_ran() -> None:
    assert measure_power(make_cluster(2, 2), *TWO_JOBS) is None
    assert measure_power(make_racks(2), step(0, submitted(make_job()))) is None
    assert (
        measure_power(make_racks(2), step(0, submitted(make_job()), start("job")), step(0, RunFinished("job", 1)))
        is None
    )


def test_a_single_rack_has_no_imbalance() -> None:
    found = measure_power(make_racks(2), *TWO_JOBS[:1], step(10, RunFinished("a", 1)))
    assert found is not None
    assert found.imbalance is None


JOBS = some.lists(
    some.tuples(some.integers(0, 30), some.integers(1, 20), some.integers(1, 4), some.sampled_from([1.0, 0.5])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(JOBS)
def test_power_equals_a_count_by_seconds(requests: list[tuple[int, int, int, float]]) -> None:
    cluster = make_racks(4, 2, 2, limit=700.0)
    jobs = [
        make_job(f"j{n}", at=at, work=work, gpus=gpus, share=share)
        for n, (at, work, gpus, share) in enumerate(requests)
    ]
    journal = HistoryJournal()
    simulate(sorted(jobs, key=lambda job: job.submitted), cluster, FifoSkip(placement="worst-fit"), journal=journal)
    history = journal.history(cluster)
    first, last = int(history.first_submission), int(history.run_end.max())
    watts = np.tile([[400.0], [200.0], [200.0]], last - first)
    for run, allocation in enumerate(history.runs.allocations):
        begin, end = int(history.runs.start[run]) - first, int(history.run_end[run]) - first
        for share in allocation.placement:
            watts[share.node, begin:end] += len(share.gpus) * share.gpu_milli / 1000 * 400
    found = power_use(history)
    assert found is not None
    assert [rack.mean_watts for rack in found.racks] == pytest.approx(watts.mean(axis=1).tolist())
    assert [rack.peak_watts for rack in found.racks] == watts.max(axis=1).tolist()
    assert [rack.above_limit_seconds for rack in found.racks] == (watts > 700).sum(axis=1).tolist()
    assert found.above_limit_seconds == (watts > 700).any(axis=0).sum()
    assert found.energy_kwh == pytest.approx(watts.sum() / HOUR / 1000)
    assert found.imbalance == pytest.approx((watts.max(axis=0) - watts.min(axis=0)).mean() / 700)
    drawn = rack_power_series(history)
    assert drawn is not None
    edges = np.linspace(first, last, 3 * (last - first) + 1)
    for rack in range(3):
        assert drawn.peaks(rack, edges).tolist() == np.repeat(watts[rack], 3).tolist()


# Tables and charts.


def test_racks_closest_to_their_limits_come_first_and_those_without_a_limit_last() -> None:
    racks = [
        RackPower("unlimited", 0.0, 9000.0, None, 0.0, 0.0),
        RackPower("cool", 0.0, 500.0, 1000.0, 0.0, 0.0),
        RackPower("hot", 0.0, 600.0, 500.0, 10.0, 0.0),
        RackPower("long", 0.0, 600.0, 500.0, 20.0, 0.0),
    ]
    assert [rack.name for rack in sort_by_limit_margin(racks)] == ["long", "hot", "cool", "unlimited"]


def measure_two_jobs(cluster: Cluster) -> Measures:
    return measure(History.from_entries(cluster, TWO_JOBS))


def test_policies_are_compared_by_limits_imbalance_and_energy() -> None:
    table = measure_table(
        [("one", measure_two_jobs(make_racks(2, 2, limit=900.0))), ("none", measure_two_jobs(make_cluster(2, 2)))],
        POWER_MEASURES,
    )
    assert [column.key for column in table.columns] == ["above_power_limit", "power_imbalance", "energy"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [["1 h", "55.6 %", "2.2"], ["–", "–", "–"]]


def test_power_is_formatted_in_kilowatts() -> None:
    assert [format_value(watts, "W") for watts in (0.0, 412.0, 9990.0, 15_260.0)] == [
        "0.00 kW",
        "0.41 kW",
        "9.99 kW",
        "15.3 kW",
    ]


EDGES = np.array([0.0, 1800.0, 3600.0, 7200.0])


def history_on(cluster: Cluster) -> History:
    return History.from_entries(cluster, TWO_JOBS)


def test_few_racks_have_one_line_each_with_the_peak_of_each_interval() -> None:
    found = rack_curves(history_on(make_racks(2, 2, limit=900.0)), EDGES, 2)
    assert found is not None
    assert [(name, watts.tolist()) for name, watts in found.lines] == [
        ("r0", [1000.0, 1000.0, 200.0]),
        ("r1", [200.0, 600.0, 600.0]),
    ]
    assert (found.band, found.limits, found.max_watts) == (None, [(900.0, "limit")], 1000.0)


def test_of_many_racks_the_highest_have_lines_and_all_share_a_band() -> None:
    found = rack_curves(history_on(make_racks(2, 2, 1, 1, 1, limit=900.0)), EDGES, 4)
    assert found is not None
    assert [name for name, _ in found.lines] == ["r0", "r1", "r2"]
    assert found.band is not None
    assert [line.tolist() for line in found.band] == [[100.0, 100.0, 100.0], [1000.0, 1000.0, 600.0]]


def test_different_limits_name_their_racks() -> None:
    cluster = make_racks(2, 2)
    cluster = Cluster(cluster.nodes, cluster.gpu_types, (Rack("r0", 2000.0), Rack("r1")), cpus_known=False)
    found = rack_curves(history_on(cluster), EDGES, 8)
    assert found is not None
    assert (found.limits, found.max_watts) == ([(2000.0, "limit of r0")], 2000.0)


def test_non_policy_series_begin_with_the_first_colour_and_are_not_dashed() -> None:
    assert [series_class(series) for series in (0, 11, FIRST_NON_POLICY_SERIES, FIRST_NON_POLICY_SERIES + 11)] == [
        "s0 p0",
        "s1 p11 dashed",
        f"s0 p{FIRST_NON_POLICY_SERIES}",
        f"s1 p{FIRST_NON_POLICY_SERIES + 11} dashed",
    ]


def test_a_band_and_a_reference_line_are_drawn_at_their_values() -> None:
    x, low, high = np.array([0.0, 10.0]), np.array([0.0, 0.0]), np.array([1.0, 0.5])
    chart = line_chart(
        [ChartLine(0, "one", x, high)],
        Axis("time", 0, 10),
        Axis("count", 0, 1),
        label="power",
        reference_lines=[ReferenceLine(0.5, "<limit>")],
        band=Band(FIRST_NON_POLICY_SERIES, x, low, high),
    )
    assert f'<path class="area s0 p{FIRST_NON_POLICY_SERIES}" d="M62 14L698 138L698 262L62 262Z"/>' in chart.html
    assert '<line class="rule" x1="62" x2="698" y1="138" y2="138"/>' in chart.html
    assert "&lt;limit&gt;" in chart.html
    assert chart.html.count('class="area') == 1
    ElementTree.fromstring(chart.html)


def render_report(cluster: Cluster) -> str:
    run = ReportRun("fifo", history_on(cluster), measure_two_jobs(cluster))
    return report_html([run], title="A report", workload="two jobs", command="refold simulate jobs.csv")


def test_the_report_shows_racks_and_whether_limits_were_exceeded() -> None:
    shown = render_report(make_racks(2, 2, limit=900.0))
    assert '<section id="power">' in shown and 'href="#power"' in shown
    assert "1 of 2 limits exceeded, for 1 h" in shown
    assert "rack power imbalance" in shown
    assert "no limit exceeded" in render_report(make_racks(2, 2, limit=1000.0))
    assert "In kW; 2 kWh in total<" in render_report(make_racks(2, 2))


def test_the_report_of_many_racks_has_a_band() -> None:
    assert "all 9 racks" in render_report(make_racks(2, 2, 1, 1, 1, 1, 1, 1, 1))


def test_the_report_does_not_mention_power_if_it_is_unknown() -> None:
    shown = render_report(make_cluster(2, 2))
    assert "power" not in shown.lower()
