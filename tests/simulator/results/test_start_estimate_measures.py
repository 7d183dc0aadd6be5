"""Accuracy of start estimates, and how many jobs overtook each job."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as some
from journals import start, step, submitted

from refold.cli.views.measures import start_estimate_tables
from refold.core import Entry, View
from refold.core.events import JobCancelled, RunFinished, RunStopped
from refold.core.orders import StopRun
from refold.errors import BadJournal
from refold.journal import HistoryJournal
from refold.journal.history import History
from refold.model import Decision, Job, StartEstimate
from refold.model.units import HOUR
from refold.policies.queueing.fifo import Fifo
from refold.simulator import simulate
from refold.simulator.results import ReportRun
from refold.simulator.results.measures import Spread, measure
from refold.simulator.results.start_estimates import (
    StartError,
    StartEstimateGroup,
    StartEstimateMeasures,
    count_overtaking,
)
from refold.simulator.results.tables import START_ESTIMATE_MEASURES, measure_table
from refold.testing import make_cluster, make_job


def with_estimates(entry: Entry, *estimates: StartEstimate) -> Entry:
    return msgspec.structs.replace(entry, start_estimates=estimates)


def measure_estimates(*entries: Entry) -> StartEstimateMeasures | None:
    return measure(History.from_entries(make_cluster(8), entries)).start_estimates


def measure_all_jobs(*entries: Entry) -> StartEstimateGroup:
    found = measure_estimates(*entries)
    assert found is not None
    return found.all


A, B = make_job("a", at=0), make_job("b", at=0, gpus=4)
BOTH = step(0, submitted(A), submitted(B))


def test_measures_equal_a_calculation_by_hand() -> None:
    found = measure_estimates(
        with_estimates(BOTH, StartEstimate("a", 100.0, 50.0, 200.0), StartEstimate("b", 100.0, 50.0, 150.0)),
        with_estimates(step(90), StartEstimate("b", 180.0, 120.0, 250.0)),
        step(120, start("a")),
        step(200, start("b", gpus=(1, 2, 3, 4))),
    )
    one = StartEstimateGroup(
        "1 GPU",
        jobs=1,
        bounded=1,
        met=1,
        missed=0,
        undecided=0,
        coverage=1.0,
        postponed=0,
        postponements=0,
        width=200.0,
        lateness=None,
        error=StartError(1, 20.0, 20.0, 20.0, 20 / 120),
        last_error=StartError(1, 20.0, 20.0, 20.0, 20 / 120),
    )
    four = StartEstimateGroup(
        "2–4 GPUs",
        jobs=1,
        bounded=1,
        met=0,
        missed=1,
        undecided=0,
        coverage=0.0,
        postponed=1,
        postponements=1,
        width=150.0,
        lateness=50.0,
        error=StartError(1, 100.0, 100.0, 100.0, 0.5),
        last_error=StartError(1, 20.0, 20.0, 20.0, 0.1),
    )
    both = StartEstimateGroup(
        "all",
        jobs=2,
        bounded=2,
        met=1,
        missed=1,
        undecided=0,
        coverage=0.5,
        postponed=1,
        postponements=1,
        width=175.0,
        lateness=50.0,
        error=StartError(2, 60.0, 60.0, 92.0, (20 / 120 + 0.5) / 2),
        last_error=StartError(2, 20.0, 20.0, 20.0, (20 / 120 + 0.1) / 2),
    )
    assert found == StartEstimateMeasures(both, (one, four))


def test_a_start_exactly_at_the_bound_meets_it() -> None:
    assert (
        measure_all_jobs(
            with_estimates(BOTH, StartEstimate("a", 100.0, latest=120.0)), step(120.0 + 1e-9, start("a"))
        ).met
        == 1
    )


def test_a_job_that_still_waits_after_its_bound_misses_it_and_before_it_is_undecided() -> None:
    first = with_estimates(BOTH, StartEstimate("a", 10.0, latest=20.0), StartEstimate("b", 10.0, latest=200.0))
    found = measure_all_jobs(first, step(100))
    assert (found.met, found.missed, found.undecided, found.coverage, found.lateness) == (0, 1, 1, 0.0, 80.0)


def test_a_job_that_is_cancelled_before_its_bound_is_undecided() -> None:
    found = measure_all_jobs(
        with_estimates(BOTH, StartEstimate("a", 10.0, latest=20.0)), step(15, JobCancelled("a")), step(100)
    )
    assert (found.met, found.missed, found.undecided, found.coverage) == (0, 0, 1, None)


def test_an_estimate_without_a_bound_has_an_error_but_no_coverage() -> None:
    found = measure_all_jobs(with_estimates(BOTH, StartEstimate("a", 10.0)), step(30, start("a")))
    assert (found.jobs, found.bounded, found.coverage, found.width) == (1, 0, None, None)
    assert found.error == StartError(1, 20.0, 20.0, 20.0, 20 / 30)


def test_an_earlier_bound_is_not_a_postponement() -> None:
    first = with_estimates(BOTH, StartEstimate("a", 10.0, latest=90.0))
    earlier = with_estimates(step(5), StartEstimate("a", 10.0, latest=50.0))
    later = with_estimates(step(6), StartEstimate("a", 10.0, latest=50.5))
    assert [
        measure_all_jobs(first, earlier, step(20)).postponements,
        measure_all_jobs(first, earlier, later, step(20)).postponements,
    ] == [0, 1]


def test_estimates_for_a_preempted_job_are_ignored() -> None:
    found = measure_all_jobs(
        with_estimates(BOTH, StartEstimate("a", 10.0, latest=20.0)),
        step(10, start("a")),
        step(30, StopRun("a", 1)),
        with_estimates(step(31, RunStopped("a", 1)), StartEstimate("a", 500.0, latest=600.0)),
        step(900, start("a", 2)),
    )
    assert (found.met, found.postponements, found.error.mean_absolute, found.last_error.mean_absolute) == (
        1,
        0,
        0.0,
        0.0,
    )


def test_without_estimates_there_are_no_measures() -> None:
    assert measure_estimates(BOTH, step(10, start("a"))) is None


def test_an_estimate_for_an_unknown_job_is_a_bad_journal() -> None:
    with pytest.raises(BadJournal, match="start estimate for job 'ghost', which was never submitted"):
        measure_estimates(with_estimates(BOTH, StartEstimate("ghost", 10.0)))


# Overtaking.


def overtaken(*entries: Entry) -> list[float]:
    return [float(count) for count in count_overtaking(History.from_entries(make_cluster(8), entries))]


def test_a_job_is_overtaken_by_later_jobs_that_start_before_it() -> None:
    assert overtaken(
        step(0, submitted(make_job("first", gpus=8))),
        step(1, submitted(make_job("second", at=1)), start("second")),
        step(2, submitted(make_job("third", at=2)), start("third", gpus=(1,))),
        step(9, RunFinished("second", 1), RunFinished("third", 1), start("first", gpus=tuple(range(8)))),
    ) == [2.0, 0.0, 0.0]


def test_jobs_that_start_or_are_submitted_at_the_same_time_do_not_overtake_each_other() -> None:
    assert overtaken(BOTH, step(3, start("b", gpus=(1, 2, 3, 4))), step(5, start("a"))) == [0.0, 0.0]
    later = make_job("later", at=1)
    assert overtaken(step(0, submitted(A)), step(1, submitted(later)), step(2, start("a"), start("later"))) == [
        0.0,
        0.0,
    ]


def test_a_job_is_overtaken_until_it_is_cancelled_and_infeasible_jobs_do_not_count() -> None:
    assert overtaken(
        step(
            0,
            submitted(make_job("waits", gpus=8)),
            submitted(make_job("cancelled")),
            submitted(make_job("huge", gpus=9)),
        ),
        step(1, submitted(make_job("quick", at=1)), start("quick")),
        step(2, JobCancelled("cancelled")),
        step(3, submitted(make_job("after", at=3)), start("after", gpus=(1,))),
    ) == pytest.approx([2.0, 1.0, np.nan, 0.0, 0.0], nan_ok=True)


@given(some.lists(some.tuples(some.integers(0, 8), some.none() | some.integers(0, 8)), max_size=30))
def test_overtaking_equals_a_comparison_of_all_pairs(jobs: list[tuple[int, int | None]]) -> None:
    jobs = sorted(jobs, key=lambda job: job[0])
    entries = [step(0, *(submitted(make_job(str(index), at=at)) for index, (at, _) in enumerate(jobs)))]
    for now in range(17):
        started = [index for index, (at, wait) in enumerate(jobs) if wait is not None and at + wait == now]
        entries += [step(now, *(start(str(index), milli=1) for index in started))]
    starts = [np.inf if wait is None else at + wait for at, wait in jobs]
    expected = [
        sum(later > at and begin < starts[index] for (later, _), begin in zip(jobs, starts, strict=True))
        for index, (at, _) in enumerate(jobs)
    ]
    assert overtaken(*entries) == expected


def test_no_job_is_overtaken_under_fifo() -> None:
    journal = HistoryJournal()
    jobs = [make_job(str(index), at=index, gpus=1 + index % 8, work=50.0) for index in range(40)]
    simulate(jobs, make_cluster(8), Fifo(), journal=journal)
    assert measure(journal.history(make_cluster(8))).overtaken == Spread(40, 0.0, 0.0, 0.0, 0.0, 0.0)


# Estimates of a policy, from the simulator to the table.


@dataclass
class HourlyEstimates:
    """FIFO that estimates at submission that every job starts within the hour."""

    name: str = "hourly"
    _fifo: Fifo = field(default_factory=Fifo)

    def decide(self, view: View) -> Decision:
        arrived = [job.id for job in view.changes.submitted]
        decision = self._fifo.decide(view)
        started = {one.job for one in decision.starts}
        estimates = tuple(
            StartEstimate(job, view.now, view.now, view.now + HOUR) for job in arrived if job not in started
        )
        return msgspec.structs.replace(decision, start_estimates=estimates)


def full_node_jobs(count: int) -> list[Job]:
    return [make_job(str(index), gpus=8, work=1000.0) for index in range(count)]


def test_estimates_of_a_simulated_policy_are_measured_and_compared() -> None:
    journal, cluster = HistoryJournal(), make_cluster(8)
    simulate(full_node_jobs(6), cluster, HourlyEstimates(), journal=journal)
    hourly = measure(journal.history(cluster))
    assert hourly.start_estimates is not None
    found = hourly.start_estimates.all
    assert (found.bounded, found.met, found.missed) == (5, 3, 2)  # starts at 1,000 … 5,000 s
    other = HistoryJournal()
    simulate(full_node_jobs(6), cluster, Fifo(), journal=other)
    table = measure_table([("hourly", hourly), ("fifo", measure(other.history(cluster)))], START_ESTIMATE_MEASURES)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["60.0 %", "0", "1 h", "50 min", "0.0", "0"],
        ["–", "–", "–", "–", "0.0", "0"],
    ]


def test_estimates_are_compared_in_a_separate_table_if_there_are_any() -> None:
    cluster, histories = make_cluster(8), []
    for policy in (HourlyEstimates(), Fifo()):
        journal = HistoryJournal()
        simulate(full_node_jobs(3), cluster, policy, journal=journal)
        histories.append(journal.history(cluster))
    hourly, fifo = (ReportRun(name, one, measure(one)) for name, one in zip(("hourly", "fifo"), histories, strict=True))
    [table] = start_estimate_tables([fifo, hourly])
    met = next(column for column in table.columns if column.title == "start bounds met")
    assert [met.text(row).split(" *")[0].strip() for row in table.rows] == ["–", "100.0 %"]
    assert start_estimate_tables([fifo]) == []
