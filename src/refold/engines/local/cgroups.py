"""Cgroups of runs in the kernel: version 2, controllers of version 1, or both on one machine.

Every instance has a folder `refold-HASH/RUN.INSTANCE` in each hierarchy in use, where HASH is that of the state folder
and RUN that of the run's mark. What is there survives the daemon; the next one finds it, wherever it is started.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from refold.engines.local.cgroup_mounts import Hierarchy
from refold.engines.local.run_groups import GroupPlace, InstanceUsage, ResourceLimits
from refold.errors import BadInput
from refold.model import Seconds
from refold.server.output import raise_if_shortage

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids", "freezer")
"""The controllers in use. Version 2 has no `cpuacct` and `freezer`: every cgroup can do that."""

IN_EVERY_V2 = frozenset(["cpuacct", "freezer"])

CPU_PERIOD_MICROSECONDS = 100_000
MIN_QUOTA_MICROSECONDS = 1_000
MAX_DEPTH = 12
"""How deep cgroups of earlier daemons are looked for."""

FREEZE_TIMEOUT: Seconds = 1.0
REMOVE_TIMEOUT: Seconds = 2.0
POLL_SECONDS: Seconds = 0.005

KERNEL = Path("/proc/sys/kernel")

_FOLDER = re.compile(r"([0-9a-f]{32})\.(\d{1,7})")


@dataclass(frozen=True, slots=True)
class Tree:
    """A hierarchy in use. `controllers`: those with which runs are limited and measured; `folders`: those of the runs.

    New runs are in the first of them. The others are of daemons that were started in other cgroups.
    """

    unified: bool
    controllers: frozenset[str]
    folders: list[Path] = field(default_factory=list)


class Cgroups:
    usable = True

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = trees
        self._killing = _best_for_killing(trees)
        available = frozenset(name for tree in trees for name in tree.controllers)
        self.enforced = frozenset(
            what for what, controller in (("cpus", "cpu"), ("memory", "memory")) if controller in available
        )

    # Starting.

    def create(self, place: GroupPlace) -> None:
        """Create the cgroup of an instance in every hierarchy, with its limits."""
        for tree in self._trees:
            folder = tree.folders[0] / _name(place)
            try:
                folder.mkdir(exist_ok=True)
            except FileNotFoundError:  # somebody has removed the folder while it was empty
                _restore(tree)
                folder.mkdir(exist_ok=True)
            _limit(tree, folder, place.limits)

    def join(self, place: GroupPlace, pid: int) -> None:
        """Move a process, which has no children yet, to the cgroup of its instance."""
        for tree in self._trees:
            (tree.folders[0] / _name(place) / "cgroup.procs").write_text(str(pid))

    def limit(self, place: GroupPlace) -> None:
        """Change the limits of an instance that is running."""
        for tree, folder, instance in self._folders_of(place.run):
            if instance == place.instance:
                _limit(tree, folder, place.limits)

    # Ending.

    def members(self, run: str) -> list[int]:
        """Return the pids of all processes of a run. Zombies have left their cgroup, or are about to."""
        return sorted({pid for _, folder, _ in self._folders_of(run) for pid in _read_pids(folder)})

    def kill(self, run: str) -> None:
        """Kill all processes of a run, at once where the kernel can; else none can fork while the others are killed."""
        for tree, folder, _ in self._folders_of(run):
            if tree is not self._killing:
                continue
            if tree.unified and (folder / "cgroup.kill").exists():
                _write(folder / "cgroup.kill", "1")
            else:
                _kill_frozen(folder)

    def remove(self, run: str) -> None:
        """Remove the cgroups of a run whose processes have ended; what is still in use stays for the next daemon."""
        deadline = time.monotonic() + REMOVE_TIMEOUT
        for _, folder, _ in self._folders_of(run):
            while not _remove(folder) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Remove what is not in use: the daemon ends, or was killed. A cgroup with processes cannot be removed."""
        for tree in self._trees:
            for folder in tree.folders:
                for name in filter(_FOLDER.fullmatch, _list(folder)):
                    _remove(folder / name)
                _remove(folder)

    # Reading.

    def usage(self, run: str) -> Sequence[InstanceUsage]:
        usage: dict[int, InstanceUsage] = {}
        for tree, folder, instance in self._folders_of(run):
            usage[instance] = _read_usage(tree, folder, usage.get(instance, InstanceUsage(instance)))
        return [usage[instance] for instance in sorted(usage)]

    def runs(self) -> list[str]:
        """Return the runs that have cgroups, also those that an earlier daemon has left."""
        names = {name for tree in self._trees for folder in tree.folders for name in _list(folder)}
        return sorted({match[1] for name in names if (match := _FOLDER.fullmatch(name))})

    def _folders_of(self, run: str) -> Iterator[tuple[Tree, Path, int]]:
        for tree in self._trees:
            for folder in tree.folders:
                for name in _list(folder):
                    if (match := _FOLDER.fullmatch(name)) and match[1] == run:
                        yield tree, folder / name, int(match[2])


