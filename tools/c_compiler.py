"""Find a C compiler for the kernels: that of the machine, or else that of the package `ziglang`."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FOR_MACOS = {"LDFLAGS": "-undefined dynamic_lookup"} if sys.platform == "darwin" else {}


def find_compiler() -> str | None:
    """Return the command of a C compiler: `$CC`, the one that compiled Python, or a usual one; None: there is none."""
    if named := os.environ.get("CC"):
        return named
    own = (sysconfig.get_config_var("CC") or "").split()
    return next((command for command in [*own[:1], *COMPILERS] if shutil.which(command)), None)


def compiler_variables() -> Mapping[str, str]:
    """Return the environment variables that make setuptools use the compiler that there is."""
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise SystemExit("the kernels of Refold are compiled, which needs the C headers of Python: install python3-dev")
    compiler = find_compiler()
    if compiler is None and find_spec("ziglang") is None:
        raise SystemExit("the kernels of Refold are compiled, and there is no C compiler: install one, or `ziglang`")
    command = compiler or f"{sys.executable} -m ziglang cc"
    return {"CC": command, "LDSHARED": f"{command} -shared", **FOR_MACOS}
