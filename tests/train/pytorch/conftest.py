"""Tests of training jobs that need PyTorch; without it they are not collected, and a line says so."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from engine_tests import NO_TORCH
from torch_ranks import run_in_child

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


def pytest_report_header() -> str:
    """Tell that these tests are left out."""
    return f"tests/train/pytorch is left out: {NO_TORCH}" if collect_ignore_glob else ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of this folder their marker."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("torch")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests with the marker `in_child` in a forked process.

    A backward pass on a device starts threads of PyTorch, after which no process that is forked can train: tests that
    fork their ranks would fail if they ran later in the same process.
    """
    if pyfuncitem.get_closest_marker("in_child") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_in_child(lambda: pyfuncitem.obj(**arguments))
    return True
