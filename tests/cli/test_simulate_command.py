"""`refold simulate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]


TINY = ("--cluster", "2x4", "--gpus-per-instance", "4")


def test_measures_are_printed_for_all_jobs_per_tenant_and_per_size(jobs: Path, stdout_of: TextOf) -> None:
    printed = stdout_of("simulate", str(jobs), *TINY)
    assert printed.startswith("fifo on jobs: 6 jobs on 2 nodes with 8 GPUs\n")
    for words in ("finished", "makespan", "Times", "p99", "Tenants", "Sizes", "5–8 GPUs"):
        assert words in printed


def test_json_contains_the_policy_and_its_settings(jobs: Path, json_of: JsonOf) -> None:
    document = json_of("simulate", str(jobs), *TINY, "--policy", "las", "--placement", "fgd", "--seed", "3")
    assert document["policy"] == "las"
    assert document["settings"] == {"placement": "fgd", "seed": 3}
    assert document["measures"]["outcomes"]["finished"] == 6
    assert (document["journal"], document["report"]) == (None, None)


def test_waits_within_quotas_are_listed_with_their_cause(tmp_path: Path, stdout_of: TextOf, json_of: JsonOf) -> None:
    jobs, cluster, out = tmp_path / "jobs.csv", tmp_path / "cluster.yaml", tmp_path / "out"
    rows = ["job_id,submit_s,num_gpu,duration_s,group,extra", "a,0,4,100,x,class=best-effort", "b,10,2,50,x,"]
    jobs.write_text("\n".join([*rows, ""]))
    node = "{name: n0, gpus: 4, gpu_type: A100, cpus: 8, memory_gib: 64}"
    cluster.write_text(f"name: one\ntenants: [{{name: x, quota_gpus: 4}}]\nnodes: [{node}]\n")
    cause = "needs 2 GPUs; on n0: 4 held without a guarantee"
    words = ("simulate", str(jobs), "--cluster", str(cluster))
    assert json_of(*words, "--out", str(out))["guarantees"]["waits"] == [
        {"job": "b", "since": 10.0, "until": 100.0, "cause": cause}
    ]
    assert "1 of 1 guarantees violated" in stdout_of(*words)
    printed = stdout_of("report", str(out / "journal.jsonl"), "-o", str(tmp_path / "report"))
    assert "Waits within quota" in printed
    assert cause in " ".join(printed.split())
    assert json_of(*words, "--policy", "refold")["guarantees"]["waits"] == []


def test_out_contains_the_journal_and_the_report(jobs: Path, tmp_path: Path, stdout_of: TextOf) -> None:
    out = tmp_path / "deep" / "out"
    printed = stdout_of("simulate", str(jobs), *TINY, "--out", str(out))
    assert f"journal: {out / 'journal.jsonl'}" in printed
    assert f"report: {out / 'report.html'}" in printed
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert "identical" in stdout_of("replay", str(out / "journal.jsonl"))


def test_the_journal_can_be_written_to_another_file(
    jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    path = tmp_path / "j.jsonl.gz"
    assert json_of("simulate", str(jobs), *TINY, "--journal", str(path))["journal"] == str(path)
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert "identical" in stdout_of("replay", str(path))


def test_overheads_and_settings_are_simulated(jobs: Path, json_of: JsonOf) -> None:
    without = json_of("simulate", str(jobs), *TINY)["measures"]
    with_overhead = json_of("simulate", str(jobs), *TINY, "--start-cost", "1m", "--stop-cost", "10s")["measures"]
    assert without["overhead_gpu_hours"] == 0
    assert with_overhead["overhead_gpu_hours"] == pytest.approx(17 / 60)  # 17 GPUs, a minute each
    las = ("--policy", "las", "--set", "threshold_gpu_seconds=20", "--stop-cost", "0", "--restart-cost", "0")
    assert json_of("simulate", str(jobs), *TINY, *las)["measures"]["preemptions"] == 0
    assert json_of("simulate", str(jobs), *TINY, *las, "--preemption", "always")["measures"]["preemptions"] > 0


def test_faults_depend_on_their_random_seed(jobs: Path, json_of: JsonOf) -> None:
    def failures(seed: str) -> tuple[int, float]:
        options = ("--faults", "5m", "--repair", "1m", "--fault-seed", seed, "--checkpoint-every", "10s")
        measures = json_of("simulate", str(jobs), *TINY, *options)["measures"]
        assert measures["outcomes"]["finished"] == 6
        return measures["failures"], measures["makespan"]

    assert failures("1") == failures("1")
    assert failures("1") != failures("2")
    assert failures("1")[0] > 0


def test_limit_uses_the_first_jobs(json_of: JsonOf) -> None:
    assert json_of("simulate", "demo", "--limit", "20")["measures"]["jobs"] == 20


def test_jobs_without_a_duration_are_rejected_or_skipped(tmp_path: Path, json_of: JsonOf, error_of: TextOf) -> None:
    path = tmp_path / "some.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,1,1,\n")
    text = error_of("simulate", str(path), "--cluster", "1x1")
    assert "1 of 2 jobs" in text
    assert "the first is 'b'" in text
    assert "--skip-bad" in text
    document = json_of("simulate", str(path), "--cluster", "1x1", "--skip-bad")
    assert document["measures"]["jobs"] == 1
    assert document["notes"][-1] == "skipped 1 job without a duration"


def test_jobs_too_large_for_the_cluster_are_counted(jobs: Path, stdout_of: TextOf) -> None:
    assert "infeasible" in stdout_of("simulate", str(jobs), "--cluster", "1x4", "--gpus-per-instance", "4")


def test_a_policy_that_breaks_a_rule_is_named_without_a_traceback(jobs: Path, tmp_path: Path, error_of: TextOf) -> None:
    greedy = tmp_path / "greedy.py"
    greedy.write_text(
        "from refold.model import Allocation, Decision, Share, Start\n"
        "class Greedy:\n"
        "    name = 'greedy'\n"
        "    def decide(self, view):\n"
        "        everything = Allocation((Share(0, (0, 1, 2, 3)),))\n"
        "        return Decision(starts=tuple(Start(job, everything) for job in view.waiting))\n"
    )
    text = error_of("simulate", str(jobs), *TINY, "--policy", str(greedy))
    assert "greedy" in text
    assert "rule:" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing.csv", "--cluster", "2x4"], "nothing.csv: no such file"),
        (["nothing.csv"], "nothing.csv: no such file"),
        ([""], "no such file"),
        (["JOBS"], "no cluster given for"),
        (["."], ".: is a folder, expected a trace file"),
        (["JOBS", "--cluster", "nowhere.yaml"], "nowhere.yaml"),
        (["JOBS", "--cluster", "2x4", "--policy", "fiffo"], "did you mean 'fifo'?"),
        (["JOBS", "--cluster", "2x4", "--policy", "nothing.py"], "nothing.py: no such file"),
        (["JOBS", "--cluster", "2x4", "--placement", "bestfit"], "did you mean 'best-fit'?"),
        (["JOBS", "--cluster", "2x4", "--set", "sead=1"], "did you mean 'seed'?"),
        (["JOBS", "--cluster", "2x4", "--set", "seed"], "expected KEY=VALUE"),
        (["JOBS", "--cluster", "2x4", "--format", "helioss"], "did you mean 'helios'?"),
        (["JOBS", "--cluster", "2x4", "--start-cost", "soon"], "--start-cost: 'soon' is not a duration"),
        (["JOBS", "--cluster", "2x4", "--live-cost", "soon"], "--live-cost: 'soon' is not a duration"),
        (["JOBS", "--cluster", "2x4", "--checkpoint-every", "0"], "seconds > 0"),
        (["JOBS", "--cluster", "2x4", "--repair", "1h"], "--repair needs --faults"),
        (["JOBS", "--cluster", "2x4", "--checkpoint-every", "1h"], "--checkpoint-every needs --faults"),
        (["JOBS", "--cluster", "2x4", "--fault-seed", "1"], "--fault-seed needs --faults"),
        (
            ["JOBS", "--cluster", "2x4", "--placement", "fgd", "--set", "placement=tetris"],
            "placement is already set to fgd",
        ),
        (["JOBS", "--cluster", "2x4", "--policy", "las/fgd", "--placement", "tetris"], "both select a placement"),
        (["JOBS", "--cluster", "2x4", "--limt", "3"], "--limit, --mtbf); see refold simulate --help"),
        (["JOBS", "--cluster", "2x4", "--limit", "none"], "'--limit'"),
        (["JOBS", "--cluster", "2x4", "--faults", "0"], "seconds > 0"),
        (["JOBS", "--cluster", "2x4", "--faults", "1ms", "--repair", "0.1ms"], "expected at most 1,000,000"),
        (["JOBS", "--cluster", "2x4", "--out", "/dev/null/x"], "cannot create the folder"),
        (["JOBS", "--cluster", "2x4", "--journal", "/dev/null/x"], "/dev/null/x: cannot be written"),
    ],
)
def test_bad_input_gives_a_one_line_error(jobs: Path, words: list[str], text: str, error_of: TextOf) -> None:
    assert text in error_of("simulate", *(str(jobs) if word == "JOBS" else word for word in words))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("threshold_gpu_seconds=abc", "las: threshold_gpu_seconds is 'abc', expected a number"),
        ("threshold_gpu_seconds=NaN", "las: threshold_gpu_seconds is nan, expected a number"),
        ("threshold_gpu_seconds=true", "las: threshold_gpu_seconds is True, expected a number"),
        ("seed=1.5", "las: seed is 1.5, expected a whole number"),
        ("placement=7", "las: placement is 7, expected a name"),
    ],
)
def test_a_setting_of_the_wrong_type_is_rejected(jobs: Path, setting: str, text: str, error_of: TextOf) -> None:
    assert text in error_of("simulate", str(jobs), *TINY, "--policy", "las", "--set", setting)


def test_settings_in_seconds_accept_durations(jobs: Path, json_of: JsonOf) -> None:
    document = json_of("simulate", str(jobs), *TINY, "--policy", "las", "--set", "threshold_gpu_seconds=1h30m")
    assert document["settings"] == {"threshold_gpu_seconds": 5400}


def test_a_policy_can_be_given_with_its_placement(jobs: Path, json_of: JsonOf) -> None:
    document = json_of("simulate", str(jobs), *TINY, "--policy", "las/fgd")
    assert (document["policy"], document["settings"]) == ("las", {"placement": "fgd"})


def test_only_faults_that_occurred_are_counted(jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf) -> None:
    faults = ("--faults", "5m", "--repair", "1m", "--fault-seed", "1")
    journal = tmp_path / "out" / "journal.jsonl"
    count = json_of("simulate", str(jobs), *TINY, *faults, "--out", str(tmp_path / "out"))["node_faults"]
    assert count == journal.read_text().count('"NodeLost"') > 0
    assert f"{count} node fault" in (tmp_path / "out" / "report.html").read_text()
    assert ["node", "faults", str(count)] in [
        line.split() for line in stdout_of("simulate", str(jobs), *TINY, *faults).splitlines()
    ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("pass", "error: policy own returned None, expected a Decision\n"),
        ("return []", "error: policy own returned a list, expected a Decision\n"),
    ],
)
def test_a_policy_that_returns_no_decision_is_an_error(
    jobs: Path, tmp_path: Path, body: str, text: str, error_of: TextOf
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"class Own:\n    name = 'own'\n    def decide(self, view):\n        {body}\n")
    assert error_of("simulate", str(jobs), *TINY, "--policy", str(own)) == text


def test_a_policy_that_exits_is_an_error(jobs: Path, tmp_path: Path, stderr_of: TextOf, error_of: TextOf) -> None:
    own = tmp_path / "own.py"
    own.write_text("import sys\nclass Own:\n    name = 'own'\n    def decide(self, view):\n        sys.exit(0)\n")
    assert stderr_of("simulate", str(jobs), *TINY, "--policy", str(own)).endswith(
        "error: policy own failed: SystemExit: 0\n"
    )
    own.write_text("import sys\nsys.exit(0)\n")
    assert "own.py: cannot be loaded: SystemExit" in error_of("simulate", str(jobs), *TINY, "--policy", str(own))


def test_control_characters_of_a_trace_are_not_printed(tmp_path: Path, stdout_of: TextOf) -> None:
    path = tmp_path / "evil.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s,group\na,0,1,10,\x1b]0;owned\x07\x9b31m\n")
    for words in (("simulate", str(path), "--cluster", "1x1"), ("simulate", str(path), "--cluster", "1x1", "--json")):
        assert not {"\x1b", "\x07", "\x9b"} & set(stdout_of(*words))


@pytest.mark.parametrize("garbage", [b"", b"\n", b"\x00\xff\xfe" * 50, b"{}", b"job_id,submit_s,num_gpu\n"])
def test_garbage_gives_a_one_line_error(tmp_path: Path, garbage: bytes, error_of: TextOf) -> None:
    path = tmp_path / "garbage.csv"
    path.write_bytes(garbage)
    assert "garbage" in error_of("simulate", str(path), "--cluster", "2x4")
    assert "garbage" in error_of("simulate", "demo", "--cluster", str(path))


def test_options_of_the_wrong_type_are_usage_errors(invoke: Invoke) -> None:
    result = invoke("simulate", "demo", "--limit", "none")
    assert result.exit_code == 2
    assert "--limit" in result.output
