"""Install what `make test-train` needs: PyTorch, and frameworks that use it, in the versions of requirements.lock.

On Linux the wheel of the package index is the build for CUDA, which runs on CPUs as well. Exits with status 3 and the
reason if PyTorch is not wanted (`REFOLD_NO_TORCH=1`) or the disk has too little free space.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

import install

EXTRA = "test-train"
FREE_GIB = 15
NOT_INSTALLED = 3


def reason_against() -> str | None:
    """Return why PyTorch is not installed here."""
    if os.environ.get("REFOLD_NO_TORCH"):
        return "REFOLD_NO_TORCH is set"
    free = shutil.disk_usage(sys.prefix).free / 2**30
    if find_spec("torch") is None and free < FREE_GIB:
        return f"the disk has {free:.1f} GiB of free space, {FREE_GIB} are needed"
    return None


def main() -> int:
    """Install PyTorch, or print why not; return the exit status."""
    if reason := reason_against():
        print(f"PyTorch is not installed: {reason}")
        return NOT_INSTALLED
    if find_spec("torch") is None:
        print("installing PyTorch: on x86-64 about 2.4 GB to download and 6 GB on disk, and some minutes", flush=True)
    return install.main([EXTRA])


if __name__ == "__main__":
    sys.exit(main())
