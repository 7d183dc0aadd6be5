"""Run what a developer wants to know before a commit: linters, types, and the fast tests of the folders that changed.

    make check                                    # after changes; without any, for the last commit
    python tools/check.py --measure build/tests/test.xml    # renew the list of slow tests

Slow tests are listed in tests/slow_tests.txt, as measured by a whole run. mypy's cache makes all runs but the first
fast; its daemon is not used, since it fails where imports are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SLOW_TESTS = ROOT / "tests" / "slow_tests.txt"
SLOW_SECONDS = 0.5
ALWAYS = ("tests/test_layering.py", "tests/test_public_api.py", "tests/test_tools.py")


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, or those of the last commit."""
    changed = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return changed or _git("diff", "--name-only", "HEAD~1", "HEAD")


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def affected_tests(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files and folders for changed files: a changed test itself, and the folder of changed sources."""
    return sorted({*_existing(ALWAYS, root), *_existing(filter(None, map(_test_of, changed)), root)})


def _test_of(path: str) -> str | None:
    parts = Path(path).parts
    if parts[:2] == ("src", "refold") and path.endswith(".py"):
        return str(Path("tests", *parts[2:-1])) if len(parts) > 3 else None
    is_test = parts[0] == "tests" and parts[-1].startswith("test_") and path.endswith(".py")
    return path if is_test else None


def _existing(paths: Iterable[str], root: Path) -> Iterator[str]:
    """Yield the paths that exist, or the next folder above that is not all of the tests."""
    for path in paths:
        found = Path(path)
        while not (root / found).exists() and len(found.parts) > 2:
            found = found.parent
        if (root / found).exists():
            yield str(found)


def slow_tests(results: Path) -> list[str]:
    """Return the files and names of tests that took long, of the results of a run."""
    cases = ElementTree.parse(results).iter("testcase")
    slow = {_name(case) for case in cases if float(case.get("time", 0)) > SLOW_SECONDS}
    return sorted(slow)


def _name(case: ElementTree.Element) -> str:
    """Return a test without its parameters: if one case is slow, all are."""
    module, name = case.get("classname", ""), case.get("name", "")
    return f"{module.replace('.', '/')}::{name.partition('[')[0]}"


def main() -> int:
    """Check, or renew the list; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help="renew the list of slow tests from these results")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args()
    if options.measure:
        SLOW_TESTS.write_text("".join(f"{name}\n" for name in slow_tests(options.measure)))
        return 0
    paths = affected_tests(changed_files())
    print("tests:", *paths)
    commands = [
        ["ruff", "check", "--quiet", "."],
        ["ruff", "format", "--quiet", "--check", "."],
        ["mypy", "src", "tests", "benchmarks"],
        ["pytest", "--fast", *options.pytest, *paths],
    ]
    return max(_timed(command) for command in commands)


def _timed(command: list[str]) -> int:
    started = time.monotonic()
    program = Path(sys.executable).parent / command[0]
    status = subprocess.run([str(program), *command[1:]], cwd=ROOT, check=False).returncode
    print(f"{time.monotonic() - started:.0f} s: {command[0]} {command[1]}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
