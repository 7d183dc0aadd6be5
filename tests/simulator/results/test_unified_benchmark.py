"""The benchmark of all workloads: draws, targets and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from benchmarks.scheduling.unified import targets
from benchmarks.scheduling.unified.estimates import measure_estimates
from benchmarks.scheduling.unified.figures import measure_run
from benchmarks.scheduling.unified.mixtures import with_tenants, with_users
from benchmarks.scheduling.unified.page import (
    all_policies,
    simple_table,
    target_results,
    target_table,
    targets_page,
)
from benchmarks.scheduling.unified.runs import merge, plan_runs, read_results, write_results
from benchmarks.scheduling.unified.slices import SLICE_JOBS, SLICES
from benchmarks.scheduling.unified.targets import MEASURES, Figures, Target
from benchmarks.scheduling.unified.workload import MAX_SHIFT, Setup, Workload, shifted
from benchmarks.scheduling.unified.workloads import workloads
from benchmarks.scheduling.variants import permuted

from refold.core import Policy, View
from refold.journal import History, HistoryJournal
from refold.model import HOUR, Decision, Job, StartEstimate
from refold.simulator import simulate
from refold.simulator.registry import make_policy
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


def test_a_target_may_refer_to_the_worst_draw() -> None:
    figures = {"refold": [{"restarts": count} for count in (2.0, 11.0)]}

    assert results_of(figures, Target("restarts", at_most=10)) == [("≤ 10", "", "met")]
    assert results_of(figures, Target("restarts", at_most=10, worst_draw=True)) == [("≤ 10", "", "missed")]


def test_a_target_relative_to_policies_refers_to_the_best_of_them() -> None:
    figures = {"refold": delays(0.3), "easy": delays(0.4), "srtf": delays(0.2)}

    found = results_of(figures, Target("delay", no_worse_than=("easy", "srtf"), factor=1.1))

    assert found == [("≤ 0.220 (1.1 × srtf)", "easy 0.400", "missed")], "srtf knows the duration of every job"


def test_the_strongest_simple_policy_stands_beside_refold_in_all_measures() -> None:
    def run(*values: float) -> list[Figures]:
        return [dict(zip(("delay", "wide_delay", "wide_delay_p99", "restarts"), values, strict=True))]

    figures = {
        "refold": run(0.26, 0.1, 2.0, 9.0),
        "easy": run(1.1, 0.3, 3.0, 0.0),
        "las": run(0.1, 9.5, 22.0, 58.0),
        "las-10-restarts": run(0.12, 11.3, 25.0, 10.0),
        "srtf": run(0.05, 0.1, 1.0, 0.0),
    }
    table = simple_table([Workload("philly-1", no_setup, 1, tuple(figures), ())], {"philly-1": figures})
    assert [row.strip("| ").split(" | ") for row in table.splitlines()[2:]] == [
        ["philly-1", "refold", "0.260", "**0.100**", "**2.00**", "**9**"],
        ["philly-1", "las", "**0.100**", "9.500", "22.00", "58"],
        ["philly-1", "las-10-restarts", "0.120", "11.300", "25.00", "10"],
    ]


def test_a_target_without_the_runs_that_it_needs_has_no_verdict() -> None:
    assert results_of({"refold": delays(0.3)}, Target("delay", no_worse_than=("easy",))) == [("not known", "", "")]
    assert results_of({"refold": delays(0.3)}, Target("delay", before=True)) == [("not known", "", "")]
    assert results_of({"easy": delays(0.3)}, Target("delay", at_most=1)) == []


def test_a_measure_that_refold_does_not_have_is_missed() -> None:
    assert results_of({"refold": [{}], "easy": delays(0.3)}, Target("delay", at_most=1)) == [
        ("≤ 1.000", "easy 0.300", "missed")
    ]


def test_more_of_some_measures_is_better() -> None:
    figures = {policy: [{"jain_users": value}] for policy, value in {"refold": 0.9, "drf": 0.8, "las": 0.85}.items()}

    found = results_of(figures, Target("jain_users", no_worse_than=("drf", "las")))

    assert found == [("≥ 0.850 (las)", "las 0.850", "met")]


def test_every_target_has_a_measure_and_the_policies_that_it_needs() -> None:
    for workload in [*workloads().values(), *workloads(tuning=True).values()]:
        for target in workload.targets:
            assert target.measure in MEASURES
            assert set(target.no_worse_than) <= set(workload.policies)
            assert (target.at_least is not None) <= MEASURES[target.measure].more_is_better


def test_a_target_may_refer_to_recorded_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.BEFORE, "some-trace", {"delay": 0.25})

    no_worse, better = Target("delay", before=True), Target("delay", before=True, strict=True)
    assert results_of({"refold": delays(0.3)}, no_worse) == [("≤ 0.250 (before)", "", "missed")]
    assert results_of({"refold": delays(0.25)}, no_worse, better) == [
        ("≤ 0.250 (before)", "", "met"),
        ("< 0.250 (before)", "", "missed"),
    ]


def test_the_table_shows_the_spread_of_draws() -> None:
    workload = Workload("some-trace", no_setup, 2, ("refold",), (Target("delay", at_most=1),))

    table = target_table(target_results(workload, {"refold": delays(0.1, 0.5)}))

    assert table.splitlines()[-1] == "| some-trace | mean delay, h | 0.300 | 0.100 – 0.500 | ≤ 1.000 |  | met |"


def test_stored_figures_can_be_replaced_in_part(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    write_results(file, {"some-trace": {"refold": delays(1.23456789), "las": delays(2, 3)}, "other": {"las": []}})

    write_results(file, merge(read_results([file]), {"some-trace": {"refold": delays(0.5, 0.7)}}))

    assert read_results([file]) == {
        "other": {"las": []},
        "some-trace": {"refold": delays(0.5, 0.7), "las": delays(2, 3)},
    }


def test_stored_figures_are_rounded(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    write_results(file, {"some-trace": {"refold": delays(1.23456789)}})

    assert read_results([file]) == {"some-trace": {"refold": delays(1.23457)}}


def test_results_of_earlier_runs_are_joined(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text('{"figures": {"some-trace": {"refold": [{"delay": 1}], "las": [{"delay": 2}]}}}')
    second.write_text('{"figures": {"some-trace": {"las": [{"delay": 3}]}, "other": {"las": [{"delay": 4}]}}}')

    found = read_results([first, second])

    assert found == {
        "some-trace": {"refold": [{"delay": 1}], "las": [{"delay": 3}]},
        "other": {"las": [{"delay": 4}]},
    }


def test_the_page_of_targets_names_workloads_that_were_not_measured() -> None:
    chosen = [Workload(name, no_setup, 2, ("refold",), (Target("delay", at_most=1),)) for name in ("one", "other")]

    text = targets_page(chosen, {"one": {"refold": delays(0.1)}})

    assert "Not measured here: `other`." in text
    assert "### one, draws: 1" not in text


def test_the_tables_of_all_policies_are_apart_from_the_page() -> None:
    chosen = [Workload("one", no_setup, 2, ("refold",), (Target("delay", at_most=1),))]

    assert "### one, draws: 1" in all_policies(chosen, {"one": {"refold": delays(0.1)}})


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

    found = measure_run(history_of(jobs, make_policy("fifo")), Setup(cluster, jobs))

    assert (found["mean"], found["delay"], found["wide_delay"]) == (1.5, 0.5, 1.0)
    assert (found["makespan"], found["restarts"]) == (2.0, 0)


class PromisingPolicy:
    """FIFO that says of every second job on submission when it starts at the latest: after twice the wait, at least."""

    name, oracle = "promising", False

    def __init__(self, bound: float) -> None:
        """`bound`: divided by the wait."""
        self._fifo, self._bound = make_policy("fifo"), bound

    def decide(self, view: View) -> Decision:
        promises = []
        for job in view.changes.submitted:
            number = int(job.id.removeprefix("job-"))
            if number and number % 2 == 0:
                wait = number * HOUR - job.submitted
                promises.append(StartEstimate(job.id, view.now + wait, view.now, view.now + self._bound * wait))
        return msgspec.structs.replace(self._fifo.decide(view), start_estimates=tuple(promises))


def history_of(jobs: Sequence[Job], policy: Policy) -> History:
    cluster, journal = make_cluster(8), HistoryJournal()
    simulate(jobs, cluster, policy, journal=journal)
    return journal.history(cluster)


def test_jobs_that_wait_without_a_bound_count_as_not_known() -> None:
    jobs = [make_job(f"job-{number}", gpus=8, work=HOUR) for number in range(30)]

    assert measure_estimates(history_of(jobs[:1], make_policy("fifo")), 0.0) == {}
    assert measure_estimates(history_of(jobs, make_policy("fifo")), 0.0) == {"not_known": 1.0}


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_start_bounds_are_compared_with_waits(bound: float) -> None:
    jobs = [make_job(f"job-{number}", gpus=8, work=HOUR, at=float(number)) for number in range(81)]
    history = history_of(jobs, PromisingPolicy(bound))

    found = measure_estimates(history, 0.0)

    assert found["not_known"] == 0.5
    assert found["kept"] == found["kept_in_worst_week"] == (1 if bound > 1 else 0)
    assert found["bound_to_wait"] == pytest.approx(bound)
    assert found["rank_correlation"] == pytest.approx(1)
    assert measure_estimates(history, 1e6) == {}


def test_jobs_get_tenants_and_users() -> None:
    jobs = with_users(with_tenants(10 * JOBS, ("A", "B"), seed=1), seed=1)

    assert {job.tenant for job in jobs} == {"A", "B"}
    assert all(job.user.startswith(f"{job.tenant}-") for job in jobs)


def test_fairness_is_measured_if_jobs_have_users() -> None:
    cluster = make_cluster(8)
    jobs = [
        make_job(f"job-{number}", gpus=8, work=HOUR, user=f"u{number}", at=number * HOUR / 2) for number in range(3)
    ]

    found = measure_run(history_of(jobs, make_policy("fifo")), Setup(cluster, tuple(jobs)))

    assert found["jain_tenants"] == 1
    assert 0.5 <= found["jain_users"] < 1
