"""Test the kernels on the other architecture, emulated: golden runs, predictions, placement and the core on aarch64.

Debian for arm64 is unpacked below build/ and run by qemu, which needs root. The kernels are compiled here, by the C
compiler of the package `ziglang`; everything else comes as wheels. It takes half an hour, most of it once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from Cython.Build import cythonize
from install_slurm import install, missing
from setuptools import Extension

REPOSITORY = Path(__file__).parent.parent
BUILD = REPOSITORY / "build" / "aarch64"
ROOT, TREE, SITE, LINKS = BUILD / "root", BUILD / "root" / "tree", BUILD / "root" / "site", BUILD / "include"
PROGRAMS = {"qemu-aarch64-static": "qemu-user-static", "debootstrap": "debootstrap", "update-binfmts": "binfmt-support"}
SUITE, PYTHON, GLIBC = "bookworm", "3.11", "2.36"
TESTS = ("tests/policies/test_golden.py", "tests/predict", "tests/placement", "tests/core", "tests/journal")
COPIED = ("src", "tests", "examples", "pyproject.toml")
NOT_NEEDED = {"refold", "pip", "ruff", "mypy", "torch", "ray", "playwright", "ziglang"}
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64", "manylinux_2_34_aarch64", "any")


def main() -> None:
    """Prepare what is not there yet, and run the tests."""
    if os.geteuid() != 0 or os.uname().machine != "x86_64":
        raise SystemExit("emulating aarch64 needs root on an x86-64 machine; on aarch64, `make test` is the test")
    if (absent := missing(PROGRAMS)) and not install(absent):
        raise SystemExit(f"missing: {', '.join(absent)}")
    if not Path("/proc/sys/fs/binfmt_misc/register").exists():
        run("mount", "-t", "binfmt_misc", "none", "/proc/sys/fs/binfmt_misc")
    run("update-binfmts", "--enable", "qemu-aarch64")
    if not (ROOT / "usr" / "bin" / "python3").exists():
        say("unpacking Debian for arm64 …")
        packages = "python3,libpython3-dev"
        run("debootstrap", "--arch=arm64", "--variant=minbase", f"--include={packages}", SUITE, str(ROOT))
    if not SITE.exists():
        say("fetching wheels …")
        fetch_wheels()
    for name in COPIED:
        run("cp", "-a", "--no-target-directory", str(REPOSITORY / name), str(prepared(TREE / name)))
    say("compiling the kernels …")
    compile_kernels()
    environment = ("env", "-i", "PYTHONPATH=/tree/src:/site", "HOME=/tmp", "PATH=/usr/bin:/bin")
    test = f"cd /tree && exec python3 -m pytest -q -p no:cacheprovider {' '.join(TESTS)}"
    raise SystemExit(subprocess.call(["chroot", str(ROOT), *environment, "sh", "-c", test]))


def fetch_wheels() -> None:
    """Fetch the wheels of what this environment has, for the other architecture."""
    found = sorted({f"{each.name}=={each.version}" for each in distributions() if each.name not in NOT_NEEDED})
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:")
    run(*pip, *platforms, "--python-version", PYTHON, "--implementation", "cp", "--target", str(SITE), *found)


def compile_kernels() -> None:
    """Translate the kernels as `setup.py` does, and compile them for aarch64."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "ziglang")
    os.chdir(TREE)
    sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tools")]
    import setup as build  # the settings of the usual build

    shared = Extension(build.MEMORY_VIEWS, ["_memory_views.c"], extra_compile_args=[*build.FLAGS, "-O1"])
    translated = cythonize(
        [shared, *build.kernels()],
        build_dir="build/kernels",
        compiler_directives=build.DIRECTIVES,
        include_path=["src"],
        quiet=True,
        shared_utility_qualified_name=build.MEMORY_VIEWS,
    )
    LINKS.mkdir(exist_ok=True)
    headers = ROOT / "usr" / "include"
    if not (LINKS / "aarch64-linux-gnu").exists():
        (LINKS / "aarch64-linux-gnu").symlink_to(headers / "aarch64-linux-gnu")
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", f"aarch64-linux-gnu.{GLIBC}", "-shared", "-fPIC", "-w")
    for each in translated:
        binary = (
            Path("src", *each.name.split(".")).as_posix() + f".cpython-{PYTHON.replace('.', '')}-aarch64-linux-gnu.so"
        )
        includes = ("-I", f"{headers}/python{PYTHON}", "-I", str(LINKS))
        run(*zig, *each.extra_compile_args, *includes, each.sources[0], "-o", binary)


def prepared(path: Path) -> Path:
    """Remove what was copied before, and make the folder for a copy."""
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shown(words)}: {(done.stderr or done.stdout).strip()[-500:]}")


def shown(words: Sequence[str]) -> str:
    return " ".join(words[:4])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
