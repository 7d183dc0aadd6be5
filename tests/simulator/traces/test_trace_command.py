"""The `refold trace` commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold import __version__
from refold.cli import app as command_line, lazy_group
from refold.cli.views.output import draw_bar, progress
from refold.simulator.traces.formats import read_trace

FIXTURES = Path(__file__).parent / "fixtures"


def run(*words: str) -> str:
    """Run a command that must succeed and return its standard output."""
    result = CliRunner().invoke(lazy_group.app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_prints_a_summary() -> None:
    shown = run("trace", "show", "demo")
    for words in ("1,500", "Sizes", "fraction", "█", "between arrivals", "vision"):
        assert words in shown


def test_show_counts_skipped_rows() -> None:
    shown = run("trace", "show", str(FIXTURES / "common_bad.csv"), "--skip-bad")
    assert "skipped rows" in shown
    assert "… and 3 more" in shown


def test_show_prints_json() -> None:
    shown = json.loads(run("trace", "show", "demo", "--json"))
    assert (shown["name"], shown["jobs"]) == ("demo", 1500)
    assert sum(size["jobs"] for size in shown["sizes"]) == 1500


def test_convert_writes_the_common_format(tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    assert "wrote 5 jobs" in run("trace", "convert", str(FIXTURES / "rubick.csv"), str(out), "--format", "rubick")
    assert read_trace(out).jobs == read_trace(FIXTURES / "rubick.csv").jobs


def test_generate_is_repeatable(tmp_path: Path) -> None:
    options = ("--jobs", "50", "--seed", "3", "--like", "demo", "--cluster", "4x8", "--load", "0.8", "--json")
    results = [json.loads(run("trace", "generate", str(tmp_path / name), *options)) for name in ("a.csv", "b.csv")]
    assert [one["jobs"] for one in results] == [50, 50]
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_generated_jobs_request_the_types_of_the_cluster_at_the_specified_load(tmp_path: Path) -> None:
    out = tmp_path / "made.csv"
    options = ("--jobs", "200", "--like", "demo", "--cluster", "4x8:a100-80gb", "--load", "0.7")
    result = json.loads(run("trace", "generate", str(out), *options, "--json"))
    made = read_trace(out)
    assert {job.demand.gpu_types for job in made.jobs} == {(), ("a100-80gb",)}
    assert made.gpu_seconds / (made.span * 32) == pytest.approx(0.7, rel=0.01)
    assert not any("the cluster has" in note for note in result["notes"])


def test_a_single_job_is_singular_and_has_no_offered_load(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("job_id,submit_s,num_gpu,duration_s\na,5,1,10\n")
    assert "wrote 1 job to" in run("trace", "convert", str(tmp_path / "one.csv"), str(tmp_path / "out.csv"))
    shown = run("trace", "show", str(tmp_path / "one.csv"))
    offered = next(line for line in shown.splitlines() if "offered load" in line)
    assert offered.endswith("–")
    assert json.loads(run("trace", "show", str(tmp_path / "one.csv"), "--json"))["offered_gpus"] is None


def test_formats_and_version_are_printed() -> None:
    assert "sacct" in run("trace", "formats")
    assert run("--version").startswith(f"refold {__version__}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace", "show", "nothing.csv"], "error: nothing.csv: no such file"),
        (["trace", "generate", "x.csv", "--load", "2"], "error: --load needs --cluster"),
        (["trace", "show", "demo", "--format", "rubik"], "did you mean 'rubick'"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["refold", *words])
    with pytest.raises(SystemExit) as exited:
        command_line.main()
    output = capsys.readouterr()
    assert (exited.value.code, output.out) == (2, "")
    assert message in output.err
    assert output.err.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    heavy = ["numpy", "msgspec", "rich.progress", "yaml", "refold.model"]
    code = f"import sys, refold.cli.app; print([name for name in {heavy} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


def test_progress_prints_nothing_without_a_terminal_and_bars_are_clipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert [draw_bar(share, 2) for share in (0.0, 0.25, 0.5, 1.0, 7.0)] == ["", "▌", "█", "██", "██"]
    with progress("working", 2) as advance:
        advance()
        advance(1.0)
    assert capsys.readouterr() == ("", "")
