"""Every example of the documentation, run: shell lines on tiny inputs, Python as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/cli.md",
    "docs/plan.md",
    "docs/curve.md",
    "docs/policies.md",
    "docs/journal.md",
    "docs/jobs.md",
    "docs/config.md",
    "docs/api.md",
    "docs/serve.md",
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
    "docs/policies/rubick.md",
    "docs/policies/optimus.md",
    "docs/policies/tiresias.md",
]
NOT_RUN = "<!-- not run:"

JOBS = "job_id,submit_s,num_gpu,duration_s,group\na,0,8,100,x\nb,1,4,50,y\nc,2,1,10,x\nd,3,16,30,y\n"
MODEL = "{layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128, batch: 8}\n"
CLUSTER = "nodes:\n  - {name: n, count: 2, gpus: 8, gpu_type: A100}\n"
COMMANDS = "- {name: a, run: 'true'}\n- {name: b, run: 'true', gpus: 2}\n"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language, but for those that are marked as not to be run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(rf"((?:{re.escape(NOT_RUN)}[^\n]*\n)?)^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for mark, of, block in found if of == language and not mark]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader might be: examples beside files of their own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "policies" / "widest_first.py", tmp_path / "mine.py")
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "my-model.yaml").write_text(MODEL)
    (tmp_path / "jobs.yaml").write_text(COMMANDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a line of shell prints. Only `refold` and `export` are known."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        monkeypatch.setenv(name, value)
        return ""
    assert words[0] == "refold", f"{line!r} cannot be run here: mark its block with '{NOT_RUN} why -->'"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, (line, result.output, result.exception)
    return result.stdout


@pytest.mark.parametrize("page", PAGES)
def test_shell_examples_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_POLICIES", raising=False)
    printed = "".join(run_line(line, monkeypatch) for text in blocks(page, "sh") for line in text.splitlines())
    if page == "docs/journal.md":
        assert "identical" in printed
        assert "srtf (simulated)" in printed
    if page == "docs/policies.md":
        assert "examples/policies/widest_first.py" in printed


def test_the_table_in_the_readme_is_what_compare_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = next(block for block in blocks("README.md", "") if block.startswith("demo:"))
    printed = run_line("refold compare --stop-cost 18s --restart-cost 1m", monkeypatch)
    new = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    path = ROOT / "README.md"
    if REFRESH in os.environ:
        path.write_text(path.read_text(encoding="utf-8").replace(shown, new), encoding="utf-8")
    else:
        assert shown == new, f"{REFRESH}=1 pytest tests/docs writes it anew"


REFRESH = "REFOLD_REFRESH_DOCS"
"""Set it, and what pages show is written anew: for when estimates have changed, and should have."""


@pytest.mark.parametrize("page", ["docs/plan.md", "docs/curve.md", "docs/policies/backfill.md"])
def test_output_on_a_page_is_what_the_command_prints(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    def now(shown: re.Match[str]) -> str:
        *before, last = shown[1].split(" && ")
        for line in before:
            run_line(line, monkeypatch)
        printed = "\n".join(line.rstrip() for line in run_line(last, monkeypatch).rstrip().splitlines())
        return f"<!-- output of: {shown[1]} -->\n```text\n{printed}\n```"

    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    new = re.sub(r"<!-- output of: (.*?) -->\n```text\n.*?```", now, text, flags=re.DOTALL)
    if REFRESH in os.environ:
        path.write_text(new, encoding="utf-8")
    else:
        assert text == new, f"{page} shows what is no longer printed: {REFRESH}=1 pytest tests/docs writes it anew"


def test_the_cluster_on_the_page_about_power_is_the_example() -> None:
    example = (ROOT / "examples" / "racks.yaml").read_text(encoding="utf-8")
    assert blocks("docs/power.md", "yaml") == [example]


def test_the_racks_on_the_page_about_power_are_what_is_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, simulate, _ = blocks("docs/power.md", "sh")[0].splitlines()
    run_line(generate, monkeypatch)
    table = run_line(simulate, monkeypatch).partition("\nRacks\n")[2].partition("\n\n")[0]
    shown = "\n".join(line.rstrip() for line in table.splitlines())
    path = ROOT / "docs" / "power.md"
    text = path.read_text(encoding="utf-8")
    new = re.sub(r"(beside its other measures:\n\n```text\n).*?```", rf"\g<1>{shown}\n```", text, flags=re.DOTALL)
    if REFRESH in os.environ:
        path.write_text(new, encoding="utf-8")
    else:
        assert text == new, f"{REFRESH}=1 pytest tests/docs writes it anew"


def test_the_picture_of_a_curve_is_what_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = blocks("docs/curve.md", "sh")[0].strip()
    run_line(command, monkeypatch)
    drawn, shown = folder / "curve.svg", ROOT / "docs" / "images" / "curve.svg"
    if REFRESH in os.environ:
        shutil.copy(drawn, shown)
    assert drawn.read_text() == shown.read_text(), f"{REFRESH}=1 pytest tests/docs draws it anew"


@pytest.mark.parametrize("page", ["docs/journal.md", "docs/traces.md", "docs/predict.md"])
def test_python_examples_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/journal.md":
        run_line("refold simulate demo --limit 100 --policy las --journal las.jsonl", monkeypatch)
    for text in blocks(page, "python"):
        exec(compile(text, page, "exec"), {})


def test_the_policy_on_the_page_is_the_example() -> None:
    example = (ROOT / "examples" / "policies" / "widest_first.py").read_text(encoding="utf-8")
    assert example.endswith(blocks("docs/policies.md", "python")[0])


@pytest.mark.parametrize("number", [0, 2], ids=["the whole one", "the quick one"])
def test_the_policies_on_the_page_keep_the_contract_as_it_says(tmp_path: Path, number: int) -> None:
    python = blocks("docs/policies.md", "python")
    (tmp_path / "widest_first.py").write_text(python[number])
    (tmp_path / "test_widest_first.py").write_text(python[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
