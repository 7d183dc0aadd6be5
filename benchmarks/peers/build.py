"""Compile the bare scan as setup.py compiles the kernels; nothing happens if it has not changed."""

from __future__ import annotations

from setup import FLAGS, BuildKernels
from setuptools import Distribution, Extension

SCAN = Extension(
    "benchmarks.peers.bare_scan",
    ["benchmarks/peers/bare_scan.py"],
    extra_compile_args=[*FLAGS, "-O3", "-funroll-loops"],  # a loop over all nodes gains more than the kernels
)


def compile_bare_scan() -> None:
    """Compile it; called in a process of its own, in the root of the repository."""
    command = BuildKernels(Distribution({"ext_modules": [SCAN]}))
    command.inplace = True
    command.ensure_finalized()
    command.run()
