"""Which cgroup hierarchies are mounted, and where this process is in them. Version 2 has one, version 1 several."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy. `mount`: where; `own`: the cgroup of this process, as a folder.

    `controllers` are those of version 1; those of version 2 differ from cgroup to cgroup.
    """

    mount: Path
    own: Path
    controllers: frozenset[str] = frozenset()
    unified: bool = False


def find_hierarchies() -> list[Hierarchy]:
    """Return the hierarchies of this machine; none if it has no cgroups, or they cannot be read."""
    try:
        return parse_hierarchies(MOUNTS.read_text(), OWN.read_text())
    except (OSError, UnicodeError):
        return []


def parse_hierarchies(mounts: str, own: str) -> list[Hierarchy]:
    """Return the hierarchies in /proc/self/mountinfo, with the cgroups in /proc/self/cgroup. Each counts once.

    A mount shows the part of its hierarchy below a root; those that do not show the process are skipped.
    """
    cgroups = _parse_own(own)
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mounts.splitlines():
        fields, separator, rest = line.partition(" - ")
        words, kind = fields.split(" "), rest.split(" ")
        if not separator or len(words) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset() if kind[0] == "cgroup2" else frozenset(kind[2].split(","))
        key = next((names for names in cgroups if names <= options and bool(names) == (kind[0] == "cgroup")), None)
        if key is None or key in found:
            continue
        root, mount = PurePosixPath(_unescape(words[3])), Path(_unescape(words[4]))
        cgroup = PurePosixPath(cgroups[key])
        if cgroup.is_relative_to(root):
            found[key] = Hierarchy(mount, mount / cgroup.relative_to(root), key, not key)
    return list(found.values())


def _parse_own(own: str) -> dict[frozenset[str], str]:
    """Return the cgroup of the process by the controllers of each hierarchy; version 2 has none here."""
    cgroups: dict[frozenset[str], str] = {}
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if path.startswith("/") and "/.." not in path and (names or number == "0"):
            cgroups[frozenset(filter(None, names.split(",")))] = path
    return cgroups


def _unescape(path: str) -> str:
    """Replace the octal escapes of mountinfo, such as '\\040' for a space."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)
