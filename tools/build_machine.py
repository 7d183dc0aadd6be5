"""Build the disk of a virtual machine with systemd, for `make test-machine`; print its folder.

Debian's packages only; programs that are missing are installed where that is allowed. It takes some minutes, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from install_slurm import install, missing

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs"}
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""The release of Debian with the Python of this environment, whose packages are copied to the machine."""

PACKAGES = ("systemd-sysv", "dbus", "python3", "initramfs-tools", "linux-image-cloud-amd64")
NEWER = ("systemd", "systemd-sysv", "libsystemd0", "libpam-systemd")
"""From the backports of bookworm, whose systemd is older than 254 and knows no DelegateSubgroup."""

FOLDER = Path(__file__).parent.parent / "build" / "machine"
LOG = FOLDER / "build.log"
DONE = "built"


def build(root: Path, suite: str) -> None:
    """Install the system into a folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    with LOG.open("w") as log:

        def run(*words: str | Path) -> None:
            subprocess.run(words, check=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, root)
        if suite == "bookworm":
            sources = root / "etc" / "apt" / "sources.list"
            sources.write_text(sources.read_text() + sources.read_text().replace(" bookworm ", " bookworm-backports "))
            apt = (
                "chroot",
                root,
                "env",
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "--yes",
                "--no-install-recommends",
            )
            run(*apt, "update")
            run(*apt, "install", "--target-release", "bookworm-backports", *NEWER)
            run(*apt, "clean")
    (root.parent / DONE).touch()


def main() -> None:
    """Print the folder, or exit with 1 and the reason."""
    if os.geteuid() != 0:
        raise SystemExit("building a virtual machine needs root")
    suite = SUITES.get(sys.version_info[:2])
    if suite is None or os.uname().machine != "x86_64":
        raise SystemExit("a virtual machine is built with Python 3.11 or 3.13 on x86-64 only")
    if absent := missing(PROGRAMS):
        print(f"installing {', '.join(absent)}", file=sys.stderr)
        if not install(absent):
            raise SystemExit(f"missing: {', '.join(absent)}")
    if not (FOLDER / DONE).exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        try:
            build(FOLDER / "root", suite)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{error.cmd[0]} failed; the log is {LOG}") from None
    print(FOLDER)


if __name__ == "__main__":
    main()
