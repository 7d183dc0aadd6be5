"""Find Slurm for the Slurm tests, or install Debian's packages where that is allowed; print the version.

The tests start daemons of their own, so nothing has to run. Packages are installed only by root on Debian and the like.
`--find` only looks. The accounting daemon and MariaDB are wanted, not required. REFOLD_SLURM=24.11 or 26.05 chooses
another version than the machine's, which is unpacked into the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from slurm_versions import programs_of, unpack, wanted_version

REQUIRED = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
WANTED = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
"""Programs and the packages that have them."""

PLUGIN = "slurm-wlm-mysql-plugin"
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")


def find(program: str) -> str | None:
    """Return the path of a program."""
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(SYSTEM_FOLDERS))


def missing(programs: dict[str, str]) -> list[str]:
    """Return the packages whose programs are not installed."""
    return [package for program, package in programs.items() if find(program) is None]


def install(packages: list[str]) -> bool:
    """Install packages without starting their services; return whether it succeeded."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    options = ["--yes", "--quiet", "--no-install-recommends"]
    for command in (["update", "--quiet"], ["install", *options, *packages]):
        try:
            done = subprocess.run(
                ["apt-get", *command], env=environment, check=False, capture_output=True, text=True, timeout=600
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"apt-get {command[0]}: {error}", file=sys.stderr)
            return False
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-3:]), file=sys.stderr)
    return done.returncode == 0


def main() -> None:
    """Print the version of slurmctld, or exit with 1 and the reason."""
    may_install = "--find" not in sys.argv and os.geteuid() == 0 and shutil.which("apt-get") is not None
    packages = [*missing(REQUIRED), *missing(WANTED)]
    if packages and may_install:
        print(f"installing {', '.join(packages)}", file=sys.stderr)
        if not install([*packages, PLUGIN]) and missing(REQUIRED):
            install(missing(REQUIRED))  # perhaps only the accounting cannot be had
    if absent := missing(REQUIRED):
        raise SystemExit(f"missing: {', '.join(absent)}; on Debian and Ubuntu: apt install {' '.join(absent)}")
    if other := wanted_version():
        unpack(other)
        os.environ["PATH"] = f"{programs_of(other)}{os.pathsep}{os.environ['PATH']}"
    version = subprocess.run([find("slurmctld") or "", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{version}, {'without' if missing(WANTED) else 'with'} slurmdbd")


if __name__ == "__main__":
    main()
