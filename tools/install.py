"""Install Refold and some of its extras into this Python environment, in the versions of requirements.lock.

    python tools/install.py report serve

pip checks every download against the hashes of the lock file. Of the packages that the lock file lists for all extras,
only those that the named extras and dependency groups need are installed. `make upgrade` renews the lock file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
BUILD, COMPILER = "build", "compiler"
"""The dependency groups that an editable installation needs: the second one where there is no C compiler."""

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^]]*)\])?")


class Locked(NamedTuple):
    """A package of the lock file: its lines for pip, and the packages that require it."""

    name: str
    lines: str
    required_by: list[str]


def read_lock(text: str) -> list[Locked]:
    """Return the packages of a lock file as uv writes it; one that differs between Pythons has several entries."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    return [_read_block(block) for block in blocks]


def _read_block(block: str) -> Locked:
    lines, _, via = block.partition("    # via")
    required_by = [line.strip("# ").partition(" ")[0] for line in via.splitlines()]
    return Locked(block.partition("==")[0], lines, [name for name in required_by if name])


def select(locked: Iterable[Locked], wanted: Iterable[str]) -> list[Locked]:
    """Return the locked packages that `wanted` and their dependencies need."""
    locked = list(locked)
    dependencies: dict[str, list[str]] = defaultdict(list)
    for package in locked:
        for name in package.required_by:
            dependencies[name].append(package.name)
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += dependencies[name]
    if missing := found - {package.name for package in locked}:
        raise SystemExit(f"requirements.lock has no {', '.join(sorted(missing))}: renew it with `make upgrade`")
    return [package for package in locked if package.name in found]


def required(project: dict[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield the packages that these extras or dependency groups, or Refold itself, require directly."""
    own = {project["project"]["name"]: project["project"]["dependencies"]}
    sets = {**own, **project["project"]["optional-dependencies"], **project["dependency-groups"]}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in sets:
            raise SystemExit(f"unknown extra {name!r}; there are {', '.join(sorted({*sets} - {*own}))}")
        for requirement in sets[name]:
            match = REQUIREMENT.match(requirement)
            assert match
            if match["name"] in own:
                waiting += [match["name"], *match["extras"].split(",")]
            else:
                yield re.sub(r"[-_.]+", "-", match["name"]).lower()


def locked_requirements(names: Iterable[str]) -> str:
    """Return the requirements file, with versions and hashes, for Refold itself, extras or dependency groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = select(read_lock(LOCK.read_text()), required(project, names))
    return "".join(package.lines for package in packages)


def install(names: Iterable[str]) -> int:
    """Install what Refold, its extras or dependency groups require; return the exit status of pip."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as selected:
        selected.write(locked_requirements(names))
        selected.flush()
        # Not compiled: Python does so when it imports a module (`compile_what_is_used`), and most modules never are.
        command = [*PIP, "--no-compile", "--require-hashes", "--requirement", selected.name]
        return subprocess.run(command, check=False).returncode


def compile_what_is_used() -> None:
    """Run a short command, so that Python compiles the modules that the user's first one imports."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "refold", "compare", "demo", "--limit", "20", "--out", folder]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(names: list[str]) -> int:
    """Install; return an exit status. The kernels are compiled while packages are downloaded."""
    from c_compiler import find_compiler

    if status := install([BUILD] if find_compiler() else [BUILD, COMPILER]):
        return status
    print("compiling the kernels of Refold, which takes about a minute", flush=True)
    with subprocess.Popen([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT) as compiling:
        status = install(["refold", *names])
    if status or compiling.returncode:
        return status or 1
    status = subprocess.run([*PIP, "--no-build-isolation", "--editable", str(ROOT)], check=False).returncode
    if status == 0:
        compile_what_is_used()
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
