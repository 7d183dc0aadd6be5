"""The cache of compiled kernels."""

import os
import stat
import subprocess
import sys
from pathlib import Path

PROGRAM = "from refold.jit import kernel_folder; print(kernel_folder())"
COMPILE = """
from refold.jit import compiled

@compiled
def double(x: int) -> int:
    return 2 * x

print(double(21), sum(double.stats.cache_hits.values()))
"""


def run(program: str | Path, **variables: str) -> str:
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "REFOLD_CACHE_DIR"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert Path(run(PROGRAM, REFOLD_CACHE_DIR=str(tmp_path / "named"))).parent == tmp_path / "named"
    assert Path(run(PROGRAM, XDG_CACHE_HOME=str(tmp_path / "xdg"))).parent == tmp_path / "xdg" / "refold"
    assert Path(run(PROGRAM, XDG_CACHE_HOME="", HOME=str(tmp_path))).parent == tmp_path / ".cache" / "refold"


def test_without_a_writable_folder_the_cache_is_temporary_and_private(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    folder = Path(run(PROGRAM, REFOLD_CACHE_DIR=str(not_a_folder), TMPDIR=str(temporary)))
    assert folder.parent == temporary
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_temporary_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    first = Path(run(PROGRAM, REFOLD_CACHE_DIR=str(not_a_folder), TMPDIR=str(tmp_path)))
    first.chmod(0o777)
    second = Path(run(PROGRAM, REFOLD_CACHE_DIR=str(not_a_folder), TMPDIR=str(tmp_path)))
    assert second != first
    assert stat.S_IMODE(second.stat().st_mode) == 0o700


def test_kernels_are_found_again_from_another_checkout_and_not_when_their_source_changed(tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "kernels.py", tmp_path / "there" / "kernels.py"
    for path in (here, there):
        path.parent.mkdir()
        path.write_text(COMPILE)
    cache = str(tmp_path / "cache")
    assert run(here, REFOLD_CACHE_DIR=cache) == "42 0"
    assert run(there, REFOLD_CACHE_DIR=cache) == "42 1"
    there.write_text(COMPILE.replace("2 * x", "3 * x"))
    assert run(there, REFOLD_CACHE_DIR=cache) == "63 0"
