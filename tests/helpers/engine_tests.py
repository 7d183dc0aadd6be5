"""Markers of tests that need an engine: `make test` deselects these, and the suite of the engine selects them.

Without a selection (`pytest tests/engines/local`) such a test is skipped, with a reason, if its engine is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

NO_TORCH = "PyTorch is not installed: run `make test-train`, or pip install '.[train]'"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason=NO_TORCH)


def mark_users(items: Iterable[pytest.Item], folder: Path, fixtures: Iterable[str], marker: str) -> None:
    """Give the tests in a folder that use one of these fixtures the marker of their engine."""
    wanted = set(fixtures)
    for item in items:
        if not wanted.isdisjoint(getattr(item, "fixturenames", ())) and item.path.is_relative_to(folder):
            item.add_marker(marker)