def open_cgroups(prefix: str, hierarchies: Sequence[Hierarchy], path: str = "") -> Cgroups | None:
    """Return the cgroups for the runs of a state folder, in all hierarchies where this process may create some.

    `prefix`: that of the marks of these runs. `path`: the cgroup in which they are to be, as in /proc/PID/cgroup; '':
    that of this process. None: there are none.
    """
    name = f"refold-{prefix.removesuffix('-')}"
    trees: list[Tree] = []
    for hierarchy in sorted(hierarchies, key=lambda one: not one.unified):
        is_needed = not trees or not trees[0].unified or not hierarchy.controllers <= IN_EVERY_V2
        if is_needed and (tree := _open_tree(hierarchy, name, path)) is not None:
            trees.append(tree)
    return Cgroups(trees) if trees else None


def _open_tree(hierarchy: Hierarchy, name: str, path: str) -> Tree | None:
    if not hierarchy.unified and not hierarchy.controllers.intersection(CONTROLLERS):
        return None
    base = hierarchy.mount / path.strip("/") if path else _base(hierarchy)
    earlier = [folder for folder in _find(hierarchy.mount, name) if folder != base / name]
    try:
        (base / name).mkdir(parents=bool(path), exist_ok=True)
        controllers = _enable(base, name, hierarchy) if hierarchy.unified else hierarchy.controllers
        _check_usable(base / name)
    except OSError:
        return None
    return Tree(hierarchy.unified, controllers & frozenset(CONTROLLERS), [base / name, *earlier])


def _restore(tree: Tree) -> None:
    tree.folders[0].mkdir(parents=True, exist_ok=True)
    if tree.unified:
        _enable_in(tree.folders[0], sorted(tree.controllers))


def _base(hierarchy: Hierarchy) -> Path:
    """Return where cgroups may be created: beside the daemon, if systemd has given it a subgroup of its own."""
    parent = hierarchy.own.parent
    return parent if hierarchy.unified and _is_delegated(parent) else hierarchy.own


def _is_delegated(folder: Path) -> bool:
    """Whether systemd leaves a cgroup to the service (Delegate=yes)."""
    for attribute in ("user.delegate", "trusted.delegate"):
        with suppress(OSError, AttributeError):
            if os.getxattr(folder, attribute) == b"1":
                return True
    return False


def _enable(base: Path, name: str, hierarchy: Hierarchy) -> frozenset[str]:
    """Enable controllers of version 2 for the cgroups of runs; return those that are."""
    wanted = [word for word in _read_words(base / "cgroup.controllers") if word in CONTROLLERS]
    if wanted and not _enable_in(base, wanted) and base == hierarchy.own and _may_move(base):
        leaf = base / "refold-daemon"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        _enable_in(base, wanted)
    _enable_in(base / name, _read_words(base / name / "cgroup.controllers"))
    return frozenset(_read_words(base / name / "cgroup.subtree_control"))


def _enable_in(folder: Path, controllers: Sequence[str]) -> bool:
    """Enable controllers for the children of a cgroup; return whether all are. Not if it has processes itself."""
    for controller in controllers:
        if controller in CONTROLLERS:
            _write(folder / "cgroup.subtree_control", f"+{controller}")
    return set(_read_words(folder / "cgroup.subtree_control")) >= set(controllers).intersection(CONTROLLERS)


def _may_move(base: Path) -> bool:
    """Whether this process may make room: it is alone, and systemd will start no other process in this cgroup.

    A service is restarted there, which fails while the cgroup has children with controllers.
    """
    return _read_pids(base) == [os.getpid()] and base.suffix != ".service"


def _check_usable(folder: Path) -> None:
    """Raise OSError if processes cannot be moved to cgroups in a folder: that needs more rights than to create them."""
    probe = folder / "probe"
    probe.mkdir(exist_ok=True)
    process = subprocess.Popen(["/bin/sh", "-c", "read -r _"], stdin=subprocess.PIPE)
    try:
        (probe / "cgroup.procs").write_text(str(process.pid))
    finally:
        process.kill()
        process.communicate()
        _remove(probe)


def _find(mount: Path, name: str) -> list[Path]:
    found: list[Path] = []
    for folder, names, _ in os.walk(mount):
        if name in names:
            found.append(Path(folder, name))
        depth = len(Path(folder).relative_to(mount).parts)
        names[:] = [] if depth >= MAX_DEPTH else [other for other in names if not other.startswith("refold-")]
    return found


def _best_for_killing(trees: Sequence[Tree]) -> Tree | None:
    """Return the hierarchy in which runs are killed: version 2, else the freezer, else any."""
    ranked = sorted(trees, key=lambda tree: (not tree.unified, "freezer" not in tree.controllers))
    return ranked[0] if ranked else None


