"""What a history says about waits is a row of comparisons, and what their headlines refer to."""

from __future__ import annotations

import msgspec
import pytest

from refold.journal.history import HistoryJournal
from refold.policies.queueing.fifo import Fifo
from refold.simulator import simulate
from refold.simulator.results import compare_with_record, measure_table, measure_waits, peak_gpus
from refold.simulator.results.figures import ReportRun
from refold.simulator.results.measures import Measures, measure
from refold.simulator.results.report import report_html
from refold.simulator.results.tables import Recorded
from refold.testing import make_cluster, make_job

JOBS = [make_job(f"j{n}", at=60.0 * n, work=100.0, gpus=2) for n in range(4)]
WAITS = {"j0": 0.0, "j1": 100.0, "j2": 800.0}


def run(name: str, mean_wait: float, *, is_recorded: bool = False) -> ReportRun:
    """Return a run whose mean waiting time is given."""
    journal = HistoryJournal()
    simulate(JOBS, make_cluster(2), Fifo(), journal=journal)
    history = journal.history(make_cluster(2))
    measures: Measures = measure(history)
    waiting = msgspec.structs.replace(measures.waiting, mean=mean_wait)
    return ReportRun(name, history, msgspec.structs.replace(measures, waiting=waiting), is_recorded)


def mean_wait(*runs: ReportRun, recorded: Recorded | None = None) -> tuple[str, str, str]:
    headline = next(one for one in compare_with_record(runs, recorded) if one.key == "waiting_mean")
    return headline.policy, headline.value, headline.remark


def test_jobs_whose_waits_are_known_are_measured() -> None:
    recorded = measure_waits(JOBS[:3], WAITS)
    assert recorded is not None
    assert (recorded.name, recorded.jobs) == ("recorded", 3)
    assert recorded.values["waiting_mean"] == 300.0
    assert recorded.values["waiting_median"] == 100.0
    assert recorded.values["completion_mean"] == 400.0
    assert recorded.values["makespan"] == 120.0 + 800.0 + 100.0
    assert measure_waits(JOBS, {}) is None


def test_completion_times_of_some_jobs_are_not_compared_with_those_of_all() -> None:
    recorded = measure_waits(JOBS, WAITS)
    assert recorded is not None
    assert recorded.values == {"waiting_mean": 300.0, "waiting_median": 100.0, "waiting_p99": 786.0}


def test_the_record_is_the_first_row_with_the_median_of_waits() -> None:
    fifo = run("fifo", 9.0)
    table = measure_table([("fifo", fifo.measures)], recorded=measure_waits(JOBS, WAITS))
    assert [row.name for row in table.rows] == ["recorded", "fifo"]
    texts = {column.key: [row.cells[n].text for row in table.rows] for n, column in enumerate(table.columns)}
    assert texts["waiting_median"][0] == "1 min 40 s"
    assert texts["allocation"][0] == texts["preemptions"][0] == "–"
    assert "waiting_median" not in [column.key for column in measure_table([("fifo", fifo.measures)]).columns]


@pytest.mark.parametrize(
    ("runs", "recorded", "expected"),
    [
        ([("fifo", 5100.0), ("refold", 100.0)], 300.0, ("refold", "1 min 40 s", "3.0 × shorter than recorded")),
        ([("fifo", 900.0), ("refold", 600.0)], 300.0, ("refold", "10 min", "2.0 × longer than recorded")),
        ([("fifo", 510.0), ("easy", 40.0), ("refold", 20.0)], None, ("refold", "20 s", "2.0 × shorter than easy")),
        ([("fifo", 9.0), ("fifo-skip", 4.0), ("refold", 2.0)], None, ("refold", "2 s", "2.0 × shorter than fifo-skip")),
        ([("fifo", 50.0), ("easy", 20.0), ("refold", 100.0)], None, ("easy", "20 s", "best of 3")),
        ([("easy", 21.0), ("refold", 20.2)], None, ("refold", "20 s", "21 s with easy")),
        ([("easy", 20.0), ("refold", 20.0)], None, ("all policies", "20 s", "")),
        ([("easy", 50.0), ("refold", 20.0)], 20.0, ("refold", "20 s", "as recorded")),
        ([("easy", 20.0), ("refold", 20.0)], 20.0, ("all policies", "20 s", "as recorded")),
        ([("refold", 20.0)], 20.0, ("refold", "20 s", "as recorded")),
        ([("mine", 50.0), ("other", 20.0)], None, ("other", "20 s", "2.5 × shorter than mine")),
        ([("fifo", 20.0), ("refold", 20.0)], 40.0, ("all policies", "20 s", "2.0 × shorter than recorded")),
        ([("refold", 100.0)], None, ("", "1 min 40 s", "")),
        ([("refold", 100.0)], 300.0, ("refold", "1 min 40 s", "3.0 × shorter than recorded")),
    ],
)  # fmt: skip
def test_headlines_refer_to_the_record_or_to_a_usual_baseline_not_to_strict_fifo(
    runs: list[tuple[str, float]], recorded: float | None, expected: tuple[str, str, str]
) -> None:
    known = None if recorded is None else Recorded("recorded", 4, {"waiting_mean": recorded})
    assert mean_wait(*(run(name, wait) for name, wait in runs), recorded=known) == expected


def test_a_run_that_was_recorded_is_what_headlines_refer_to() -> None:
    recorded = run("Slurm (recorded)", 50.0, is_recorded=True)
    assert mean_wait(recorded, run("fifo", 400.0), run("refold", 100.0)) == (
        "refold",
        "1 min 40 s",
        "2.0 × longer than Slurm (recorded)",
    )


def test_the_report_has_a_row_for_the_record() -> None:
    page = report_html([run("fifo", 9.0)], title="t", workload="w", command="c", recorded=measure_waits(JOBS, WAITS))
    assert '<th scope="row">recorded</th>' in page


def test_runs_that_touch_do_not_use_gpus_at_once() -> None:
    assert peak_gpus(JOBS, {}) == 0
    assert peak_gpus(JOBS[:2], {"j0": 0.0, "j1": 40.0}) == 2
    assert peak_gpus(JOBS[:2], {"j0": 0.0, "j1": 39.0}) == 4
