"""Promised starts: what was said, and what came of it; and who was passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as some
from journals import start, step, submitted

from refold.cli.views.measures import promises_tables
from refold.core import Entry, View
from refold.core.events import JobCancelled, RunFinished, RunStopped
from refold.core.orders import StopRun
from refold.errors import BadJournal
from refold.journal import HistoryJournal
from refold.journal.history import History
from refold.model import Decision, Job, StartEstimate
from refold.model.units import HOUR
from refold.policies.queueing.fifo import Fifo
from refold.results import ReportRun
from refold.results.measures import Spread, measure
from refold.results.start_estimates import StartError, StartEstimateGroup, StartEstimateMeasures, passed_over
from refold.results.tables import PROMISES, measure_table
from refold.simulator import simulate
from refold.testing import make_cluster, make_job


def says(entry: Entry, *expected: StartEstimate) -> Entry:
    return msgspec.structs.replace(entry, start_estimates=expected)


def promises(*entries: Entry) -> StartEstimateMeasures | None:
    return measure(History.from_entries(make_cluster(8), entries)).promises


def of_all(*entries: Entry) -> StartEstimateGroup:
    found = promises(*entries)
    assert found is not None
    return found.all


A, B = make_job("a", at=0), make_job("b", at=0, gpus=4)
BOTH = step(0, submitted(A), submitted(B))


def test_promises_worked_out_by_hand() -> None:
    found = promises(
        says(BOTH, StartEstimate("a", 100.0, 50.0, 200.0), StartEstimate("b", 100.0, 50.0, 150.0)),
        says(step(90), StartEstimate("b", 180.0, 120.0, 250.0)),
        step(120, start("a")),
        step(200, start("b", gpus=(1, 2, 3, 4))),
    )
    one = StartEstimateGroup(
        "1 GPU",
        jobs=1,
        promised=1,
        kept=1,
        broken=0,
        undecided=0,
        share_kept=1.0,
        renewed=0,
        renewals=0,
        width=200.0,
        late=None,
        error=StartError(1, 20.0, 20.0, 20.0, 20 / 120),
        last_error=StartError(1, 20.0, 20.0, 20.0, 20 / 120),
    )
    four = StartEstimateGroup(
        "2–4 GPUs",
        jobs=1,
        promised=1,
        kept=0,
        broken=1,
        undecided=0,
        share_kept=0.0,
        renewed=1,
        renewals=1,
        width=150.0,
        late=50.0,
        error=StartError(1, 100.0, 100.0, 100.0, 0.5),
        last_error=StartError(1, 20.0, 20.0, 20.0, 0.1),
    )
    both = StartEstimateGroup(
        "all",
        jobs=2,
        promised=2,
        kept=1,
        broken=1,
        undecided=0,
        share_kept=0.5,
        renewed=1,
        renewals=1,
        width=175.0,
        late=50.0,
        error=StartError(2, 60.0, 60.0, 92.0, (20 / 120 + 0.5) / 2),
        last_error=StartError(2, 20.0, 20.0, 20.0, (20 / 120 + 0.1) / 2),
    )
    assert found == StartEstimateMeasures(both, (one, four))


def test_a_start_at_the_very_bound_is_a_promise_kept() -> None:
    assert of_all(says(BOTH, StartEstimate("a", 100.0, latest=120.0)), step(120.0 + 1e-9, start("a"))).kept == 1


def test_who_still_waits_after_its_bound_was_promised_too_much_and_before_it_nothing_is_decided() -> None:
    told = says(BOTH, StartEstimate("a", 10.0, latest=20.0), StartEstimate("b", 10.0, latest=200.0))
    found = of_all(told, step(100))
    assert (found.kept, found.broken, found.undecided, found.share_kept, found.late) == (0, 1, 1, 0.0, 80.0)


def test_a_job_that_is_cancelled_before_its_bound_decides_nothing() -> None:
    found = of_all(says(BOTH, StartEstimate("a", 10.0, latest=20.0)), step(15, JobCancelled("a")), step(100))
    assert (found.kept, found.broken, found.undecided, found.share_kept) == (0, 0, 1, None)


def test_what_is_said_without_a_bound_is_no_promise_but_has_an_error() -> None:
    found = of_all(says(BOTH, StartEstimate("a", 10.0)), step(30, start("a")))
    assert (found.jobs, found.promised, found.share_kept, found.width) == (1, 0, None, None)
    assert found.error == StartError(1, 20.0, 20.0, 20.0, 20 / 30)


def test_a_bound_that_comes_nearer_is_no_renewal() -> None:
    told = says(BOTH, StartEstimate("a", 10.0, latest=90.0))
    again = says(step(5), StartEstimate("a", 10.0, latest=50.0))
    later = says(step(6), StartEstimate("a", 10.0, latest=50.5))
    assert [of_all(told, again, step(20)).renewals, of_all(told, again, later, step(20)).renewals] == [0, 1]


def test_what_is_said_to_a_job_that_was_stopped_is_about_another_wait() -> None:
    found = of_all(
        says(BOTH, StartEstimate("a", 10.0, latest=20.0)),
        step(10, start("a")),
        step(30, StopRun("a", 1)),
        says(step(31, RunStopped("a", 1)), StartEstimate("a", 500.0, latest=600.0)),
        step(900, start("a", 2)),
    )
    assert (found.kept, found.renewals, found.error.mean_absolute, found.last_error.mean_absolute) == (1, 0, 0.0, 0.0)


def test_where_nobody_was_told_anything_there_is_nothing_to_measure() -> None:
    assert promises(BOTH, step(10, start("a"))) is None


def test_a_promise_to_a_job_that_nobody_submitted_is_no_journal() -> None:
    with pytest.raises(BadJournal, match="job 'ghost' was told when it may start, which was never submitted"):
        promises(says(BOTH, StartEstimate("ghost", 10.0)))


# Who was passed over.


def passed(*entries: Entry) -> list[float]:
    return [float(count) for count in passed_over(History.from_entries(make_cluster(8), entries))]


def test_a_job_is_passed_over_by_later_ones_that_start_before_it() -> None:
    assert passed(
        step(0, submitted(make_job("first", gpus=8))),
        step(1, submitted(make_job("second", at=1)), start("second")),
        step(2, submitted(make_job("third", at=2)), start("third", gpus=(1,))),
        step(9, RunFinished("second", 1), RunFinished("third", 1), start("first", gpus=tuple(range(8)))),
    ) == [2.0, 0.0, 0.0]


def test_who_starts_at_the_same_time_or_came_at_the_same_time_passes_nobody() -> None:
    assert passed(BOTH, step(3, start("b", gpus=(1, 2, 3, 4))), step(5, start("a"))) == [0.0, 0.0]
    later = make_job("later", at=1)
    assert passed(step(0, submitted(A)), step(1, submitted(later)), step(2, start("a"), start("later"))) == [0.0, 0.0]


def test_who_never_starts_is_passed_over_until_it_is_cancelled_and_who_never_fits_is_not_counted() -> None:
    assert passed(
        step(0, submitted(make_job("waits", gpus=8)), submitted(make_job("gone")), submitted(make_job("huge", gpus=9))),
        step(1, submitted(make_job("quick", at=1)), start("quick")),
        step(2, JobCancelled("gone")),
        step(3, submitted(make_job("after", at=3)), start("after", gpus=(1,))),
    ) == pytest.approx([2.0, 1.0, np.nan, 0.0, 0.0], nan_ok=True)


@given(some.lists(some.tuples(some.integers(0, 8), some.none() | some.integers(0, 8)), max_size=30))
def test_passing_is_counted_as_by_comparing_everybody_with_everybody(jobs: list[tuple[int, int | None]]) -> None:
    jobs = sorted(jobs, key=lambda job: job[0])
    entries = [step(0, *(submitted(make_job(str(index), at=at)) for index, (at, _) in enumerate(jobs)))]
    for now in range(17):
        begun = [index for index, (at, wait) in enumerate(jobs) if wait is not None and at + wait == now]
        entries += [step(now, *(start(str(index), milli=1) for index in begun))]
    starts = [np.inf if wait is None else at + wait for at, wait in jobs]
    expected = [
        sum(later > at and begin < starts[index] for (later, _), begin in zip(jobs, starts, strict=True))
        for index, (at, _) in enumerate(jobs)
    ]
    assert passed(*entries) == expected


def test_under_fifo_nobody_is_passed_over() -> None:
    journal = HistoryJournal()
    jobs = [make_job(str(index), at=index, gpus=1 + index % 8, work=50.0) for index in range(40)]
    simulate(jobs, make_cluster(8), Fifo(), journal=journal)
    assert measure(journal.history(make_cluster(8))).passed_over == Spread(40, 0.0, 0.0, 0.0, 0.0, 0.0)


# Promises of a policy, from the simulator to the table.


@dataclass
class Hourly:
    """Fifo that tells every job when it comes that it starts within the hour."""

    name: str = "hourly"
    _fifo: Fifo = field(default_factory=Fifo)

    def decide(self, view: View) -> Decision:
        arrived = [job.id for job in view.changes.submitted]
        decision = self._fifo.decide(view)
        started = {one.job for one in decision.starts}
        told = tuple(StartEstimate(job, view.now, view.now, view.now + HOUR) for job in arrived if job not in started)
        return msgspec.structs.replace(decision, start_estimates=told)


def jobs_in_line(count: int) -> list[Job]:
    return [make_job(str(index), gpus=8, work=1000.0) for index in range(count)]


def test_promises_of_a_simulated_policy_are_measured_and_compared() -> None:
    journal, cluster = HistoryJournal(), make_cluster(8)
    simulate(jobs_in_line(6), cluster, Hourly(), journal=journal)
    with_promises = measure(journal.history(cluster))
    assert with_promises.promises is not None
    found = with_promises.promises.all
    assert (found.promised, found.kept, found.broken) == (5, 3, 2)  # starts at 1,000 … 5,000 s
    other = HistoryJournal()
    simulate(jobs_in_line(6), cluster, Fifo(), journal=other)
    table = measure_table([("hourly", with_promises), ("fifo", measure(other.history(cluster)))], PROMISES)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["60.0 %", "0", "1 h", "50 min", "0.0", "0"],
        ["–", "–", "–", "–", "0.0", "0"],
    ]


def test_promises_are_compared_in_a_table_of_their_own_where_there_are_any() -> None:
    cluster, histories = make_cluster(8), []
    for policy in (Hourly(), Fifo()):
        journal = HistoryJournal()
        simulate(jobs_in_line(3), cluster, policy, journal=journal)
        histories.append(journal.history(cluster))
    hourly, fifo = (ReportRun(name, one, measure(one)) for name, one in zip(("hourly", "fifo"), histories, strict=True))
    [table] = promises_tables([fifo, hourly])
    assert [row["promises_kept"].text for row in table.rows] == ["–", "100.0 %"]
    assert promises_tables([fifo]) == []
