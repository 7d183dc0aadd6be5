"""Other versions of Slurm than the machine's, for the Slurm tests: `REFOLD_SLURM=24.11 make test-slurm`.

Debian's packages of another suite are unpacked into a folder of the cache by debootstrap, which needs root. Programs
use the loader and the libraries of that folder, so that they run beside those of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

SUITES = {"24.11": "trixie", "26.05": "sid"}
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin",
    "munge",
)
CACHE = Path("~/.cache/refold/engines").expanduser()


def wanted_version() -> str:
    """Return the version that REFOLD_SLURM chooses; '': that of the machine."""
    version = os.environ.get("REFOLD_SLURM", "")
    if version and version not in SUITES:
        raise SystemExit(f"REFOLD_SLURM is {version!r}, expected one of {', '.join(SUITES)}, or nothing")
    return version


def folder_of(version: str) -> Path:
    """Return where a version is unpacked."""
    return CACHE / f"slurm-{version}"


def programs_of(version: str) -> Path:
    """Return the folder of the programs of a version, for PATH."""
    return folder_of(version) / "programs"


def plugins_of(version: str) -> Path:
    """Return the folder of the plugins of a version, for slurm.conf."""
    return next(folder_of(version).glob("usr/lib/*/slurm-wlm"))


def unpack(version: str) -> None:
    """Unpack a version, unless it is there."""
    folder = folder_of(version)
    if programs_of(version).exists():
        return
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise SystemExit(f"Slurm {version} is unpacked by debootstrap, which needs root: apt install debootstrap")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    packages = ",".join([*PACKAGES, "patchelf"])
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITES[version], str(folder), MIRROR]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Slurm {version} cannot be unpacked: {' '.join(done.stdout.splitlines()[-2:])}")
    _relocate(folder)


def _relocate(folder: Path) -> None:
    """Make the programs and plugins use the loader and the libraries of their folder, and link them by their names."""

    def patchelf(*words: str) -> None:
        subprocess.run(["chroot", str(folder), "patchelf", *words], check=True)

    loader = next(folder.glob("usr/lib*/ld-linux*.so.*"))
    (plugins,) = folder.glob("usr/lib/*/slurm-wlm")
    libraries = f"{plugins}:{plugins.parent}"
    programs = folder / "programs.new"
    programs.mkdir(exist_ok=True)
    for path in _programs(folder):
        inside = f"/{path.relative_to(folder)}"
        patchelf("--set-interpreter", str(loader), "--force-rpath", "--set-rpath", libraries, inside)
        (programs / path.name.removesuffix("-wlm")).symlink_to(path)
    for path in plugins.glob("*.so"):
        if not path.is_symlink():
            patchelf("--force-rpath", "--set-rpath", libraries, f"/{path.relative_to(folder)}")
    programs.rename(folder / "programs")


def _programs(folder: Path) -> Iterator[Path]:
    """Yield the programs of Slurm and munge, without links to alternatives and scripts."""
    for package in PACKAGES:
        for listed in (folder / "var/lib/dpkg/info").glob(f"{package}.list"):
            for name in listed.read_text().splitlines():
                path = folder / name.lstrip("/")
                is_program = path.parent.name in ("bin", "sbin") and path.is_file() and not path.is_symlink()
                if is_program and path.read_bytes()[:4] == b"\x7fELF":
                    yield path
