"""`refold compare`, as it is typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.cli import experiment
from refold.cli.inputs.policy_choice import chosen_policy
from refold.cli.inputs.workload import Workload
from refold.policies.table import POLICIES
from refold.registry import usual_policies
from refold.simulator import Costs
from refold.testing import make_cluster
from refold.traces.formats import read_trace

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]


@pytest.fixture
def tiny(jobs: Path, tmp_path: Path) -> tuple[str, ...]:
    return ("compare", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--out", str(tmp_path / "out"))


def names(document: Any) -> list[str]:
    return [run["name"] for run in document["runs"]]


def test_every_policy_is_compared_and_the_report_is_named(tiny: tuple[str, ...], tmp_path: Path, said: Said) -> None:
    lines = said(*tiny).splitlines()
    usual = usual_policies()
    assert [line.split()[0] for line in lines[2 : 2 + len(usual)]] == usual
    assert "* the best of its column" in [line.strip() for line in lines]
    assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_without_arguments_it_is_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    document = told("compare", "--limit", "40")
    assert names(document) == usual_policies()
    assert (document["trace"], document["report"]) == ("demo", "refold-report/report.html")
    assert (tmp_path / "refold-report" / "report.html").exists()


def test_policies_can_be_names_names_with_a_placement_and_files(tiny: tuple[str, ...], mine: Path, told: Told) -> None:
    document = told(*tiny, "--policies", f"fifo, las/fgd,{mine},{mine}/random")
    assert names(document) == ["fifo", "las/fgd", "mine", "mine/random"]
    assert document["runs"][1]["settings"] == {"placement": "fgd"}


def test_every_policy_is_tried_with_every_placement(tiny: tuple[str, ...], mine: Path, told: Told) -> None:
    document = told(*tiny, "--policies", f"fifo,{mine}", "--placements", "first-fit,random")
    assert names(document) == ["fifo/first-fit", "fifo/random", "mine/first-fit", "mine/random"]


def test_settings_go_to_all_or_to_one(tiny: tuple[str, ...], mine: Path, told: Told) -> None:
    options = ("--set", "placement=tetris", "--set", "las.threshold_gpu_seconds=20", "--set", "mine.patience=1")
    document = told(*tiny, "--policies", f"fifo,las,{mine}", *options)
    assert [run["settings"] for run in document["runs"]] == [
        {"placement": "tetris"},
        {"placement": "tetris", "threshold_gpu_seconds": 20},
        {"placement": "tetris", "patience": 1},
    ]


def test_two_policies_of_one_name_are_told_apart_by_their_files(
    tiny: tuple[str, ...], mine: Path, tmp_path: Path, told: Told
) -> None:
    other = tmp_path / "better.py"
    other.write_text(mine.read_text())
    assert names(told(*tiny, "--policies", f"fifo,{mine},{other}")) == ["fifo", str(mine), str(other)]


def test_the_same_twice_is_compared_once(tiny: tuple[str, ...], told: Told) -> None:
    assert names(told(*tiny, "--policies", "fifo,fifo,fifo")) == ["fifo"]


def test_several_processes_give_the_same(tiny: tuple[str, ...], told: Told) -> None:
    options = ("--policies", "fifo,las", "--stop-cost", "3s")
    assert told(*tiny, *options, "--processes", "2") == told(*tiny, *options)


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_names_and_numbers_are_never_cut_or_broken(
    tiny: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = said(*tiny, "--policies", "fifo/round-robin,srtf", "--faults", "5m", "--repair", "1m")
    lines = [line.rstrip() for line in printed.splitlines()[:-1]]
    assert max(map(len, lines)) <= columns
    assert "…" not in printed
    assert not any(line.strip() == "*" for line in lines)
    blocks = sum("completion" in line or "policy" in line for line in lines)
    assert sum(line.startswith("fifo/round-robin ") for line in lines) <= blocks


def test_oracles_are_marked(tiny: tuple[str, ...], said: Said) -> None:
    printed = said(*tiny)
    marked = [line.split()[0] for line in printed.splitlines() if line.split()[1:2] == ["†"]]
    assert marked == [name for name, known in POLICIES.items() if known.oracle]
    assert "† knows how long jobs will take" in printed
    assert "†" not in said(*tiny, "--policies", "fifo,las")


def test_policies_that_are_alike_are_said_to_be(tmp_path: Path, said: Said) -> None:
    quiet = tmp_path / "quiet.csv"
    quiet.write_text("job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,20,1,10\n")
    printed = said("compare", str(quiet), "--cluster", "1x4", "--out", str(tmp_path / "out"))
    assert "nobody waited: all policies are alike here" in printed


def test_where_nodes_are_lost_it_is_told_what_that_cost(tiny: tuple[str, ...], said: Said, told: Told) -> None:
    faults = ("--policies", "fifo,las", "--faults", "5m", "--repair", "1m", "--fault-seed", "1")
    printed = said(*tiny, *faults)
    for words in ("failed runs", "GPU-hours lost", "node fault"):
        assert words in printed
        assert words not in said(*tiny, "--policies", "fifo,las")
    seen = [run["node_faults"] for run in told(*tiny, *faults)["runs"]]
    assert all(0 < number < 20 for number in seen)


def test_what_never_ran_is_noted_before_the_table_and_in_json(jobs: Path, tmp_path: Path, typed: Typed) -> None:
    words = ("compare", str(jobs), "--cluster", "1x4", "--policies", "fifo,las", "--out", str(tmp_path / "out"))
    note = "did not finish (1 never started): 1 never fit"
    assert note in typed(*words, "--gpus-per-instance", "4").stderr
    assert note in typed(*words, "--gpus-per-instance", "4", "--json").stdout


def test_progress_in_several_processes_counts_jobs(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    @contextmanager
    def noted(_: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
        assert total == 12
        yield told.append

    monkeypatch.setattr(experiment, "progress", noted)
    workload = Workload("tiny", list(read_trace(jobs, gpus_per_instance=4).jobs), make_cluster(2, 4), Costs())
    experiment.all_simulated(workload, [chosen_policy("fifo", {}), chosen_policy("las", {})], 2)
    assert sum(told) == 12


def test_narrow_terminals_get_all_columns_below_each_other(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    printed = said(*tiny, "--policies", "fifo,srtf")
    assert max(len(line.rstrip()) for line in printed.splitlines()[:-1]) <= 60
    assert "…" not in printed
    for title in ("makespan", "fragmentation", "preemptions"):
        assert title in printed


def test_without_the_library_for_reports_the_table_is_still_printed(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    printed = said(*tiny, "--policies", "fifo")
    assert "mean completion" in printed
    assert "report:" not in printed
    assert not Path(tiny[-1]).exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--policies", "fifo,sfj"], "did you mean 'sjf'?"),
        (["--policies", "fifo/bestfit"], "did you mean 'best-fit'?"),
        (["--policies", " , "], "--policies is empty"),
        (["--placements", ""], "--placements is empty"),
        (["--placements", "best"], "best-fit"),
        (["--set", "lass.seed=1"], "did you mean 'las'?"),
        (["--policies", "fifo", "--set", "threshold_gpu_seconds=1"], "no setting of fifo"),
        (["--policies", "las/fgd", "--placements", "best-fit"], "las/fgd has its placement, and --placements"),
        (["--placements", "fgd", "--set", "las.placement=tetris"], "--set las.placement and --placements"),
        (["--policies", "las/fgd", "--set", "placement=tetris"], "placement=tetris does too: say it once"),
        (["--checkpoint-every", "10m"], "--checkpoint-every needs --faults"),
    ],
)
def test_bad_input_is_one_line(tiny: tuple[str, ...], options: list[str], text: str, refuses: Said) -> None:
    assert text in refuses(*tiny, *options)


def test_what_a_policy_does_wrong_in_another_process_is_one_line_too(
    tiny: tuple[str, ...], tmp_path: Path, refuses: Said
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from refold.model import Decision, Stop\n"
        "class Bad:\n"
        "    name = 'bad'\n"
        "    def decide(self, view):\n"
        "        return Decision(stops=(Stop('nobody'),))\n"
    )
    assert "bad" in refuses(*tiny, "--policies", f"fifo,{bad}", "--processes", "2")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_a_policy_raises_is_told_once_with_its_own_lines(
    tiny: tuple[str, ...], tmp_path: Path, processes: str, fails: Said
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("class Bad:\n    name = 'bad'\n    def decide(self, view):\n        return 1 + 'x'\n")
    text = fails(*tiny, "--policies", f"fifo,{bad}", "--processes", processes)
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if line.startswith("  File")] == [f'  File "{bad}", line 4, in decide']
    assert lines[-1].startswith("error: policy bad failed: TypeError: ")
    assert text.count("TypeError") == 1
