"""Install a CPU build of PyTorch for the tests, if the package index has one; never a CUDA build.

An index with CPU builds (set `PIP_EXTRA_INDEX_URL` to PyTorch's) has `torch==VERSION+cpu`. Without one, the wheel for
macOS and for Linux on aarch64 is a CPU build, and the wheel for Linux on x86-64 needs gigabytes of CUDA libraries.
If there is no CPU build, tests that need PyTorch are skipped.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys

VERSION = "2.13.0"
DEPENDENCIES = ["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"]
"""What PyTorch needs on a CPU. Installed by name, so that a wheel's metadata cannot bring in CUDA packages."""

DEFAULT_WHEEL_IS_FOR_CPU = {("Darwin", "arm64"), ("Linux", "aarch64")}
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]


def main() -> None:
    """Install PyTorch, or print why it is left out."""
    if importlib.util.find_spec("torch"):
        return
    wanted = [f"torch=={VERSION}+cpu"]
    if (platform.system(), platform.machine()) in DEFAULT_WHEEL_IS_FOR_CPU:
        wanted.append(f"torch=={VERSION}")
    if any(_installed("--no-deps", requirement) for requirement in wanted) and _installed(*DEPENDENCIES):
        print(f"installed PyTorch {VERSION} for the CPU")
    else:
        print(f"found no CPU build of PyTorch {VERSION}; tests that need it are skipped")


def _installed(*requirements: str) -> bool:
    return subprocess.run([*PIP, *requirements], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
