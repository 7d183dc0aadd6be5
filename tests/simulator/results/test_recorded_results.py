"""The recorded benchmark results: tables parse, verdicts follow from the numbers, charts name all policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from benchmarks.accuracy.tables import data_folder
from benchmarks.charts import LineChart, Panel, PanelChart, Series
from benchmarks.scheduling import sweeps, table4, testbed
from benchmarks.scheduling.runs import ModelTimes, Scenario, Summary, simulate_scenario
from benchmarks.scheduling.testbed import TRACES
from benchmarks.scheduling.variants import (
    LARGE,
    at_load,
    error_factor,
    gpu_seconds,
    with_large_share,
    with_model_errors,
)

from refold.core import Scheduler
from refold.errors import BadFile
from refold.model import Allocation, Job, Plan
from refold.planning.catalogue import read_samples
from refold.planning.plans import Knowledge
from refold.planning.plans.speeds import CATALOGUE_ONLY
from refold.policies.common.progress_estimator import ProgressEstimator
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster, read_trace
from refold.testing import make_cluster, make_job

Rows = list[list[str]]

needs_data = pytest.mark.skipif(data_folder() is None, reason="the published traces are not available (shared/data)")


def tables_of(page: Path) -> dict[str, Rows]:
    """Return the tables of a Markdown page by the heading above them, as rows of cells with the header first."""
    found: dict[str, Rows] = {}
    heading = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("|--"):
            found.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def row_of(rows: Rows, name: str) -> list[str]:
    return next(row for row in rows if row[0] == name)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Rows]:
    return tables_of(table4.PAGE) | tables_of(table4.FURTHER_TABLES)


def heading(trace: str, restart: float) -> str:
    return f"{trace} ({table4.TITLES[trace]} in the paper), {restart:g} s"


CASES = [(trace, restart) for trace in TRACES for restart in table4.RESTARTS]


@pytest.mark.parametrize(("trace", "restart"), CASES)
def test_every_policy_has_a_row_and_finished_all_jobs(recorded: dict[str, Rows], trace: str, restart: float) -> None:
    titles, *rows = recorded[heading(trace, restart)]
    assert [row[0] for row in rows[:-1]] == [
        *table4.COMPARED,
        *table4.FURTHER,
    ]  # unfinished jobs would be noted next to the name
    assert {len(row) for row in rows} == {len(titles)}


@pytest.mark.parametrize(("trace", "restart"), CASES)
def test_ratios_follow_from_the_means(recorded: dict[str, Rows], trace: str, restart: float) -> None:
    _, *rows = recorded[heading(trace, restart)]
    rubick = float(row_of(rows, "rubick")[1])
    for row in rows[:-1]:
        assert float(row[2]) == pytest.approx(float(row[1]) / rubick, rel=0.005, abs=0.006)


@pytest.mark.parametrize("trace", TRACES)
def test_the_published_numbers_are_the_same_for_all_restart_costs(recorded: dict[str, Rows], trace: str) -> None:
    published = []
    for restart in table4.RESTARTS:
        titles, *rows = recorded[heading(trace, restart)]
        published.append([row[titles.index("paper: mean h") :] for row in rows])
    assert published[0] == published[1]
    assert float(published[0][0][0]) == table4.PAPER[trace]["rubick"].mean


def test_the_verdicts_on_the_goals_follow_from_the_numbers(recorded: dict[str, Rows]) -> None:
    _, *goals = recorded["Goals"]
    titles, *rows = recorded[heading("random-plan", 78.0)]
    refold = row_of(rows, "refold")
    assert [goal[0].partition(":")[0] for goal in goals] == ["random-plan"] * 3 + ["multi-tenant"] * 2
    for goal, title in zip(goals, ("mean h", "p99 h", "makespan h"), strict=False):
        measured = float(goal[1].removesuffix(" h"))
        assert measured == pytest.approx(float(refold[titles.index(title)]), abs=0.006)
        limit = float(goal[2].removeprefix("≤ ").removesuffix(" h"))
        assert goal[3] == ("met" if measured <= limit else "**missed**")


def test_the_verdict_on_guarantees_follows_from_the_numbers(recorded: dict[str, Rows]) -> None:
    *_, predicted, measured = recorded["Goals"]
    titles, *rows = recorded[heading("multi-tenant", 78.0)]
    refold = row_of(rows, "refold")
    for goal, title in ((predicted, "violations: predicted"), (measured, "violations: measured")):
        assert goal[1] == refold[titles.index(title)]
        assert goal[3] == ("met" if goal[1] == "0" else "**missed**")


@pytest.mark.parametrize("sweep", sweeps.SWEEPS.values(), ids=list(sweeps.SWEEPS))
def test_every_sweep_has_a_row_for_every_policy_and_a_chart_that_names_it(sweep: sweeps.Sweep) -> None:
    titles, *rows = tables_of(sweeps.PAGE)[sweep.title]
    names = [row[0] for row in rows]
    assert set(sweeps.POLICIES) <= set(names)
    assert set(titles[1:]) <= {sweep.text(value) for value in sweep.values}
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    drawn = ElementTree.parse(sweeps.PAGE.parent / f"sweep_{sweep.name}.svg")
    words = " ".join(text for text in drawn.getroot().itertext())
    assert [name for name in names if name not in words] == []


@pytest.mark.parametrize("other", ["sia", "synergy", "rubick-e", "rubick-n"])
def test_the_advantage_of_rubick_grows_with_the_share_of_large_models(other: str) -> None:
    _, *rows = tables_of(sweeps.PAGE)[sweeps.SWEEPS["large"].title]
    means = {row[0]: [float(cell) for cell in row[1:]] for row in rows}
    first, last = (means[other][at] / means["rubick"][at] for at in (0, -1))
    assert last > first


@pytest.mark.long  # a simulation of the whole trace; the golden runs of the policies notice when orders change
@needs_data
def test_refold_meets_its_goals_for_the_mean_and_the_tail_and_ends_before_rubick(recorded: dict[str, Rows]) -> None:
    titles, *rows = recorded[heading("random-plan", 78.0)]
    found = simulate_scenario(Scenario("refold"))
    assert (found.finished, found.guaranteed_jobs) == (406, 0)
    assert found.mean <= table4.GOALS["mean"]
    assert found.p99 <= table4.GOALS["p99"]
    assert found.makespan <= float(row_of(rows, "rubick")[titles.index("makespan h")])


# --- verdicts -----------------------------------------------------------------------------------------------


SUMMARY = Summary(
    jobs=406,
    finished=406,
    mean=0.16,
    median=0.01,
    p99=2.6,
    makespan=15.0,
    guaranteed=None,
    best_effort=0.16,
    preemptions=0.2,
    reshapes=0.1,
    overhead=0.05,
    gpu_hours=500.0,
    guaranteed_jobs=0,
    predicted_violations=0,
    measured_violations=2,
    models={
        "vit": ModelTimes(300, 0.05, 0.01),
        "llama7": ModelTimes(50, 0.2, 0.1),
        "llama30": ModelTimes(56, 0.8, 0.7),
    },
    cpu_seconds=1.0,
)


def test_a_value_at_the_goal_is_met_and_one_above_it_is_missed() -> None:
    rows = table4.goals(SUMMARY, SUMMARY)
    assert [(row.measured, row.verdict) for row in rows] == [
        ("0.160 h", "met"),
        ("2.600 h", "missed"),
        ("15.000 h", "met"),
        ("0", "met"),
        ("2", "missed"),
    ]


def test_unfinished_jobs_are_noted_next_to_the_policy_name() -> None:
    found = {
        Scenario("rubick", "best-plan", 78.0): SUMMARY,
        Scenario("sia", "best-plan", 78.0): msgspec.structs.replace(SUMMARY, finished=400, mean=0.32),
    }
    lines = table4.table(found, "best-plan", 78.0, ["rubick", "sia"]).splitlines()
    assert lines[3].startswith("| sia (6 unfinished) | 0.320 | 2.00 |")
    assert lines[3].endswith("| 1.8 | 1.88 | 9 | 16.5 |")


def test_the_source_of_the_lead_is_a_share_of_the_total_difference() -> None:
    slower = {**SUMMARY.models, "vit": ModelTimes(300, 0.04, 0.01), "llama30": ModelTimes(56, 0.908, 0.7)}
    rubick = msgspec.structs.replace(SUMMARY, mean=SUMMARY.mean + (56 * 0.108 - 300 * 0.01) / 406, models=slower)

    sentence = table4.source_of_lead(SUMMARY, rubick)

    assert sentence.startswith("Where the lead comes from: 198% of the difference")
    assert "from the 56 jobs of llama30; the mean of the other 350 jobs is 0.071 h with `refold`" in sentence
    assert sentence.endswith("and 0.063 h with `rubick`.")


def test_further_draws_show_the_spread() -> None:
    found = {
        scenario: msgspec.structs.replace(SUMMARY, mean=0.1 * (1 + scenario.draw))
        for scenario in table4.draws("rubick", 78.0)
    }

    row = table4.further_draws(found, ["rubick"], 78.0).splitlines()[-1]

    assert row.startswith("| rubick | 0.300 (0.100 – 0.500) | 36 (36 – 36) |")
    assert row.endswith("| 1.00 (1.00 – 1.00) |")


# --- modified traces -----------------------------------------------------------------------------------------


class StepCharge:
    """A step takes 1 s, or 10 s for large models."""

    def work(self, job: Job) -> float:
        assert job.steps is not None
        return job.steps * (10.0 if job.workload in LARGE else 1.0)

    def speed(self, job: Job, allocation: Allocation) -> float:
        return 1.0


def make_jobs() -> list[Job]:
    return [
        make_job(
            f"j{number}",
            at=100.0 * number,
            gpus=8 if number % 4 == 0 else 2,
            workload="llama7" if number % 4 == 0 else "bert",
            steps=1000 + number,
        )
        for number in range(40)
    ]


def test_twice_the_load_halves_the_time_between_submissions() -> None:
    assert [job.submitted for job in at_load(make_jobs()[:3], 2.0)] == [0.0, 50.0, 100.0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.6])
def test_the_share_of_large_models_is_as_specified_and_the_work_is_unchanged(share: float) -> None:
    jobs, charge = make_jobs(), StepCharge()
    changed = with_large_share(jobs, share, charge, seed=3)
    assert sum(job.workload in LARGE for job in changed) == share * len(jobs)
    assert [(job.id, job.submitted) for job in changed] == [(job.id, job.submitted) for job in jobs]
    for before, after in zip(jobs, changed, strict=True):
        step_gpu_seconds = after.demand.total_gpus * (10.0 if after.workload in LARGE else 1.0)
        assert gpu_seconds(after, charge) == pytest.approx(gpu_seconds(before, charge), abs=step_gpu_seconds / 2 + 1e-6)


def test_a_larger_share_includes_the_large_models_of_a_smaller_one() -> None:
    few, many = (with_large_share(make_jobs(), share, StepCharge(), seed=3) for share in (0.4, 0.6))
    large = [{job.id for job in jobs if job.workload in LARGE} for jobs in (few, many)]
    assert large[0] < large[1]


def test_model_errors_are_deterministic_and_have_the_specified_spread() -> None:
    def log_errors(seed: int) -> list[float]:
        return [log(error_factor(seed, 0.2, "bert", Plan(data=count), (count,))) for count in range(1, 401)]

    assert log_errors(1) == log_errors(1) != log_errors(2)
    assert fmean(log_errors(1)) == pytest.approx(0.0, abs=0.03)
    assert stdev(log_errors(1)) == pytest.approx(0.2, abs=0.03)


def predicted_speed() -> float:
    """Return the speed of a job that a policy predicts at first sight of a cluster."""
    view = Scheduler(make_cluster(8, types="A800-80GB"), make_policy("fifo")).view
    job = make_job(gpus=8, workload="gpt2", reshapable=True)
    return (
        ProgressEstimator(view, CATALOGUE_ONLY, 0.0)
        .speeds.with_plan(job, "A800-80GB", (8,), 64.0, Plan(data=8))
        .steps_per_second
    )


def test_policies_predict_with_model_errors_only_within_the_context() -> None:
    correct = predicted_speed()
    with with_model_errors(0.3, seed=1):
        assert predicted_speed() == pytest.approx(correct * error_factor(1, 0.3, "gpt2-xl", Plan(data=8), (8,)))
    assert predicted_speed() == correct
    assert error_factor(1, 0.3, "gpt2-xl", Plan(data=8), (8,)) != pytest.approx(1.0, abs=0.01)


# --- charts -----------------------------------------------------------------------------------------------


def label_positions(drawn: str) -> Sequence[float]:
    """Return the y coordinates of the labels at the ends of lines."""
    root = ElementTree.fromstring(drawn)
    return [float(part.attrib["y"]) for part in root.iter() if part.attrib.get("class") == "end"]


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    series = [Series(f"policy {number}", [1.0, 1.0 + number / 100]) for number in range(11)]
    drawn = LineChart("t", "a", "x", "y", (0.0, 1.0), ("0", "1"), series).svg()
    assert float(np.diff(sorted(label_positions(drawn))).min()) >= 16.9


def test_published_values_have_a_bar_only_if_they_exist() -> None:
    panels = [Panel("one", [1.0, 0.5], [2.0, None])]
    names = ("rubick", "las")
    drawn = PanelChart("t", "a", names, (0, 0), panels, 1, "{:.2f} h".format, legend=("ours", "theirs")).svg()
    assert re.findall(r"(\d\.\d\d) h", drawn) == ["1.00", "2.00", "0.50"]


@pytest.fixture(params=[1, pytest.param(len(testbed.WORKLOADS), marks=pytest.mark.long)])
def fitted_models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of models whose speeds are fitted, from the last on: that takes a minute for all of them."""
    count = int(request.param)
    monkeypatch.setattr(testbed, "WORKLOADS", dict(list(testbed.WORKLOADS.items())[-count:]))
    monkeypatch.setattr(testbed, "measurements", cache(testbed.measurements.__wrapped__))
    monkeypatch.setattr(testbed, "knowledge", cache(testbed.knowledge.__wrapped__))
    return count


@needs_data
def test_the_testbed_can_be_written_as_files_for_the_command_line(tmp_path: Path, fitted_models: int) -> None:
    testbed.write_files(tmp_path)
    assert len(testbed.knowledge().fits) == fitted_models
    assert read_cluster(tmp_path / "cluster.yaml") == testbed.cluster()
    assert {row.model for row in read_samples(tmp_path / "steps.csv")} == {row.model for row in testbed.measurements()}
    assert msgspec.json.decode((tmp_path / "knowledge.json").read_bytes(), type=Knowledge) == testbed.knowledge()
    for trace in TRACES:
        assert read_trace(tmp_path / f"{trace}.csv").jobs == testbed.jobs(trace)


@needs_data
def test_charging_the_published_table_itself_names_the_converter() -> None:
    folder = data_folder()
    assert folder is not None
    with pytest.raises(BadFile, match=r"Rubick's table of measured steps; docs/results/table4\.md"):
        read_samples(folder / "rubick" / "measured_iter_times.csv")
