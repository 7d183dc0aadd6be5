"""Tables of measures, by an example that can be computed by hand: two jobs of 2 h and 1 h for one GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TextOf = Callable[..., str]


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "two.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s,group\na,0,1,7200,x\nb,0,1,3600,y\n")
    return str(path)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_the_measures_of_one_policy(two: str, stdout_of: TextOf) -> None:
    assert lines(stdout_of("simulate", two, "--cluster", "1x1", "--policy", "fifo")) == [
        "fifo on two: 2 jobs on 1 node with 1 GPU",
        "jobs 2",
        "finished 2",
        "makespan 3 h",
        "GPU allocation until last submission –",
        "GPU allocation overall 100.0 %",
        "fragmentation 0.0 %",
        "GPU-hours held 3.0",
        "goodput 100.0 %",
        "GPU-hours of overhead 0.0",
        "GPU-hours lost 0.0",
        "preemptions 0",
        "failed runs 0",
        "Jain index, tenants –",
        "Jain index, jobs 0.800",  # of slowdowns 1 and 3: 16 / (2 · 10)
        "Times",
        "mean median p90 p99 max",
        "completion time 2 h 30 min 2 h 30 min 2 h 54 min 2 h 59 min 3 h",
        "waiting time 1 h 1 h 1 h 48 min 1 h 59 min 2 h",
        "time to first start 1 h 1 h 1 h 48 min 1 h 59 min 2 h",
        "slowdown 2.00 × 2.00 × 2.80 × 2.98 × 3.00 ×",
        "finish-time fairness (ρ) 1.15 × 1.15 × 1.67 × 1.79 × 1.80 ×",
        "overtaken by 0.0 0.0 0.0 0.0 0.0",
        "Tenants",
        "tenant jobs mean completion time mean waiting time mean slowdown GPU-hours preemptions",
        "x 1 2 h 0 s 1.00 × 2 0",
        "y 1 3 h 2 h 3.00 × 1 0",
        "Sizes",
        "size jobs mean completion time mean waiting time mean slowdown GPU-hours preemptions",
        "1 GPU 2 2 h 30 min 1 h 2.00 × 3 0",
        "Simulated: stop overhead 30 s, restart overhead 2 min, 0 of 2 jobs preemptible.",
    ]


def test_facts_that_do_not_apply_are_left_out_and_others_added(two: str, stdout_of: TextOf) -> None:
    Path(two).write_text(Path(two).read_text() + "c,0,2,60,x\n")
    options = ("--gpus-per-instance", "2", "--start-cost", "10m")
    printed = lines(stdout_of("simulate", two, "--cluster", "1x1", "--policy", "fifo", *options))
    assert "infeasible 1" in printed
    assert "GPU-hours of overhead 0.3" in printed  # two starts of ten minutes
    assert "overhead share of GPU-hours 10.0 %" in printed
    assert not any(line.startswith(("cancelled", "not finished", "reshapes", "node faults")) for line in printed)


def compare(stdout_of: TextOf, two: str, cluster: str, policies: str, folder: Path) -> list[str]:
    return lines(stdout_of("compare", two, "--cluster", cluster, "--policies", policies, "--out", str(folder)))


def test_a_comparison_marks_the_best_values_and_policies_that_know_run_times(
    two: str, stdout_of: TextOf, tmp_path: Path
) -> None:
    assert compare(stdout_of, two, "1x1", "fifo,srtf", tmp_path / "out")[:5] == [
        "two: 2 jobs on 1 node with 1 GPU",
        "policy mean completion median completion p99 completion mean waiting p99 waiting makespan GPU allocation"
        " fragmentation preemptions Jain, tenants",
        "fifo 2 h 30 min 2 h 30 min 2 h 59 min 1 h 1 h 59 min 3 h – 0.0 % 0 –",
        "srtf † 2 h * 2 h * 2 h 59 min 30 min * 59 min 24 s * 3 h – 0.0 % 0 –",
        "* best of the column",
    ]


def test_a_comparison_of_equal_results_says_so(two: str, stdout_of: TextOf, tmp_path: Path) -> None:
    printed = compare(stdout_of, two, "1x2", "fifo,las", tmp_path / "out")
    assert "all policies give the same result: no job waited" in printed
    assert not any("*" in line for line in printed)
    waiting = compare(stdout_of, two, "1x1", "fifo,fifo-skip", tmp_path / "out")
    assert "all policies give the same result" in waiting
