"""Reduce the memory of an idle daemon.

Compiling or loading kernels touches about 60 MB of LLVM code that is not needed afterwards. Its pages are unmodified
copies of the library's file, so the kernel can drop them and read them again if needed.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

_LIBRARY = "libllvmlite"
_MADV_DONTNEED = 4
_PRIVATE_FIELDS = ("Anonymous:", "Swap:")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s*(.*)")


def release_compiler_memory() -> None:
    """Give the pages of LLVM back to the system. Does nothing where this is not supported."""
    if sys.platform != "linux":
        return
    try:
        smaps = Path("/proc/self/smaps").read_text()
    except OSError:
        return
    library = ctypes.CDLL(None, use_errno=True)
    madvise = library.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _clean_mappings(smaps):
        madvise(start, end - start, _MADV_DONTNEED)
    if trim := getattr(library, "malloc_trim", None):  # also return freed heap memory
        trim(0)


def _clean_mappings(smaps: str) -> list[tuple[int, int]]:
    """Return the address ranges of the library that are not writable and have no private pages.

    Pages that the loader wrote before it protected them are private to the process: in memory, shared with a forked
    process, or swapped out. Dropping them would lose data.
    """
    ranges: list[tuple[int, int]] = []
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if match := _MAPPING.fullmatch(line):
            start, end, permissions, path = match.groups()
            is_library = _LIBRARY in path and "r" in permissions and "w" not in permissions
            mapping = (int(start, 16), int(end, 16)) if is_library else None
            ranges += [mapping] if mapping is not None else []
        elif line.startswith(_PRIVATE_FIELDS) and mapping in ranges and line.split()[1] != "0":
            ranges.remove(mapping)
    return ranges
