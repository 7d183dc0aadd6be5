"""The cache of compiled kernels."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from refold.jit import kernel_folder; print(kernel_folder())"
COMPILE = """
from refold.jit import compiled

@compiled
def double(x: int) -> int:
    return 2 * x

print(double(21), sum(double.stats.cache_hits.values()))
"""
CACHED_ONLY = """
from refold.jit import KernelNotCached, cached_kernels_only, compiled

@compiled
def double(x: int) -> int:
    return 2 * x

try:
    with cached_kernels_only():
        first = double(21)
except KernelNotCached:
    first = "not cached"
print(f"{first}, then {double(21)}")
"""


def run(program: str | Path, **variables: str) -> str:
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "REFOLD_CACHE_DIR"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert Path(run(PROGRAM, REFOLD_CACHE_DIR=str(tmp_path / "named"))).parent == tmp_path / "named"
    assert Path(run(PROGRAM, XDG_CACHE_HOME=str(tmp_path / "xdg"))).parent == tmp_path / "xdg" / "refold"
    assert Path(run(PROGRAM, XDG_CACHE_HOME="", HOME=str(tmp_path))).parent == tmp_path / ".cache" / "refold"


def run_without_cache(tmp_path: Path, **variables: str) -> Path:
    """Return the kernel folder of a user whose cache folder cannot be written."""
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    return Path(run(PROGRAM, REFOLD_CACHE_DIR=str(not_a_folder), TMPDIR=str(tmp_path), **variables))


def test_without_a_writable_folder_the_cache_is_temporary_private_and_used_again(tmp_path: Path) -> None:
    folder = run_without_cache(tmp_path)
    assert folder.parent == tmp_path / f"refold-{os.getuid()}"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert run_without_cache(tmp_path) == folder


def test_without_a_home_folder_the_cache_is_temporary(tmp_path: Path) -> None:
    no_home = "import pwd, os; os.environ.pop('HOME'); pwd.getpwuid = lambda uid: {}[uid]; "
    folder = run(no_home + PROGRAM, XDG_CACHE_HOME="", TMPDIR=str(tmp_path))
    assert Path(folder).parent == tmp_path / f"refold-{os.getuid()}"


@pytest.mark.parametrize("prepare", ["writable by others", "a symbolic link", "of another user"])
def test_a_temporary_folder_that_others_control_is_not_used(tmp_path: Path, prepare: str) -> None:
    planted = tmp_path / f"refold-{os.getuid()}"
    if prepare == "a symbolic link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        planted.symlink_to(elsewhere)
    else:
        planted.mkdir(mode=0o700)
    if prepare == "writable by others":
        planted.chmod(0o777)
    if prepare == "of another user":
        if os.getuid() != 0:
            pytest.skip("only root can create a folder of another user")
        os.chown(planted, 65534, 65534)
    folder = run_without_cache(tmp_path)
    assert folder.parent.parent == tmp_path
    assert folder.parent.resolve() not in (planted, tmp_path / "elsewhere")
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_if_only_cached_kernels_are_allowed_none_is_compiled(tmp_path: Path) -> None:
    program = tmp_path / "kernels.py"
    program.write_text(CACHED_ONLY)
    cache = str(tmp_path / "cache")
    assert run(program, REFOLD_CACHE_DIR=cache) == "not cached, then 42"
    assert run(program, REFOLD_CACHE_DIR=cache) == "42, then 42"


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
