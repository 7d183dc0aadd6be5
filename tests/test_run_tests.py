"""`tools/run_tests.py`: what runs again, and what is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copy

TOOL = Path(__file__).parents[1] / "tools" / "run_tests.py"

FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Others take a second to import, in each of these processes."""

TESTS = """
import pathlib
import pytest

def test_good():
    pass

def test_late():
    mark = pathlib.Path("ran")
    ran = mark.exists()
    mark.touch()
    assert ran

@pytest.mark.parametrize("number", range(COUNT))
def test_broken(number):
    raise AssertionError
"""


ONLY_BY_MARKER = """
def pytest_collection_modifyitems(config, items):
    if not config.option.markexpr:
        items.clear()
"""


def run(folder: Path, broken: int, *options: str) -> tuple[int, str]:
    """Run the tool in a project of its own, with one test that fails at first and `broken` that always fail."""
    (folder / "tools").mkdir()
    copy(TOOL, folder / "tools")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_all.py").write_text(TESTS.replace("COUNT", str(broken)))
    command = [sys.executable, "tools/run_tests.py", "-q", *options]
    environment = {**os.environ, **FEW_PLUGINS}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_test_that_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, broken=0)
    assert status == 0
    assert output.endswith("failed at first and passed alone, to be mended:\n  test_all.py::test_late\n")


def test_a_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    status, output = run(tmp_path, broken=1)
    assert status == 1
    assert "1 failed, 1 passed" in output


def test_what_runs_again_is_selected_by_the_same_markers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(ONLY_BY_MARKER)
    status, output = run(tmp_path, 0, "-m", "not absent")
    assert status == 0
    assert output.endswith("  test_all.py::test_late\n")


def test_nothing_runs_again_where_many_tests_fail(tmp_path: Path) -> None:
    status, output = run(tmp_path, broken=5)
    assert status == 1
    assert "once more" not in output
