"""Mutation testing: change the code in many small ways, and count the changes that no test notices.

    python tools/mutate.py                                    # 12 mutants of each folder of src/refold, seed 1
    python tools/mutate.py --seed 2 --paths src/refold/server --tests tests/server --json build/mutate/seed-2.json
    python tools/mutate.py --survivors-of build/mutate/seed-2.json       # after writing tests

The tests run on a copy in build/mutate/tree, in one process that has imported everything. It forks once per mutant; the
child replaces the code of one function in memory and runs the tests that execute the changed line, fastest first, until
one fails. Which tests execute a line is recorded once per test file, in build/mutate/coverage. Where no test executes
the line in its own process, the mutant is written into the copy and the folder's tests run in a new process, with all
that they start. Ctrl-C stops it and reports what is known so far.

Compiled modules, those with a `.pxd` file, are not mutated: each mutant would have to be compiled.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TextIO

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.mutant_child import Child, Patchable, caches, code_key, outcome  # noqa: E402
from tools.mutants import (  # noqa: E402
    KILLED,
    NO_COVERAGE,
    NOT_JUDGED,
    SOURCE,
    SURVIVED,
    Mutant,
    choose_mutants,
    describe,
    mutated_tree,
    report,
)

BUILD = ROOT / "build" / "mutate"
TREE = BUILD / "tree"
COVERAGE = BUILD / "coverage"
NOT_COPIED = ("build", ".git", ".venv")

TESTS_ELSEWHERE = frozenset({"docs", "end_to_end", "helpers"})
"""Folders of tests that are left out unless they are named: they check pages, or start programs and little else."""

NEEDED = {
    "kubernetes": ("Kubernetes", "KUBEBUILDER_ASSETS"),
    "slurm": ("Slurm", "REFOLD_TEST_SLURM"),
    "ray": ("Ray", "REFOLD_TEST_RAY"),
    "train": ("PyTorch", ""),
}
"""What some tests of folders with this name need, and the variable that says that it is there."""

PROCESSES = re.compile(r"_daemon import|subprocess|_servers import")
PROCESS_SECONDS = 0.1
"""Tests in files with these words that take this long may start processes."""

WARM_UP_SECONDS = 20.0
"""How long tests run before the first fork, to import what is imported late, if coverage is already known."""


@dataclass
class CoveringTest:
    """A test that passes, its duration, and the lines of each source file that it executes in its own process."""

    duration: float
    lines: dict[str, list[int]]


class Session:
    """A pytest plugin: in place of the normal run, it records coverage and then tests the mutants."""

    def __init__(self, mutants: list[Mutant], options: argparse.Namespace, out: TextIO) -> None:
        self._mutants, self._options, self._out = mutants, options, out
        self._paths = {mutant.path for mutant in mutants}
        self._done = 0
        self.stopped = False

    def pytest_sessionstart(self) -> None:
        """Make failing Hypothesis tests fail at once, without a search for the smallest example."""
        from hypothesis import Phase, settings  # not before pytest, which rewrites its assertions

        settings.register_profile("mutate", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutate")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Test all mutants."""
        try:
            items = {item.nodeid: item for item in session.items}
            tests = self._coverage(items)
            covering = self._tests_by_line(tests)
            patchable = self._patchable()
            gc.collect()
            gc.freeze()
            executing = sum(not self._paths.isdisjoint(test.lines) for test in tests.values())
            self._say(f"{len(items)} tests, {len(tests)} of them pass, {executing} execute the mutated files")
            self._test_in_memory(items, tests, covering, patchable)
            self._test_on_disk(tests)
        except KeyboardInterrupt:
            self.stopped = True
        return True

    # Coverage.

    def _coverage(self, items: Mapping[str, pytest.Item]) -> dict[str, CoveringTest]:
        """Return the tests that pass, with the lines that they execute; from the last run, where nothing changed."""
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items.values():
            by_file[item.nodeid.partition("::")[0]].append(item)
        COVERAGE.mkdir(parents=True, exist_ok=True)
        tests: dict[str, CoveringTest] = {}
        executed = 0.0
        for number, (file, its_items) in enumerate(sorted(by_file.items()), 1):
            stored = COVERAGE / f"{_digest(TREE / file)[:24]}.json"
            found = self._read_coverage(stored)
            if found is None:
                started = time.monotonic()
                found = _record(its_items)
                seconds = time.monotonic() - started
                self._say(f"coverage of {file} ({number} of {len(by_file)} files): {seconds:.0f} s")
                executed += seconds
                sources = {path: _digest(TREE / path) for test in found.values() for path in test.lines}
                fields = {"sources": sources, "tests": {name: asdict(test) for name, test in found.items()}}
                stored.write_text(json.dumps(fields))
            tests |= found
        tests = {name: test for name, test in tests.items() if name in items}
        if executed < WARM_UP_SECONDS:
            self._warm_up(items, tests)
        return tests

    def _read_coverage(self, stored: Path) -> dict[str, CoveringTest] | None:
        """Return the recorded coverage of a test file; None if a mutated file that it executes has changed since."""
        if not stored.exists():
            return None
        fields = json.loads(stored.read_text())
        if any(path in self._paths and _digest(TREE / path) != known for path, known in fields["sources"].items()):
            return None
        return {name: CoveringTest(**test) for name, test in fields["tests"].items()}

    def _warm_up(self, items: Mapping[str, pytest.Item], tests: Mapping[str, CoveringTest]) -> None:
        started = time.monotonic()
        for name in sorted(tests, key=lambda name: tests[name].duration):
            if self._paths.isdisjoint(tests[name].lines):
                continue
            if outcome(items[name]) != "passed":
                self._say(f"{name} passed before and fails now")
            if time.monotonic() - started > WARM_UP_SECONDS:
                return

    def _tests_by_line(self, tests: Mapping[str, CoveringTest]) -> dict[tuple[str, int], set[str]]:
        by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        for name, test in tests.items():
            for path in self._paths & test.lines.keys():
                for line in test.lines[path]:
                    by_line[path, line].add(name)
        return by_line

    def _patchable(self) -> Patchable:
        for path in self._paths:
            with suppress(ImportError):  # of a package that is not installed
                importlib.import_module(_module(path))
        files = {str(TREE / path) for path in self._paths}
        found = Patchable(defaultdict(list), caches())
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in files:
                found.functions[code_key(each.__code__)].append(each)
        return found

    # Mutants.

    def _test_in_memory(
        self,
        items: Mapping[str, pytest.Item],
        tests: Mapping[str, CoveringTest],
        covering: Mapping[tuple[str, int], set[str]],
        patchable: Patchable,
    ) -> None:
        """Test the mutants of lines that a test executes in its own process."""
        waiting = list(reversed(self._mutants))
        running: dict[int, Child] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._options.jobs:
                    mutant = waiting.pop()
                    lines = range(mutant.first_line, mutant.last_line + 1)
                    names = set().union(*(covering.get((mutant.path, line), ()) for line in lines))
                    chosen = _within(self._options.seconds, sorted(names, key=lambda name: tests[name].duration), tests)
                    mutant.tests = len(chosen)
                    if chosen:
                        child = Child(mutant, [(items[name], tests[name].duration) for name in chosen], patchable, TREE)
                        running[child.pipe] = child
                for pipe in select.select(list(running), [], [])[0] if running else ():
                    child = running.pop(pipe)
                    child.finish()
                    if child.mutant.status:
                        self._count(child.mutant)
        finally:
            for child in running.values():
                child.kill()

    def _test_on_disk(self, tests: Mapping[str, CoveringTest]) -> None:
        """Test the other mutants: write each into the copy, and run tests of the folder in a new process."""
        for mutant in self._mutants:
            if not mutant.status:
                chosen = _within(self._options.disk_seconds, _tests_of_folder(mutant, tests), tests)
                mutant.tests, mutant.on_disk = len(chosen), True
                mutant.status = _status_on_disk(mutant, chosen, self._options.disk_seconds)
                if mutant.status == SURVIVED:
                    mutant.status = NOT_JUDGED if missing_for(mutant.path) else NO_COVERAGE
                self._count(mutant)

    def _count(self, mutant: Mutant) -> None:
        self._done += 1
        self._say(f"{self._done} of {len(self._mutants)}: {describe(mutant)}")

    def _say(self, text: str) -> None:
        print(text, file=self._out)


