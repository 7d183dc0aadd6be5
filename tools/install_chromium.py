"""Find Chromium for the tests of the web UI, or install Debian's package where that is allowed; print its version."""

from __future__ import annotations

import os
import shutil
import subprocess

from install_slurm import install

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Return the path of Chromium."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


def main() -> None:
    """Print the version, or exit with 1 and the reason."""
    if find() is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        install(["chromium"])
    path = find()
    if path is None:
        raise SystemExit("missing: chromium; on Debian and Ubuntu: apt install chromium")
    print(subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip())


if __name__ == "__main__":
    main()
