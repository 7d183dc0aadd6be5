"""Renew requirements.lock with the latest versions that pyproject.toml allows, and check that they can be installed.

    python tools/upgrade.py [--check]

One file for all extras, Pythons and platforms, with the hashes of every file. For each Python and processor that Refold
supports, all packages must have wheels: no dependency is compiled by users. `--check` only checks the present file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
UV = [sys.executable, "-m", "uv", "--no-config", "pip"]
RESOLVE = [
    *("compile", "pyproject.toml", "--all-extras", "--group", "build", "--group", "compiler", "--group", "quality"),
    *(
        "--universal",
        "--python-version",
        PYTHONS[0],
        "--generate-hashes",
        "--no-emit-index-url",
        "--upgrade",
        "--quiet",
    ),
    *("--custom-compile-command", "make upgrade", "--output-file", LOCK),
]
INSTALL = ["install", "--dry-run", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]


def uv(*arguments: str) -> int:
    """Run uv with the certificates that pip is told to use; return its exit status."""
    certificates = os.environ.get("PIP_CERT")
    environment = {**os.environ, **({"SSL_CERT_FILE": certificates} if certificates else {})}
    return subprocess.run([*UV, *arguments], cwd=ROOT, env=environment, check=False).returncode


def has_wheels(python: str, platform: str) -> bool:
    """Return whether every locked package has a wheel for this Python on this platform; nothing is installed."""
    where = ["--python-version", python, "--python-platform", platform]
    with tempfile.TemporaryDirectory() as folder:
        return uv(*INSTALL, *where, "--target", folder, "--requirement", LOCK) == 0


def main(arguments: list[str]) -> int:
    """Renew the lock file and check it; return the exit status."""
    if "--check" not in arguments and (status := uv(*RESOLVE)):
        return status
    pairs = product(PYTHONS, PLATFORMS)
    missing = [f"Python {python} on {platform}" for python, platform in pairs if not has_wheels(python, platform)]
    if missing:
        print(f"{LOCK} cannot be installed with {', '.join(missing)}")
        return 1
    print(f"{LOCK} can be installed with Python {', '.join(PYTHONS)} on {' and '.join(PLATFORMS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