def missing_for(path: str) -> str:
    """Return what tests of a file need and is not there; '' if they need nothing more."""
    for folder in NEEDED.keys() & set(Path(path).parts):
        what, variable = NEEDED[folder]
        if not (os.environ.get(variable) if variable else find_spec("torch")):
            return what
    return ""


def _module(path: str) -> str:
    return ".".join(Path(path).relative_to("src").with_suffix("").parts)


def _within(seconds: float, names: Sequence[str], tests: Mapping[str, CoveringTest]) -> list[str]:
    """Return as many of the first tests as run within this time, and at least one."""
    chosen: list[str] = []
    for name in names:
        seconds -= tests[name].duration
        if chosen and seconds < 0:
            break
        chosen.append(name)
    return chosen


def _tests_of_folder(mutant: Mutant, tests: Mapping[str, CoveringTest]) -> list[str]:
    """Return the tests of the mutant's folder: those in files that name its module, or start processes, first."""
    folder = f"tests/{mutant.folder}"
    has_own = mutant.folder != "." and (TREE / folder).is_dir()
    start = f"{folder}/" if has_own else f"{folder.rpartition('/')[0]}/test_"
    texts = {name.partition("::")[0]: "" for name in tests if name.startswith(start)}
    texts = {file: (TREE / file).read_text() for file in texts}

    def rank(name: str) -> tuple[bool, bool, float]:
        text, duration = texts[name.partition("::")[0]], tests[name].duration
        starts_processes = duration >= PROCESS_SECONDS and PROCESSES.search(text) is not None
        return _module(mutant.path) not in text, not starts_processes, duration

    return sorted((name for name in tests if name.partition("::")[0] in texts), key=rank)


