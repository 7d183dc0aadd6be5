"""The kept results: tables that can be read, verdicts that follow from their figures, pictures that name everybody."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from benchmarks.accuracy.tables import data_folder
from benchmarks.scheduling import sweeps, table4
from benchmarks.scheduling.pictures import BarsPicture, LinesPicture, Pair, Panel, Series
from benchmarks.scheduling.runs import Figures, Point, fresh
from benchmarks.scheduling.variants import LARGE, at_load, gpu_seconds, mistake, mistaken, with_large_share
from benchmarks.scheduling.world import TRACES

from refold.core import Scheduler
from refold.model import Allocation, Job, Plan
from refold.plans.speeds import NOTHING_MORE
from refold.policies.common.outlook import Outlook
from refold.registry import make_policy
from refold.testing import make_cluster, make_job

Rows = list[list[str]]

needs_data = pytest.mark.skipif(data_folder() is None, reason="the published traces are not here (shared/data)")


def tables_of(page: Path) -> dict[str, Rows]:
    """The tables of a page by the heading above them: rows of cells, the titles first."""
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
def kept() -> dict[str, Rows]:
    return tables_of(table4.PAGE)


def heading(trace: str, restart: float) -> str:
    return f"{trace} ({table4.TITLES[trace]} in the paper), {restart:g} s"


CASES = [(trace, restart) for trace in TRACES for restart in table4.RESTARTS]


@pytest.mark.parametrize(("trace", "restart"), CASES)
def test_every_policy_has_a_row_and_has_finished_all_jobs(kept: dict[str, Rows], trace: str, restart: float) -> None:
    titles, *rows = kept[heading(trace, restart)]
    assert [row[0] for row in rows[:-1]] == [*table4.COMPARED, *table4.FURTHER]  # who has not is marked beside the name
    assert {len(row) for row in rows} == {len(titles)}


@pytest.mark.parametrize(("trace", "restart"), CASES)
def test_ratios_follow_from_the_means(kept: dict[str, Rows], trace: str, restart: float) -> None:
    _, *rows = kept[heading(trace, restart)]
    rubick = float(row_of(rows, "rubick")[1])
    for row in rows[:-1]:
        assert float(row[2]) == pytest.approx(float(row[1]) / rubick, rel=0.005, abs=0.006)


@pytest.mark.parametrize("trace", TRACES)
def test_the_paper_says_the_same_at_either_cost(kept: dict[str, Rows], trace: str) -> None:
    published = []
    for restart in table4.RESTARTS:
        titles, *rows = kept[heading(trace, restart)]
        published.append([row[titles.index("paper: mean h") :] for row in rows])
    assert published[0] == published[1]
    assert float(published[0][0][0]) == table4.PAPER[trace]["rubick"].mean


def test_the_verdicts_on_the_goals_follow_from_the_figures(kept: dict[str, Rows]) -> None:
    _, *goals = kept["Goals"]
    titles, *rows = kept[heading("random-plan", 78.0)]
    refold = row_of(rows, "refold")
    assert [goal[0].partition(":")[0] for goal in goals] == ["random-plan"] * 3 + ["multi-tenant"] * 2
    for goal, title in zip(goals, ("mean h", "p99 h", "makespan h"), strict=False):
        measured = float(goal[1].removesuffix(" h"))
        assert measured == pytest.approx(float(refold[titles.index(title)]), abs=0.006)
        limit = float(goal[2].removeprefix("≤ ").removesuffix(" h"))
        assert goal[3] == ("met" if measured <= limit else "**missed**")


def test_the_verdict_on_guarantees_follows_from_the_figures(kept: dict[str, Rows]) -> None:
    *_, believed, measured = kept["Goals"]
    titles, *rows = kept[heading("multi-tenant", 78.0)]
    refold = row_of(rows, "refold")
    for goal, title in ((believed, "broken: believed"), (measured, "broken: measured")):
        assert goal[1] == refold[titles.index(title)]
        assert goal[3] == ("met" if goal[1] == "0" else "**missed**")


@pytest.mark.parametrize("sweep", sweeps.SWEEPS.values(), ids=list(sweeps.SWEEPS))
def test_every_sweep_has_a_row_for_every_policy_and_a_picture_that_names_it(sweep: sweeps.Sweep) -> None:
    titles, *rows = tables_of(sweeps.PAGE)[sweep.title]
    names = [row[0] for row in rows]
    assert set(sweeps.POLICIES) <= set(names)
    assert set(titles[1:]) <= {sweep.text(value) for value in sweep.values}
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    drawn = ElementTree.parse(sweeps.FOLDER / f"sweep_{sweep.name}.svg")
    words = " ".join(text for text in drawn.getroot().itertext())
    assert [name for name in names if name not in words] == []


@pytest.mark.parametrize("other", ["sia", "synergy", "rubick-e", "rubick-n"])
def test_the_lead_of_rubick_grows_with_the_share_of_large_models(other: str) -> None:
    _, *rows = tables_of(sweeps.PAGE)[sweeps.SWEEPS["large"].title]
    means = {row[0]: [float(cell) for cell in row[1:]] for row in rows}
    first, last = (means[other][at] / means["rubick"][at] for at in (0, -1))
    assert last > first


@needs_data
def test_refold_meets_its_three_goals_in_one_run() -> None:
    found = fresh(Point("refold"))
    assert (found.finished, found.promised) == (406, 0)
    assert found.mean <= table4.GOALS["mean"]
    assert found.p99 <= table4.GOALS["p99"]
    assert found.makespan <= table4.GOALS["makespan"]


# --- verdicts -----------------------------------------------------------------------------------------------


FIGURES = Figures(
    jobs=406,
    finished=406,
    mean=0.16,
    p99=2.6,
    makespan=15.0,
    guaranteed=None,
    best_effort=0.16,
    changes=0.2,
    reshapes=0.1,
    lost=0.05,
    gpu_hours=500.0,
    promised=0,
    broken_believed=0,
    broken_measured=2,
    cpu_seconds=1.0,
)


def test_what_is_at_the_goal_is_met_and_what_is_above_is_missed() -> None:
    rows = table4.goals(FIGURES, FIGURES)
    assert [(row.measured, row.verdict) for row in rows] == [
        ("0.160 h", "met"),
        ("2.600 h", "missed"),
        ("15.000 h", "met"),
        ("0", "met"),
        ("2", "missed"),
    ]


def test_unfinished_jobs_are_told_beside_the_name() -> None:
    found = {
        Point("rubick", "best-plan", 78.0): FIGURES,
        Point("sia", "best-plan", 78.0): msgspec.structs.replace(FIGURES, finished=400, mean=0.32),
    }
    lines = table4.table(found, "best-plan", 78.0, ["rubick", "sia"]).splitlines()
    assert lines[3].startswith("| sia (6 unfinished) | 0.320 | 2.00 |")
    assert lines[3].endswith("| 1.8 | 1.88 | 9 | 16.5 |")


# --- changed traces -----------------------------------------------------------------------------------------


class StepCharge:
    """A step takes a second, of a large model ten."""

    def work(self, job: Job) -> float:
        assert job.steps is not None
        return job.steps * (10.0 if job.workload in LARGE else 1.0)

    def speed(self, job: Job, allocation: Allocation) -> float:
        return 1.0


def some_jobs() -> list[Job]:
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


def test_twice_the_load_is_half_the_time_between_jobs() -> None:
    assert [job.submitted for job in at_load(some_jobs()[:3], 2.0)] == [0.0, 50.0, 100.0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.6])
def test_a_share_of_large_models_is_what_was_asked_for_and_so_is_the_work(share: float) -> None:
    jobs, charge = some_jobs(), StepCharge()
    changed = with_large_share(jobs, share, charge, seed=3)
    assert sum(job.workload in LARGE for job in changed) == share * len(jobs)
    assert [(job.id, job.submitted) for job in changed] == [(job.id, job.submitted) for job in jobs]
    for before, after in zip(jobs, changed, strict=True):
        a_step = after.demand.total_gpus * (10.0 if after.workload in LARGE else 1.0)
        assert gpu_seconds(after, charge) == pytest.approx(gpu_seconds(before, charge), abs=a_step / 2 + 1e-6)


def test_a_larger_share_keeps_the_large_models_of_a_smaller_one() -> None:
    few, many = (with_large_share(some_jobs(), share, StepCharge(), seed=3) for share in (0.4, 0.6))
    large = [{job.id for job in jobs if job.workload in LARGE} for jobs in (few, many)]
    assert large[0] < large[1]


def test_mistakes_are_the_same_whenever_one_asks_and_spread_as_they_should() -> None:
    def all_of(seed: int) -> list[float]:
        return [log(mistake(seed, 0.2, "bert", Plan(data=count), (count,))) for count in range(1, 401)]

    assert all_of(1) == all_of(1) != all_of(2)
    assert fmean(all_of(1)) == pytest.approx(0.0, abs=0.03)
    assert stdev(all_of(1)) == pytest.approx(0.2, abs=0.03)


def believed() -> float:
    """The speed of a job, as a policy believes that sees a cluster for the first time."""
    view = Scheduler(make_cluster(8, types="A800-80GB"), make_policy("fifo")).view
    job = make_job(gpus=8, workload="gpt2", reshapable=True)
    return (
        Outlook(view, NOTHING_MORE, 0.0).speeds.with_plan(job, "A800-80GB", (8,), 64.0, Plan(data=8)).steps_per_second
    )


def test_policies_believe_mistakes_only_for_a_while() -> None:
    right = believed()
    with mistaken(0.3, seed=1):
        assert believed() == pytest.approx(right * mistake(1, 0.3, "gpt2-xl", Plan(data=8), (8,)))
    assert believed() == right
    assert mistake(1, 0.3, "gpt2-xl", Plan(data=8), (8,)) != pytest.approx(1.0, abs=0.01)


# --- pictures -----------------------------------------------------------------------------------------------


def heights(drawn: str) -> Sequence[float]:
    """Where the names at the ends of lines stand."""
    root = ElementTree.fromstring(drawn)
    return [float(part.attrib["y"]) for part in root.iter() if part.attrib.get("class") == "end"]


def test_names_at_the_ends_of_lines_never_overlap() -> None:
    series = [Series(f"policy {number}", [1.0, 1.0 + number / 100]) for number in range(11)]
    drawn = LinesPicture("t", "a", "x", "y", (0.0, 1.0), ("0", "1"), series).svg()
    assert float(np.diff(sorted(heights(drawn))).min()) >= 16.9


def test_what_was_published_has_a_bar_only_where_it_was() -> None:
    panels = [Panel("one", [Pair(1.0, 2.0), Pair(0.5)])]
    drawn = BarsPicture("t", "a", ("rubick", "las"), panels, ("ours", "theirs"), "h").svg()
    assert re.findall(r"(\d\.\d\d) h", drawn) == ["1.00", "2.00", "0.50"]
