"""The benchmark of all workloads: draws, targets and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from benchmarks.scheduling.unified import targets
from benchmarks.scheduling.unified.page import target_results, target_table
from benchmarks.scheduling.unified.runs import measure_run, plan_runs
from benchmarks.scheduling.unified.targets import Figures, Target
from benchmarks.scheduling.unified.workloads import MAX_SHIFT, SLICE_JOBS, SLICES, Setup, Workload, shifted, workloads
from benchmarks.scheduling.variants import permuted

from refold.journal import HistoryJournal
from refold.model import HOUR
from refold.registry import make_policy
from refold.simulator import Costs, simulate
from refold.testing import make_cluster, make_job

JOBS = [make_job(f"job-{number}", gpus=1, at=MAX_SHIFT * number) for number in range(20)]


def no_setup(draw: int) -> Setup:
    raise AssertionError("nothing is simulated here")


def results_of(by_policy: Mapping[str, Sequence[Figures]], *goals: Target) -> list[tuple[str, str, str]]:
    workload = Workload("some-trace", no_setup, 2, tuple(by_policy), goals)
    return [(one.limit_text, one.baseline, one.verdict) for one in target_results(workload, by_policy)]


def delays(*values: float) -> list[Figures]:
    return [{"delay": value} for value in values]


def test_a_target_refers_to_the_mean_of_draws() -> None:
    figures = {"refold": delays(0.1, 0.5), "easy": delays(0.4), "las": delays(0.35)}

    assert results_of(figures, Target("delay", at_most=0.3)) == [("≤ 0.300", "las 0.350", "met")]
    assert results_of(figures, Target("delay", at_most=0.29)) == [("≤ 0.290", "las 0.350", "missed")]


def test_a_target_relative_to_policies_refers_to_the_best_of_them() -> None:
    figures = {"refold": delays(0.3), "easy": delays(0.4), "srtf": delays(0.2)}

    found = results_of(figures, Target("delay", below=("easy", "srtf"), factor=1.1))

    assert found == [("≤ 0.220 (1.1 × srtf)", "srtf\\* 0.200", "missed")]


def test_a_target_without_the_runs_that_it_needs_has_no_verdict() -> None:
    assert results_of({"refold": delays(0.3)}, Target("delay", below=("easy",))) == [("not known", "", "")]
    assert results_of({"refold": delays(0.3)}, Target("delay", before=True)) == [("not known", "", "")]
    assert results_of({"easy": delays(0.3)}, Target("delay", at_most=1)) == []


def test_a_target_may_refer_to_recorded_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.BEFORE, "some-trace", {"delay": 0.25})

    assert results_of({"refold": delays(0.3)}, Target("delay", before=True)) == [("≤ 0.250 (before)", "", "missed")]


def test_the_table_shows_the_spread_of_draws() -> None:
    workload = Workload("some-trace", no_setup, 2, ("refold",), (Target("delay", at_most=1),))

    table = target_table(target_results(workload, {"refold": delays(0.1, 0.5)}))

    assert table.splitlines()[-1] == "| some-trace | mean delay, h | 0.300 | 0.100 – 0.500 | ≤ 1.000 |  | met |"


def test_draws_are_reproducible_and_differ() -> None:
    assert shifted(JOBS, 0) == permuted(JOBS, 0) == tuple(JOBS)
    for draw in (shifted, permuted):
        assert draw(JOBS, 1) == draw(JOBS, 1) != draw(JOBS, 2)
        assert [job.submitted for job in draw(JOBS, 1)] == sorted(job.submitted for job in draw(JOBS, 1))
        assert sorted(job.id for job in draw(JOBS, 1)) == sorted(job.id for job in JOBS)


def test_submissions_move_by_a_limited_time() -> None:
    before = {job.id: job.submitted for job in JOBS}
    moves = [abs(job.submitted - before[job.id]) for job in shifted(JOBS, 3)]

    assert 0 < max(moves) <= MAX_SHIFT


def test_slices_for_tuning_have_no_job_in_common_with_reported_ones() -> None:
    for slices in SLICES.values():
        for reported in slices.reported:
            assert all(abs(reported - tuning) >= SLICE_JOBS for tuning in slices.tuning)
    assert not set(workloads()) & {name for name in workloads(tuning=True) if name.startswith(("philly", "helios"))}


def test_settings_apply_to_refold_only() -> None:
    workload = Workload("some-trace", no_setup, 5, ("refold", "easy", "las"), ())

    runs = plan_runs([workload], False, ["refold", "easy"], 1, {"gpu_price": 2})

    assert [(run.policy, run.draw, run.settings) for run in runs] == [
        ("refold", 0, (("gpu_price", 2),)),
        ("easy", 0, ()),
    ]


def test_the_delay_of_a_job_is_its_time_beyond_its_own_run_time() -> None:
    cluster = make_cluster(8)
    jobs = (make_job("narrow", gpus=1, work=HOUR), make_job("wide", gpus=8, work=HOUR))
    journal = HistoryJournal()
    simulate(jobs, cluster, make_policy("fifo"), journal=journal)

    found = measure_run(journal.history(cluster), Setup(cluster, jobs, Costs()))

    assert (found["mean"], found["delay"], found["wide_delay"]) == (1.5, 0.5, 1.0)
    assert (found["makespan"], found["restarts"]) == (2.0, 0)
