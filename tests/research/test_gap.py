"""The optimality gap: its value after each decision, and when it is unavailable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.research.__main__ import main
from benchmarks.research.gap import GapMeter, gap_between, running_after
from benchmarks.research.optimal import Optimal, normalised_throughput

from refold.core import Scheduler, View
from refold.core.events import JobSubmitted, RunFinished, RunProgressed, RunStopped
from refold.model import NO_CHANGE, Allocation, Decision, Job, Plan, Reshape, Share, Start, Stop
from refold.planning.plans import Speeds
from refold.simulator import Costs, simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"


class Scripted:
    """A policy that returns given decisions in order."""

    name = "scripted"

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = list(decisions)

    def decide(self, view: View) -> Decision:
        return self._decisions.pop(0) if self._decisions else NO_CHANGE


def on(node: int, *gpus: int) -> Allocation:
    return Allocation((Share(node, gpus),))


def submit(*jobs: Job) -> list[JobSubmitted]:
    return [JobSubmitted(job) for job in jobs]


def test_the_gap_is_the_missing_fraction_of_the_best() -> None:
    assert gap_between(3.0, 4.0) == 0.25
    assert gap_between(4.0, 4.0) == 0.0
    assert gap_between(5.0, 4.0) == -0.25
    assert gap_between(0.0, 0.0) == 0.0


def test_each_time_counts_once_with_its_last_decision() -> None:
    wide, a, b = make_job("wide", gpus=2), make_job("a"), make_job("b")
    meter = GapMeter(
        Scripted(
            Decision(starts=(Start("wide", on(0, 0, 1)),)),
            Decision(stops=(Stop("wide"),)),  # at 10 s: nothing runs, then one of two
            Decision(starts=(Start("a", on(0, 0)),)),
            Decision(starts=(Start("b", on(0, 1)),)),  # at 20 s: the optimum
        )
    )
    scheduler = Scheduler(make_cluster(2), meter)
    scheduler.step(0.0, submit(wide))
    assert meter.gap == 0.0
    scheduler.step(10.0, submit(a, b))
    assert meter.gap == pytest.approx((0.0 + 1.0) / 2)
    scheduler.step(10.0, [RunStopped("wide", 1)])
    assert meter.gap == pytest.approx((0.0 + 0.5) / 2)
    scheduler.step(20.0, ())
    assert meter.gap == pytest.approx((0.0 + 0.5 + 0.0) / 3)


def test_running_after_applies_starts_stops_and_reshapes() -> None:
    jobs = [make_job(name, reshapable=True) for name in "abcd"]
    decisions = [
        Decision(starts=(Start("a", on(0, 0)), Start("b", on(0, 1)), Start("c", on(0, 2)))),
        Decision(stops=(Stop("a"),), reshapes=(Reshape("b", on(1, 0, 1)),), starts=(Start("d", on(0, 3)),)),
    ]
    seen: list[dict[str, Allocation]] = []

    class Recording(Scripted):
        def decide(self, view: View) -> Decision:
            decision = super().decide(view)
            seen.append(running_after(view, decision))
            return decision

    scheduler = Scheduler(make_cluster(4, 4), Recording(*decisions))
    scheduler.step(0.0, submit(*jobs))
    scheduler.step(1.0, ())
    scheduler.step(2.0, ())
    after = {"b": on(1, 0, 1), "c": on(0, 2), "d": on(0, 3)}
    assert seen == [{"a": on(0, 0), "b": on(0, 1), "c": on(0, 2)}, after, after]


def test_an_empty_cluster_has_no_gap() -> None:
    meter = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(1), meter)
    scheduler.step(0.0, ())
    assert meter.gap is None
    scheduler.step(1.0, submit(make_job("a")))
    scheduler.step(2.0, [RunFinished("a", 1)])
    assert meter.gap == 0.0


def test_the_optimum_is_computed_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.research.optimal import OptimumSearch

    searches = 0
    find = OptimumSearch.best

    def counted(*arguments: Any) -> Any:
        nonlocal searches
        searches += 1
        return find(*arguments)

    monkeypatch.setattr(OptimumSearch, "best", counted)
    meter = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(1), meter)
    scheduler.step(0.0, submit(make_job("a"), make_job("b")))
    for second in range(1, 5):
        scheduler.step(float(second), [RunProgressed("a", 1, float(second))])
    assert (searches, meter.gap) == (1, 0.0)
    scheduler.step(9.0, submit(make_job("c")))
    assert searches == 2


def test_the_optimal_policy_has_no_gap_and_fifo_has_one() -> None:
    cluster = make_cluster(4, 4, types=GPU)
    jobs = [
        make_job(f"j{number}", at=30.0 * number, gpus=4, workload=workload, reshapable=True, job_class="best-effort")
        for number, workload in enumerate(["gpt2", "vit", "bert", "t5", "vit"])
    ]
    gaps = {}
    for policy in (Optimal(), make_policy("fifo")):
        meter = GapMeter(policy)
        simulate(jobs, cluster, meter, costs=Costs(report_every=50.0))
        gaps[meter.name] = meter.gap
    assert gaps["optimal"] == pytest.approx(0.0, abs=1e-4)
    assert gaps["fifo"] is not None
    assert 0.05 < gaps["fifo"] < 1.0


def test_a_cluster_that_is_too_large_makes_the_gap_unavailable_but_the_policy_continues() -> None:
    meter = GapMeter(make_policy("fifo"))
    scheduler = Scheduler(make_cluster(*[8] * 8, types=GPU), meter)
    entry = scheduler.step(0.0, submit(make_job("a", gpus=8, workload="gpt2", reshapable=True)))
    assert len(entry.orders) == 1
    assert meter.gap is None
    assert "cluster too large" in meter.unavailable


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    trace = tmp_path / "jobs.csv"
    rows = ["wide,0,4,100", "a,1,2,100", "b,1,2,100"]
    trace.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s", *rows, ""]))

    def run(*arguments: str) -> str:
        main([str(trace), "--cluster", "1x4", *arguments])
        return capsys.readouterr().out

    return run


def test_the_benchmark_prints_the_gap_of_each_policy(run: Callable[..., str]) -> None:
    # At 0 s the wide job alone is the optimum, at 1 s it is half of it, at 100 s both others run; at 200 s all ended.
    assert "| fifo | 16.7 % |\n| las | 16.7 % |" in run("--policies", "fifo,las")
    assert "| fifo | no gap: no jobs |" in run("--policies", "fifo", "--limit", "0")


def test_the_benchmark_prints_why_the_gap_is_unavailable(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.research.optimal.MAX_CHOICES", 2)
    output = run("--policies", "fifo")
    assert "no gap: cluster too large for the optimum: 3 jobs on 1 nodes have 3 choices" in output


@pytest.mark.parametrize(
    ("gpus", "workload", "expected"), [(2, "", 1.0), (1, "", 0.0), (2, "bert", 1.0)], ids=["all", "half", "modelled"]
)
def test_the_normalised_throughput_of_a_job_is_one_on_its_request(gpus: int, workload: str, expected: float) -> None:
    speeds = Speeds(make_cluster(4, types=GPU))
    job = make_job("a", gpus=2, workload=workload, reshapable=True)
    assert normalised_throughput(speeds, job, on(0, *range(gpus))) == pytest.approx(expected)


def test_a_modelled_job_with_fewer_gpus_has_less_throughput() -> None:
    speeds = Speeds(make_cluster(4, types=GPU))
    job = make_job("a", gpus=4, workload="bert", reshapable=True)
    found = [
        normalised_throughput(speeds, job, Allocation((Share(0, tuple(range(gpus))),), Plan(gpus)))
        for gpus in (1, 2, 4)
    ]
    assert 0 < found[0] < found[1] < found[2] == pytest.approx(1.0)
