"""How much memory a daemon at rest holds on to.

Kernels are compiled, or read from where they are kept, by LLVM: some 60 MB of code that has been touched then and is
not needed any more. These pages are as they are in the library's file, so the system may have them back; should they
be needed again it reads them again.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

_LIBRARY = "libllvmlite"
_DONTNEED = 4
_OWN = ("Anonymous:", "Swap:")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s*(.*)")


def hand_back_the_compiler() -> None:
    """Let the system have the pages of LLVM; does nothing where that is not possible."""
    if sys.platform != "linux":
        return
    try:
        described = Path("/proc/self/smaps").read_text()
    except OSError:
        return
    library = ctypes.CDLL(None, use_errno=True)
    madvise = library.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in _as_in_the_file(described):
        madvise(begin, end - begin, _DONTNEED)
    if trim := getattr(library, "malloc_trim", None):  # what was freed, too
        trim(0)


def _as_in_the_file(described: str) -> list[tuple[int, int]]:
    """The mappings of the library that cannot be written to and have not been: their pages are those of the file.

    What the loader has written before it locked a page is the process's own, wherever it is: in memory, shared with
    a process that has forked, or swapped out.
    """
    found: list[tuple[int, int]] = []
    mapping: tuple[int, int] | None = None
    for line in described.splitlines():
        if begins := _MAPPING.fullmatch(line):
            begin, end, may, path = begins.groups()
            ours = _LIBRARY in path and "r" in may and "w" not in may
            mapping = (int(begin, 16), int(end, 16)) if ours else None
            found += [mapping] if mapping is not None else []
        elif line.startswith(_OWN) and mapping in found and line.split()[1] != "0":
            found.remove(mapping)
    return found