def _status_on_disk(mutant: Mutant, names: Sequence[str], seconds: float) -> str:
    path = TREE / mutant.path
    original, times = path.read_text(), (path.stat().st_atime, path.stat().st_mtime)
    if not names:
        return SURVIVED
    try:
        path.write_text(ast.unparse(mutated_tree(path, mutant)))
        os.utime(path, (0, mutant.index))  # bytecode of another mutant is never taken for that of this one
        return _run_tests(names, 2 * seconds + 30)
    finally:
        path.write_text(original)
        os.utime(path, times)


def _run_tests(names: Sequence[str], seconds: float) -> str:
    arguments = BUILD / "tests.txt"
    arguments.write_text("\n".join(names))
    command = [sys.executable, "-m", "pytest", "-x", *PYTEST_OPTIONS, f"@{arguments}"]
    none = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=TREE, start_new_session=True, stdout=none, stderr=none) as process:
        try:
            return KILLED if process.wait(seconds) else SURVIVED
        except subprocess.TimeoutExpired:
            return SURVIVED  # a test may hang
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _record(items: Sequence[pytest.Item]) -> dict[str, CoveringTest]:
    """Run tests; return those that pass, with the lines that they execute."""
    tracer = coverage.Coverage(data_file=None, include=[f"{TREE / SOURCE}/*"], messages=False)
    tracer.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
    tests: dict[str, CoveringTest] = {}
    cleared = caches()
    tracer.start()
    try:
        for item in items:
            for cache in cleared:  # otherwise a cached function seems to be executed by its first caller only
                cache.cache_clear()
            tracer.switch_context(item.nodeid)
            started = time.monotonic()
            if outcome(item) == "passed":
                tests[item.nodeid] = CoveringTest(time.monotonic() - started, {})
    finally:
        tracer.stop()
    data = tracer.get_data()
    for file in data.measured_files():
        path = str(Path(file).relative_to(TREE))
        for line, names in data.contexts_by_lineno(file).items():
            for name in tests.keys() & names:
                tests[name].lines.setdefault(path, []).append(line)
    return tests


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_tree() -> None:
    """Copy the repository, so that the working tree can be edited during the run."""
    shutil.rmtree(TREE, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", *NOT_COPIED)
    shutil.copytree(ROOT, TREE, ignore=ignore)


def main() -> None:
    """Test a sample of mutants and report."""
    options = _parse_options()
    copy_tree()
    mutants = choose_mutants(TREE, options)
    with os.fdopen(os.dup(1), "w", buffering=1) as out:  # pytest captures the original
        print(f"seed {options.seed}: {len(mutants)} mutants", file=out)
        stopped = test_mutants(mutants, options, out)
        tested = [mutant for mutant in mutants if mutant.status]
        report(tested, sorted({missing_for(mutant.path) for mutant in tested} - {""}), out)
    if options.json is not None:
        fields = {"seed": options.seed, "mutants": [asdict(mutant) for mutant in tested]}
        (ROOT / options.json).write_text(json.dumps(fields, indent=1) + "\n")
    if stopped:
        raise SystemExit(f"stopped after {len(tested)} of {len(mutants)} mutants")


LEFT_OUT = ("cacheprovider", "xdist", "faulthandler", "unraisableexception", "threadexception")
PYTEST_OPTIONS = ("-q", "--no-header", *(option for name in LEFT_OUT for option in ("-p", f"no:{name}")))


def test_mutants(mutants: list[Mutant], options: argparse.Namespace, out: TextIO) -> bool:
    """Set the status of all mutants; return whether the user stopped it before."""
    os.chdir(TREE)
    os.environ["PYTHONPATH"] = str(TREE / "src")
    sys.path[:] = [str(TREE / "src"), *(path for path in sys.path if path != str(ROOT))]
    session = Session(mutants, options, out)
    folders = sorted(f"tests/{path.name}" for path in (TREE / "tests").iterdir() if path.name not in TESTS_ELSEWHERE)
    pytest.main([*PYTEST_OPTIONS, "--rootdir", str(TREE), *(options.tests or folders)], plugins=[session])
    return session.stopped


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1, help="random seed of the sample (default 1)")
    parser.add_argument("--per-folder", type=int, default=12, help="number of mutants of each folder (default 12)")
    parser.add_argument("--paths", nargs="+", default=[SOURCE], help="files and folders to mutate")
    parser.add_argument("--tests", nargs="+", help="files and folders of tests (default: all that run in one process)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested at the same time (default 1)")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of tests per mutant (default 30)")
    parser.add_argument("--disk-seconds", type=float, default=20.0, help="the same in a new process (default 20)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--survivors-of", type=Path, help="test only the survivors in this file again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
