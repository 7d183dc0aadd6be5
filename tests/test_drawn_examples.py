"""The examples that Hypothesis draws in a test are the same whether it runs alone or after others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRAW = """
import conftest
from hypothesis import given, settings, strategies as st

@settings(max_examples=100)
@given(st.integers() | st.floats(allow_nan=False) | st.text() | st.binary())
def draw(value):
    print(ascii(value))

draw()
"""


def draw(folder: Path, imports: str = "") -> list[str]:
    """Return the examples of a test in a new process, which imports modules from the folder before."""
    setup = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(folder)!r}]\n{imports}\n"
    (folder / "draw.py").write_text(setup + DRAW)  # a file: Hypothesis derives the seed of a test from its source
    done = subprocess.run(
        [sys.executable, "draw.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.splitlines()


def test_drawn_examples_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    numbers = [10**9 + 7 * number for number in range(200)]
    (tmp_path / "constants.py").write_text(f"VALUES = {[*numbers, *map(str, numbers), *map(float, numbers)]}\n")
    alone = draw(tmp_path)
    assert len(alone) >= 100
    assert draw(tmp_path, "import constants") == alone
