"""`refold compare`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.cli import parallel_runs
from refold.cli.inputs.policy_choice import parse_policy
from refold.cli.inputs.workload import Workload
from refold.policies.table import POLICIES
from refold.simulator import Costs, replays
from refold.simulator.registry import default_policies
from refold.simulator.traces.formats import read_trace
from refold.testing import make_cluster

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]


@pytest.fixture
def tiny(jobs: Path, tmp_path: Path) -> tuple[str, ...]:
    return ("compare", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--out", str(tmp_path / "out"))


def names(document: Any) -> list[str]:
    return [run["name"] for run in document["runs"]]


def test_every_policy_is_compared_and_the_report_is_named(
    tiny: tuple[str, ...], tmp_path: Path, stdout_of: TextOf
) -> None:
    lines = stdout_of(*tiny).splitlines()
    expected = default_policies()
    assert [line.split()[0] for line in lines[2 : 2 + len(expected)]] == expected
    assert "* best of the column" in [line.strip() for line in lines]
    assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_without_arguments_the_demo_trace_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_of: JsonOf
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json_of("compare", "--limit", "40")
    assert names(document) == default_policies()
    assert (document["trace"], document["report"]) == ("demo", "refold-compare/report.html")
    assert (tmp_path / "refold-compare" / "report.html").exists()


def test_policies_are_names_names_with_a_placement_or_files(
    tiny: tuple[str, ...], own_policy: Path, json_of: JsonOf
) -> None:
    document = json_of(*tiny, "--policies", f"fifo, las/fgd,{own_policy},{own_policy}/random")
    assert names(document) == ["fifo", "las/fgd", "mine", "mine/random"]
    assert document["runs"][1]["settings"] == {"placement": "fgd"}


def test_every_policy_is_combined_with_every_placement(
    tiny: tuple[str, ...], own_policy: Path, json_of: JsonOf
) -> None:
    document = json_of(*tiny, "--policies", f"fifo,{own_policy}", "--placements", "first-fit,random")
    assert names(document) == ["fifo/first-fit", "fifo/random", "mine/first-fit", "mine/random"]


def test_settings_apply_to_all_policies_or_to_one(tiny: tuple[str, ...], own_policy: Path, json_of: JsonOf) -> None:
    options = ("--set", "placement=tetris", "--set", "las.threshold_gpu_seconds=20", "--set", "mine.patience=1")
    document = json_of(*tiny, "--policies", f"fifo,las,{own_policy}", *options)
    assert [run["settings"] for run in document["runs"]] == [
        {"placement": "tetris"},
        {"placement": "tetris", "threshold_gpu_seconds": 20},
        {"placement": "tetris", "patience": 1},
    ]


def test_policies_of_the_same_name_are_labelled_by_their_files(
    tiny: tuple[str, ...], own_policy: Path, tmp_path: Path, json_of: JsonOf
) -> None:
    other = tmp_path / "better.py"
    other.write_text(own_policy.read_text())
    assert names(json_of(*tiny, "--policies", f"fifo,{own_policy},{other}")) == ["fifo", str(own_policy), str(other)]


def test_duplicate_policies_are_compared_once(tiny: tuple[str, ...], json_of: JsonOf) -> None:
    assert names(json_of(*tiny, "--policies", "fifo,fifo,fifo")) == ["fifo"]


def test_several_processes_give_the_same_results(tiny: tuple[str, ...], json_of: JsonOf) -> None:
    options = ("--policies", "fifo,las", "--stop-cost", "3s")
    assert json_of(*tiny, *options, "--processes", "2") == json_of(*tiny, *options)


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_names_and_numbers_are_never_wrapped(
    tiny: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = stdout_of(*tiny, "--policies", "fifo/round-robin,srtf", "--faults", "5m", "--repair", "1m")
    lines = [line.rstrip() for line in printed.splitlines()[:-1]]
    assert max(map(len, lines)) <= columns
    assert "…" not in printed
    assert not any(line.strip() == "*" for line in lines)
    blocks = sum("completion" in line or "policy" in line for line in lines)
    assert sum(line.startswith("fifo/round-robin ") for line in lines) <= blocks


def test_oracles_are_marked(tiny: tuple[str, ...], stdout_of: TextOf) -> None:
    printed = stdout_of(*tiny)
    marked = [line.split()[0] for line in printed.splitlines() if line.split()[1:2] == ["†"]]
    assert marked == [name for name, known in POLICIES.items() if known.oracle]
    assert "† knows run times in advance" in printed
    assert "†" not in stdout_of(*tiny, "--policies", "fifo,las")


def test_a_footnote_says_that_all_policies_give_the_same_result(tmp_path: Path, stdout_of: TextOf) -> None:
    quiet = tmp_path / "quiet.csv"
    quiet.write_text("job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,20,1,10\n")
    printed = stdout_of("compare", str(quiet), "--cluster", "1x4", "--out", str(tmp_path / "out"))
    assert "all policies give the same result: no job waited" in printed


def test_with_node_faults_their_cost_is_shown(tiny: tuple[str, ...], stdout_of: TextOf, json_of: JsonOf) -> None:
    faults = ("--policies", "fifo,las", "--faults", "5m", "--repair", "1m", "--fault-seed", "1")
    printed = stdout_of(*tiny, *faults)
    for words in ("failed runs", "GPU-hours lost", "node fault"):
        assert words in printed
        assert words not in stdout_of(*tiny, "--policies", "fifo,las")
    counts = [run["node_faults"] for run in json_of(*tiny, *faults)["runs"]]
    assert all(0 < number < 20 for number in counts)


def test_jobs_that_never_ran_are_noted_before_the_table_and_in_json(jobs: Path, tmp_path: Path, invoke: Invoke) -> None:
    words = ("compare", str(jobs), "--cluster", "1x4", "--policies", "fifo,las", "--out", str(tmp_path / "out"))
    note = "did not finish (1 never started): 1 can never fit"
    assert note in invoke(*words, "--gpus-per-instance", "4").stderr
    assert note in invoke(*words, "--gpus-per-instance", "4", "--json").stdout


def test_progress_in_several_processes_counts_jobs(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts: list[float] = []

    @contextmanager
    def record_progress(_: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
        assert total == 12
        yield amounts.append

    monkeypatch.setattr(parallel_runs, "progress", record_progress)
    workload = Workload("tiny", list(read_trace(jobs, gpus_per_instance=4).jobs), make_cluster(2, 4), Costs())
    parallel_runs.run_policies(workload, [parse_policy("fifo", {}), parse_policy("las", {})], 2)
    assert sum(amounts) == 12


def test_on_narrow_terminals_columns_are_split_into_blocks(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    printed = stdout_of(*tiny, "--policies", "fifo,srtf")
    assert max(len(line.rstrip()) for line in printed.splitlines()[:-1]) <= 60
    assert "…" not in printed
    for title in ("makespan", "fragmentation", "preemptions"):
        assert title in printed


def test_without_the_plotting_library_the_table_is_still_printed(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    printed = stdout_of(*tiny, "--policies", "fifo")
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
        (["--policies", "fifo", "--set", "threshold_gpu_seconds=1"], "unknown fifo setting 'threshold_gpu_seconds'"),
        (["--policies", "las/fgd", "--placements", "best-fit"], "las/fgd and --placements both select a placement"),
        (["--placements", "fgd", "--set", "las.placement=tetris"], "--set las.placement and --placements"),
        (["--policies", "las/fgd", "--set", "placement=tetris"], "placement=tetris both select a placement"),
        (["--checkpoint-every", "10m"], "--checkpoint-every needs --faults"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tiny: tuple[str, ...], options: list[str], text: str, error_of: TextOf
) -> None:
    assert text in error_of(*tiny, *options)


def test_an_error_of_a_policy_in_another_process_is_one_line(
    tiny: tuple[str, ...], tmp_path: Path, error_of: TextOf
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from refold.model import Decision, Stop\n"
        "class Bad:\n"
        "    name = 'bad'\n"
        "    def decide(self, view):\n"
        "        return Decision(stops=(Stop('no-such-job'),))\n"
    )
    assert "bad" in error_of(*tiny, "--policies", f"fifo,{bad}", "--processes", "2")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_exception_of_a_policy_is_printed_once_with_its_own_frames(
    tiny: tuple[str, ...], tmp_path: Path, processes: str, stderr_of: TextOf
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("class Bad:\n    name = 'bad'\n    def decide(self, view):\n        return 1 + 'x'\n")
    text = stderr_of(*tiny, "--policies", f"fifo,{bad}", "--processes", processes)
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if line.startswith("  File")] == [f'  File "{bad}", line 4, in decide']
    assert lines[-1].startswith("error: policy bad failed: TypeError: ")
    assert text.count("TypeError") == 1


def test_table_and_report_are_the_same_with_and_without_compiled_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf
) -> None:
    trace, report = tmp_path / "trace.csv", tmp_path / "out" / "report.html"
    stdout_of("trace", "generate", str(trace), "--jobs", "300", "--cluster", "8x8")
    words = ("compare", str(trace), "--cluster", "8x8", "--policies", "fifo,fifo-skip", "--out", "out")
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def no_journal(*_: Any, **__: Any) -> None:
        raise AssertionError("the general simulator was used")

    with monkeypatch.context() as patch:
        patch.setattr("refold.simulator.simulate", no_journal)
        replayed = stdout_of(*words), report.read_text()
    monkeypatch.setattr(replays, "find_replay", lambda experiment: asked.append(experiment.policy))
    assert (stdout_of(*words), report.read_text()) == replayed
    assert asked == ["fifo", "fifo-skip"]


MIXED = """job_id,submit_s,num_gpu,duration_s,extra
wide,0,4,1000,
best-effort,0,4,1000,class=best-effort
refuses,0,4,1000,class=best-effort|preemptible=false
"""


def compare_mixed(tmp_path: Path, printed: JsonOf, *options: str) -> Any:
    trace = tmp_path / "mixed.csv"
    late = "".join(f"late{number},{100 + number},1,10,\n" for number in range(20))
    trace.write_text(MIXED + late)
    words = ("compare", str(trace), "--cluster", "3x4", "--policies", "fifo,srtf", "--out", str(tmp_path / "out"))
    return printed(*words, *options)


@pytest.mark.parametrize(("mode", "preemptible"), [("consent", 1), ("never", 0)])
def test_jobs_of_a_trace_are_preempted_only_with_consent(
    tmp_path: Path, json_of: JsonOf, mode: str, preemptible: int
) -> None:
    document = compare_mixed(tmp_path, json_of, "--preemption", mode)
    assert f"{preemptible} of 23 jobs preemptible" in document["conditions"]
    assert [run["name"] for run in document["runs"]] == ["fifo", "srtf"]
    assert (document["runs"][1]["measures"]["preemptions"] > 0) == (preemptible > 0)


def test_the_default_is_what_the_daemon_does(tmp_path: Path, json_of: JsonOf) -> None:
    document = compare_mixed(tmp_path, json_of)
    assert document["conditions"] == "Simulated: stop overhead 30 s, restart overhead 2 min, 1 of 23 jobs preemptible."
    assert document["runs"] == compare_mixed(tmp_path, json_of, "--preemption", "consent")["runs"]


def test_with_all_jobs_preemptible_policies_that_differ_have_two_rows(tmp_path: Path, json_of: JsonOf) -> None:
    runs = {run["name"]: run["measures"] for run in compare_mixed(tmp_path, json_of, "--preemption", "always")["runs"]}
    assert list(runs) == ["fifo", "srtf", "srtf, all preemptible"]
    assert runs["srtf, all preemptible"]["preemptions"] > runs["srtf"]["preemptions"] > 0


def test_no_best_value_is_of_a_policy_that_knows_run_times(tmp_path: Path, stdout_of: TextOf) -> None:
    printed = compare_mixed(tmp_path, stdout_of, "--preemption", "always", "--policies", "fifo,easy,srtf")
    assert "srtf, all preemptible †" in printed
    assert "waiting time: srtf" not in printed


WAITED = """job_id,submit_s,num_gpu,duration_s,wait_s
a,0,4,100,0
b,10,4,100,90
c,20,2,50,
"""


@pytest.fixture
def waited(tmp_path: Path) -> tuple[str, ...]:
    """A history with recorded waits, one of which is missing."""
    (tmp_path / "waited.csv").write_text(WAITED)
    return ("compare", str(tmp_path / "waited.csv"), "--policies", "fifo", "--out", str(tmp_path / "out"))


def test_what_a_history_has_recorded_is_the_first_row(waited: tuple[str, ...], stdout_of: TextOf) -> None:
    lines = stdout_of(*waited, "--cluster", "1x4").splitlines()
    assert re.split(r" [ *]+", lines[2])[:5] == ["recorded", "–", "–", "–", "45 s"]
    assert "mean waiting time: fifo 1 min 30 s, 2.0 × longer than recorded" in lines
    lines = stdout_of(*waited, "--cluster", "1x4", "--limit", "2").splitlines()
    assert re.split(r" [ *]+", lines[2])[:5] == ["recorded", "2 min 25 s", "2 min 25 s", "3 min 9 s", "45 s"]


def test_notes_say_of_which_jobs_and_on_how_many_gpus_waits_are_recorded(
    waited: tuple[str, ...], json_of: JsonOf
) -> None:
    document = json_of(*waited, "--cluster", "1x4")
    assert document["notes"] == ["waits of 2 of 3 jobs are recorded: the row 'recorded' has the waits of these alone"]
    assert document["recorded_waits"]["jobs"] == 2
    assert document["recorded_waits"]["values"]["waiting_mean"] == 45.0
    notes = json_of(*waited, "--cluster", "1x2", "--limit", "2")["notes"]
    assert "up to 4 GPUs were in use at once when this was recorded; the cluster has 2" in notes
    assert not any("are recorded" in note for note in notes)
