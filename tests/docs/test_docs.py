"""Run every example in the documentation: shell commands on small inputs, Python code as it is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.lazy_group import app

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/cli.md",
    "docs/plan.md",
    "docs/launch.md",
    "docs/train.md",
    "docs/curve.md",
    "docs/policies.md",
    "docs/journal.md",
    "docs/results/demo.md",
    "docs/results/index.md",
    "docs/jobs.md",
    "docs/config.md",
    "docs/api.md",
    "docs/serve.md",
    "docs/kubernetes.md",
    "docs/install.md",
    "docs/traces.md",
    "docs/placement.md",
    "docs/predict.md",
    "docs/queue.md",
    "docs/watch.md",
    "docs/power.md",
    "docs/policies/backfill.md",
    "docs/policies/defragment.md",
    "docs/policies/refold.md",
    "docs/policies/refold_example.md",
    "docs/policies/rubick.md",
    "docs/policies/optimus.md",
    "docs/policies/tiresias.md",
    "docs/tutorials/plan_70b.md",
    "docs/tutorials/slurm_history.md",
]
"""Pages whose shell examples are run."""

NOT_RUN = "<!-- not run:"
"""Start of a comment before a code block that cannot be run; the rest of the comment says why."""

REFRESH = "REFOLD_REFRESH_DOCS"
"""Environment variable: if set, outputs and images in the documentation are updated instead of compared."""

OUTDATED = f"run {REFRESH}=1 pytest tests/docs to update it"

FEW_JOBS = 100
"""Jobs of the demo workload in examples whose output the page does not show."""

JOBS = "job_id,submit_s,num_gpu,duration_s,group\na,0,8,100,x\nb,1,4,50,y\nc,2,1,10,x\nd,3,16,30,y\n"
MODEL = "{layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128, batch: 8}\n"
CLUSTER = "nodes:\n  - {name: n, count: 2, gpus: 8, gpu_type: A100}\n"
COMMANDS = "- {name: a, run: 'true'}\n- {name: b, run: 'true', gpus: 2}\n"


def code_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language, except those marked as not run."""
    text = read_page(page)
    found = re.findall(rf"((?:{re.escape(NOT_RUN)}[^\n]*\n)?)^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for mark, block_language, block in found if block_language == language and not mark]


def read_page(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder of a reader: with the examples, and small files of their own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "policies" / "widest_first.py", tmp_path / "mine.py")
    (tmp_path / "history.txt").write_text(code_blocks("docs/tutorials/slurm_history.md", "text")[0])
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "my-model.yaml").write_text(MODEL)
    (tmp_path / "jobs.yaml").write_text(COMMANDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_few_jobs(line: str) -> str:
    """Return a shell line; where it would simulate the whole demo workload, with the first jobs alone."""
    whole = re.match(r"refold (simulate|compare)( demo)?( -(?!-limit)| *#| *$)", line) and "--limit" not in line
    return f"{line.partition(' #')[0]} --limit {FEW_JOBS}" if whole and "--from" not in line else line


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a shell line, which is a `refold` or `export` command, and return its output."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        monkeypatch.setenv(name, value)
        return ""
    assert words[0] == "refold", f"{line!r} cannot be run; mark its block with '{NOT_RUN} reason -->'"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, (line, result.output, result.exception)
    return result.stdout


@pytest.mark.parametrize("page", PAGES)
def test_shell_examples_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_POLICIES", raising=False)
    lines = [line for text in code_blocks(page, "sh") for line in text.splitlines()]
    with_output = re.findall(r"<!-- output of: (.*?) -->", read_page(page))  # these run in the next test
    printed = "".join(
        run_line(on_few_jobs(line), monkeypatch) for line in lines if line.partition(" #")[0].strip() not in with_output
    )
    if page == "docs/journal.md":
        assert "identical" in printed
        assert "srtf (simulated)" in printed
    if page == "docs/policies.md":
        assert "examples/policies/widest_first.py" in printed


SHOWING_OUTPUT = ["docs/plan.md", "docs/curve.md", "docs/policies/refold_example.md"]
SIMULATING = ["docs/policies/backfill.md", "docs/results/demo.md"]
"""Pages with outputs of whole simulations, whose decisions the golden runs check."""


@pytest.mark.parametrize(
    "page",
    [
        "docs/plan.md",
        "docs/curve.md",
        "docs/policies/refold_example.md",
        *(pytest.param(page, marks=pytest.mark.long) for page in SIMULATING),
    ],
)
def test_outputs_on_a_page_are_current(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    def rerun(shown: re.Match[str]) -> str:
        *before, last = shown[1].split(" && ")
        for line in before:
            run_line(line, monkeypatch)
        printed = "\n".join(line.rstrip() for line in run_line(last, monkeypatch).rstrip().splitlines())
        return f"<!-- output of: {shown[1]} -->\n```text\n{printed}\n```"

    compare_or_refresh(page, r"<!-- output of: (.*?) -->\n```text\n.*?```", rerun)


def compare_or_refresh(page: str, pattern: str, current: Callable[[re.Match[str]], str]) -> None:
    """Check that every match of the pattern on a page is the current text; or update the page."""
    path = ROOT / page
    shown = read_page(page)
    expected, matches = re.subn(pattern, current, shown, flags=re.DOTALL)
    assert matches, f"{page} shows no output"
    if REFRESH in os.environ:
        path.write_text(expected, encoding="utf-8")
    else:
        assert shown == expected, f"{page} shows outdated output: {OUTDATED}"


def test_the_demo_figures_in_the_readme_are_those_of_the_demo_page() -> None:
    (table,) = re.findall(r"-->\n```text\ndemo: .*?\n(policy .*?)\n\n", read_page("docs/results/demo.md"), re.DOTALL)
    header, *lines = [re.split(r"  +", line.replace(" *", "")) for line in table.splitlines() if "  " in line]
    shown = {cells[0].removesuffix(" †"): dict(zip(header, cells, strict=True)) for cells in lines}
    rows = re.findall(r"^\| \W*([a-z-]+)\W* \|.*\| ([^|]+) \| ([^|]+) \|$", read_page("README.md"), re.MULTILINE)
    figures = {policy: (mean.strip("* "), p99.strip("* ")) for policy, mean, p99 in rows if "h" in mean}
    assert "refold" in figures and "srtf" in figures
    assert figures == {
        policy: (shown[policy]["mean completion"], shown[policy]["p99 completion"]) for policy in figures
    }


def test_the_figures_in_the_readme_are_those_of_table_4() -> None:
    section = read_page("docs/results/table4.md").partition("\n### random-plan")[2].partition("\n### ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    recorded = {policy: (mean, p99, makespan) for policy, mean, _, p99, makespan, *_ in cells[1:-1]}
    sentence = " ".join(read_page("README.md").split())
    shown = re.search(r"its mean is ([\d.]+) h, Rubick's ([\d.]+) h and that of `las` ([\d.]+) h", sentence)
    assert shown is not None
    means = [float(recorded[policy][0]) for policy in ("refold", "rubick", "las")]
    assert [float(value) for value in shown.groups()] == pytest.approx(means, rel=0.03)


def test_the_readme_is_a_front_page() -> None:
    lines = read_page("README.md").splitlines()
    assert len(lines) <= 110
    assert any(line.startswith("![") for line in lines[:10])  # the picture comes first


def test_the_cluster_in_power_md_is_the_example() -> None:
    example = (ROOT / "examples" / "racks.yaml").read_text(encoding="utf-8")
    assert code_blocks("docs/power.md", "yaml") == [example]


def test_the_racks_table_in_power_md_is_current(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, simulate, _ = code_blocks("docs/power.md", "sh")[0].splitlines()
    run_line(generate, monkeypatch)
    table = run_line(simulate, monkeypatch).partition("\nRacks\n")[2].partition("\n\n")[0]
    printed = "\n".join(line.rstrip() for line in table.splitlines())
    compare_or_refresh(
        "docs/power.md",
        r"(beside its other measures:\n\n```text\n).*?```",
        lambda shown: f"{shown[1]}{printed}\n```",
    )


def test_the_image_in_curve_md_is_current(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = code_blocks("docs/curve.md", "sh")[0].strip()
    run_line(command, monkeypatch)
    drawn, shown = folder / "curve.svg", ROOT / "docs" / "images" / "curve.svg"
    if REFRESH in os.environ:
        shutil.copy(drawn, shown)
    assert drawn.read_text() == shown.read_text(), f"{shown.name} is outdated: {OUTDATED}"


def test_the_worked_example_is_that_of_the_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = (ROOT / "examples" / "five_jobs.csv").read_text(encoding="utf-8")
    assert code_blocks("docs/policies/refold_example.md", "csv") == [example]
    options = "--cluster 1x8:A100-80GB --policy refold --journal five.jsonl"
    run_line(f"refold simulate examples/five_jobs.csv {options}", monkeypatch)
    shown = ROOT / "docs" / "images" / "refold_example.svg"
    command = [sys.executable, str(ROOT / "tools" / "journal_picture.py"), "five.jsonl", "drawn.svg"]
    subprocess.run(command, check=True, timeout=60)
    if REFRESH in os.environ:
        shutil.copy("drawn.svg", shown)
    assert Path("drawn.svg").read_text() == shown.read_text(), f"{shown.name} is outdated: {OUTDATED}"


def test_the_picture_of_a_cluster_with_levels_is_up_to_date(folder: Path) -> None:
    shown = ROOT / "docs" / "images" / "topology.svg"
    command = [sys.executable, str(ROOT / "tools" / "topology_picture.py"), "drawn.svg"]
    subprocess.run(command, check=True, timeout=60)
    if REFRESH in os.environ:
        shutil.copy("drawn.svg", shown)
    assert Path("drawn.svg").read_text() == shown.read_text(), f"{shown.name} is outdated: {OUTDATED}"


@pytest.mark.parametrize(
    "page", ["docs/journal.md", "docs/jobs.md", "docs/predict.md", "docs/python.md", "docs/traces.md", "README.md"]
)
def test_python_examples_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/journal.md":
        run_line("refold simulate demo --limit 100 --policy las --journal las.jsonl", monkeypatch)
    for text in code_blocks(page, "python"):
        exec(compile(text, page, "exec"), {})


def test_the_output_in_python_md_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    def rerun(shown: re.Match[str]) -> str:
        capsys.readouterr()
        exec(compile(shown[1], "docs/python.md", "exec"), {})
        return f"```python\n{shown[1]}```\n\n```text\n{capsys.readouterr().out}```"

    compare_or_refresh("docs/python.md", r"```python\n((?:(?!```).)*?)```\n\n```text\n.*?```", rerun)


def test_the_policy_in_policies_md_is_the_example() -> None:
    example = (ROOT / "examples" / "policies" / "widest_first.py").read_text(encoding="utf-8")
    assert example.endswith(code_blocks("docs/policies.md", "python")[0])


@pytest.mark.parametrize("number", [0, 2], ids=["complete", "short"])
def test_the_policies_in_policies_md_pass_the_contract_suite(tmp_path: Path, number: int) -> None:
    python = code_blocks("docs/policies.md", "python")
    (tmp_path / "widest_first.py").write_text(python[number])
    (tmp_path / "test_widest_first.py").write_text(python[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


def test_links_between_pages_resolve() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "benchmarks", "examples") for page in (ROOT / folder).rglob("*.md")),
    ]
    for page in sorted(pages):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
