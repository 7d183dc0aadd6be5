"""The gap to the optimum: what is missing after each decision, and what cannot be said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refold.cli.app import app
from refold.core import Scheduler, View
from refold.core.events import JobSubmitted, RunFinished, RunProgressed, RunStopped
from refold.model import KEEP, Allocation, Decision, Job, Reshape, Share, Start, Stop
from refold.registry import make_policy
from refold.research.gap import GapMeter, gap_between, running_after
from refold.research.optimal import Optimal
from refold.simulator import Costs, simulate
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"


class Scripted:
    """Says what it was told to say, in turn."""

    name = "scripted"

    def __init__(self, *said: Decision) -> None:
        self._said = list(said)

    def decide(self, view: View) -> Decision:
        return self._said.pop(0) if self._said else KEEP


def on(node: int, *gpus: int) -> Allocation:
    return Allocation((Share(node, gpus),))


def arrive(*jobs: Job) -> list[JobSubmitted]:
    return [JobSubmitted(job) for job in jobs]


def test_the_gap_is_the_part_of_the_best_that_is_missing() -> None:
    assert gap_between(3.0, 4.0) == 0.25
    assert gap_between(4.0, 4.0) == 0.0
    assert gap_between(5.0, 4.0) == -0.25
    assert gap_between(0.0, 0.0) == 0.0


def test_every_moment_counts_once_with_its_last_decision() -> None:
    wide, a, b = make_job("wide", gpus=2), make_job("a"), make_job("b")
    watched = GapMeter(
        Scripted(
            Decision(starts=(Start("wide", on(0, 0, 1)),)),
            Decision(stops=(Stop("wide"),)),  # at 10: nothing runs, then one of two
            Decision(starts=(Start("a", on(0, 0)),)),
            Decision(starts=(Start("b", on(0, 1)),)),  # at 20: the best
        )
    )
    scheduler = Scheduler(make_cluster(2), watched)
    scheduler.step(0.0, arrive(wide))
    assert watched.gap == 0.0
    scheduler.step(10.0, arrive(a, b))
    assert watched.gap == pytest.approx((0.0 + 1.0) / 2)
    scheduler.step(10.0, [RunStopped("wide", 1)])
    assert watched.gap == pytest.approx((0.0 + 0.5) / 2)
    scheduler.step(20.0, ())
    assert watched.gap == pytest.approx((0.0 + 0.5 + 0.0) / 3)


def test_what_runs_after_a_decision_is_counted_with_stops_and_reshapes_carried_out() -> None:
    jobs = [make_job(name, reshapable=True) for name in "abcd"]
    decisions = [
        Decision(starts=(Start("a", on(0, 0)), Start("b", on(0, 1)), Start("c", on(0, 2)))),
        Decision(stops=(Stop("a"),), reshapes=(Reshape("b", on(1, 0, 1)),), starts=(Start("d", on(0, 3)),)),
    ]
    seen: list[dict[str, Allocation]] = []

    class Looking(Scripted):
        def decide(self, view: View) -> Decision:
            decision = super().decide(view)
            seen.append(running_after(view, decision))
            return decision

    scheduler = Scheduler(make_cluster(4, 4), Looking(*decisions))
    scheduler.step(0.0, arrive(*jobs))
    scheduler.step(1.0, ())
    scheduler.step(2.0, ())
    after = {"b": on(1, 0, 1), "c": on(0, 2), "d": on(0, 3)}
    assert seen == [{"a": on(0, 0), "b": on(0, 1), "c": on(0, 2)}, after, after]


def test_an_empty_cluster_has_no_gap() -> None:
    watched = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(1), watched)
    scheduler.step(0.0, ())
    assert watched.gap is None
    scheduler.step(1.0, arrive(make_job("a")))
    scheduler.step(2.0, [RunFinished("a", 1)])
    assert watched.gap == 0.0


def test_the_best_is_looked_for_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from refold.research.optimal import OptimumSearch

    looked = 0
    find = OptimumSearch.best

    def counted(*asked: Any) -> Any:
        nonlocal looked
        looked += 1
        return find(*asked)

    monkeypatch.setattr(OptimumSearch, "best", counted)
    watched = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(1), watched)
    scheduler.step(0.0, arrive(make_job("a"), make_job("b")))
    for second in range(1, 5):
        scheduler.step(float(second), [RunProgressed("a", 1, float(second))])
    assert (looked, watched.gap) == (1, 0.0)
    scheduler.step(9.0, arrive(make_job("c")))
    assert looked == 2


def test_the_optimum_has_no_gap_to_itself_and_fifo_has_one() -> None:
    cluster = make_cluster(4, 4, types=GPU)
    jobs = [
        make_job(f"j{number}", at=30.0 * number, gpus=4, workload=workload, reshapable=True, job_class="best-effort")
        for number, workload in enumerate(["gpt2", "vit", "bert", "t5", "vit"])
    ]
    gaps = {}
    for policy in (Optimal(), make_policy("fifo")):
        watched = GapMeter(policy)
        simulate(jobs, cluster, watched, costs=Costs(report_every=50.0))
        gaps[watched.name] = watched.gap
    assert gaps["optimal"] == pytest.approx(0.0, abs=1e-4)
    assert gaps["fifo"] is not None
    assert 0.05 < gaps["fifo"] < 1.0


def test_where_an_instance_is_too_large_watching_ends_and_the_policy_goes_on() -> None:
    watched = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(*[8] * 8, types=GPU), watched)
    entry = scheduler.step(0.0, arrive(make_job("a", gpus=8, workload="gpt2", reshapable=True)))
    assert len(entry.orders) == 1
    assert watched.gap is None
    assert "for small clusters" in watched.refused


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., str]:
    trace = tmp_path / "jobs.csv"
    rows = ["wide,0,4,100", "a,1,2,100", "b,1,2,100"]
    trace.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s", *rows, ""]))

    def printed(*words: str) -> str:
        out = ("--out", str(tmp_path / "out"))
        result = CliRunner().invoke(app, ["compare", str(trace), "--cluster", "1x4", *out, *words])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    return printed


def test_compare_prints_the_gap_where_it_was_asked_for(printed: Callable[..., str]) -> None:
    shown = printed("--policies", "fifo", "--gap")
    assert "optimum" in shown
    # At 0 the wide one alone is the best, at 1 it is half of it, at 100 both others run; at 200 nobody is left.
    assert "16.7 %" in shown
    assert "optimum" not in printed("--policies", "fifo")


def test_compare_tells_programs_the_gap_too(printed: Callable[..., str]) -> None:
    runs = json.loads(printed("--policies", "fifo,las", "--gap", "--json", "--processes", "2"))["runs"]
    assert [run["gap"] for run in runs] == [pytest.approx(1 / 6), pytest.approx(1 / 6)]
    assert "gap" not in json.loads(printed("--policies", "fifo", "--json"))["runs"][0]


def test_compare_says_why_there_is_no_gap(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.research.optimal.MOST_CHOICES", 2)
    shown = printed("--policies", "fifo", "--gap")
    assert "no gap: the optimum is for small clusters: 3 jobs on 1 nodes have 3 choices" in shown