def _name(place: GroupPlace) -> str:
    name = f"{place.run}.{place.instance}"
    if not _FOLDER.fullmatch(name):
        raise BadInput(f"{name!r} is not the name of a run and an instance")
    return name


def _limit(tree: Tree, folder: Path, limits: ResourceLimits) -> None:
    if "cpu" in tree.controllers and limits.cpu_milli:
        quota = max(MIN_QUOTA_MICROSECONDS, limits.cpu_milli * CPU_PERIOD_MICROSECONDS // 1000)
        if tree.unified:
            (folder / "cpu.max").write_text(f"{quota} {CPU_PERIOD_MICROSECONDS}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_MICROSECONDS))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
    if "pids" in tree.controllers:
        (folder / "pids.max").write_text(str(_max_processes()))
    if "memory" in tree.controllers and limits.memory_mib:
        _limit_memory(tree, folder, str(limits.memory_mib * 2**20))


def _max_processes() -> int:
    """Return how many processes and threads an instance may have: half of what the machine can have."""
    amounts = [_scaled(_read_words(KERNEL / name), 0.5) for name in ("pid_max", "threads-max")]
    return max(1, int(min((amount for amount in amounts if amount is not None), default=2**14)))


def _limit_memory(tree: Tree, folder: Path, limit: str) -> None:
    """Limit the memory of an instance. It must not swap instead; if one process is killed, the others are too."""
    if tree.unified:
        (folder / "memory.max").write_text(limit)
        _write(folder / "memory.swap.max", "0")
        _write(folder / "memory.oom.group", "1")
        return
    with_swap, memory = folder / "memory.memsw.limit_in_bytes", folder / "memory.limit_in_bytes"
    # Memory with swap is never less than memory: which is written first depends on whether the limit grows.
    _write(with_swap, limit)
    memory.write_text(limit)
    _write(with_swap, limit)


def _kill_frozen(folder: Path) -> None:
    freezer = folder / "freezer.state"
    if freezer.exists():
        _write(freezer, "FROZEN")
        deadline = time.monotonic() + FREEZE_TIMEOUT
        while _read_words(freezer) != ["FROZEN"] and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    for pid in _read_pids(folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if freezer.exists():
        _write(freezer, "THAWED")


def _read_usage(tree: Tree, folder: Path, known: InstanceUsage) -> InstanceUsage:
    """Add what one hierarchy tells about an instance."""
    cpu, peak, kills = known.cpu_seconds, known.peak_memory_mib, known.oom_kills
    if "cpuacct" in tree.controllers:
        cpu = _scaled(_read_words(folder / "cpuacct.usage"), 1e-9)
    elif tree.unified and cpu is None:
        cpu = _scaled(_read_table(folder / "cpu.stat").get("usage_usec", []), 1e-6)
    if "memory" in tree.controllers:
        names = (
            ("memory.peak", "memory.events") if tree.unified else ("memory.max_usage_in_bytes", "memory.oom_control")
        )
        peak = _peak_mib(folder / names[0], _read_table(folder / "memory.stat"))
        kills = int(_scaled(_read_table(folder / names[1]).get("oom_kill", []), 1) or 0)
    return InstanceUsage(known.instance, cpu, peak, kills)


def _peak_mib(file: Path, stat: dict[str, list[str]]) -> int | None:
    """Return the most memory that processes had. What is cached of files is not counted: it is freed when needed."""
    peak = _scaled(_read_words(file), 1)
    if peak is None:
        return None
    cached = sum(_scaled(stat.get(f"{state}_file", []), 1) or 0 for state in ("active", "inactive"))
    return -int(-max(0.0, peak - cached) // 2**20)


def _scaled(words: Sequence[str], factor: float) -> float | None:
    return int(words[0]) * factor if words and words[0].isdecimal() else None


def _read_table(file: Path) -> dict[str, list[str]]:
    """Read a file of lines such as 'oom_kill 1'."""
    lines = [line.split() for line in _read(file).splitlines()]
    return {words[0]: words[1:] for words in lines if words}


def _read_words(file: Path) -> list[str]:
    return _read(file).split()


def _read_pids(folder: Path) -> list[int]:
    return [int(word) for word in _read_words(folder / "cgroup.procs") if word.isdecimal()]


def _read(file: Path) -> str:
    """Read a file; '' if it does not exist (any more)."""
    try:
        return file.read_text()
    except OSError as error:
        raise_if_shortage(error)
        return ""


def _write(file: Path, text: str) -> None:
    """Write a file that may not exist, or may not be written now."""
    with suppress(OSError):
        file.write_text(text)


def _list(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise_if_shortage(error)
        return []


def _remove(folder: Path) -> bool:
    """Remove a cgroup; return whether it is gone."""
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()
