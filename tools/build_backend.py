"""The build back end: setuptools, which is given a C compiler if the machine has none."""

from __future__ import annotations

from typing import Any

from c_compiler import find_compiler
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def _with_compiler(requirements: list[str]) -> list[str]:
    return requirements if find_compiler() else [*requirements, "ziglang"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what building a wheel needs besides setuptools and Cython."""
    return _with_compiler(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Return what an editable installation needs besides setuptools and Cython."""
    return _with_compiler(build_meta.get_requires_for_build_editable(config_settings))
