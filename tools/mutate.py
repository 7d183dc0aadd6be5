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
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import _lru_cache_wrapper
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TextIO

import coverage
import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.mutation_operators import apply_mutation, mutations  # noqa: E402

BUILD = ROOT / "build" / "mutate"
TREE = BUILD / "tree"
COVERAGE = BUILD / "coverage"
NOT_COPIED = ("build", ".git", ".venv")

SOURCE = "src/refold"
TESTS_ELSEWHERE = frozenset({"docs", "end_to_end", "helpers"})
"""Folders of tests that are left out unless they are named: they check pages, or start programs and little else."""

NEEDED = {
    "kubernetes": ("Kubernetes", "KUBEBUILDER_ASSETS"),
    "slurm": ("Slurm", "REFOLD_TEST_SLURM"),
    "ray": ("Ray", "REFOLD_TEST_RAY"),
    "train": ("PyTorch", ""),
}
"""What some tests of folders with this name need, and the variable that says that it is there."""

MIN_TEST_SECONDS = 10.0
"""A test of a mutant is a timeout after this CPU time, plus `SLOWDOWN` times its normal duration."""

SLOWDOWN = 10.0

MAX_WAIT = 3.0
"""A test that waits instead is a timeout after this multiple of that time."""

PROCESSES = re.compile(r"_daemon import|subprocess|_servers import")
PROCESS_SECONDS = 0.1
"""Tests in files with these words that take this long may start processes."""

WARM_UP_SECONDS = 20.0
"""How long tests run before the first fork, to import what is imported late, if coverage is already known."""

TIMEOUTS = (signal.SIGPROF, signal.SIGALRM)
"""Signals of the timers for CPU time and for time."""

SHOWN = 60
"""How many characters before and after a change are shown."""

KILLED, TIMEOUT, SURVIVED, NO_COVERAGE, NOT_JUDGED = "killed", "timeout", "survived", "no coverage", "not judged"
STATUSES = (KILLED, TIMEOUT, SURVIVED, NO_COVERAGE, NOT_JUDGED)
UNNOTICED = (SURVIVED, NO_COVERAGE, NOT_JUDGED)


@dataclass
class Mutant:
    """One change of one file, and what the tests made of it. `index` is its number among the mutations of the file."""

    path: str
    index: int
    line: int
    operator: str
    before: str
    after: str
    first_line: int
    last_line: int
    status: str = ""
    by: str = ""
    """The test that failed or did not end."""
    tests: int = 0
    """The number of tests that ran or would have run."""
    on_disk: bool = False
    """Whether it was judged by the folder's tests in a new process."""

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What identifies the mutant in a later run, as long as its file has not changed."""
        return self.path, self.index, self.before, self.after

    @property
    def folder(self) -> str:
        """The folder in `SOURCE` under which it is reported: that of an engine, or else the topmost."""
        parts = Path(self.path).relative_to(SOURCE).parts[:-1]
        return "/".join(parts[: 2 if parts[:1] == ("engines",) else 1]) or "."


@dataclass
class CoveringTest:
    """A test that passes, its duration, and the lines of each source file that it executes in its own process."""

    duration: float
    lines: dict[str, list[int]]


class Patchable(NamedTuple):
    """What a child replaces: functions by file, qualified name and first line; and caches that it clears."""

    functions: dict[tuple[str, str, int], list[FunctionType]]
    caches: list[Any]


def find_mutants(paths: Sequence[str], root: Path) -> list[Mutant]:
    """Return all mutants of the Python files in `paths`, in a fixed order."""
    return [mutant for path in _python_files(paths, root) for mutant in _mutants_of(path, (root / path).read_text())]


def _python_files(paths: Sequence[str], root: Path) -> list[str]:
    found: list[Path] = []
    for path in paths:
        whole = root / path
        if not whole.exists():
            raise SystemExit(f"mutate: {path} does not exist")
        found += sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
    return [str(path.relative_to(root)) for path in found if not _is_test(path) and not _is_compiled(path)]


def _is_test(path: Path) -> bool:
    return path.name.endswith("_contract.py")


def _is_compiled(path: Path) -> bool:
    return path.with_suffix(".pxd").exists()


def _mutants_of(path: str, source: str) -> Iterator[Mutant]:
    for index, mutation in enumerate(mutations(ast.parse(source))):
        after = "return" if mutation.operator == "early return" else _one_line(mutation.replacement)
        line = getattr(mutation.node, "lineno", mutation.first_line)
        before, lines = _one_line(mutation.node), (mutation.first_line, mutation.last_line)
        yield Mutant(path, index, line, mutation.operator, before, after, *lines)


def _one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def mutated_tree(path: Path, mutant: Mutant) -> ast.Module:
    """Return the syntax tree of a module with one mutation."""
    tree = ast.parse(path.read_text())
    mutation = next(each for number, each in enumerate(mutations(tree)) if number == mutant.index)
    return apply_mutation(tree, mutation)


def function_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions of a module, also of nested ones."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function; the body of a class has no such flag
                yield constant
            yield from function_codes(constant)


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
            if _outcome(items[name]) != "passed":
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
        found = Patchable(defaultdict(list), _caches())
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in files:
                found.functions[_code_key(each.__code__)].append(each)
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
        running: dict[int, _Child] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._options.jobs:
                    mutant = waiting.pop()
                    lines = range(mutant.first_line, mutant.last_line + 1)
                    names = set().union(*(covering.get((mutant.path, line), ()) for line in lines))
                    chosen = _within(self._options.seconds, sorted(names, key=lambda name: tests[name].duration), tests)
                    mutant.tests = len(chosen)
                    if chosen:
                        child = _Child(mutant, [(items[name], tests[name].duration) for name in chosen], patchable)
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
        self._say(f"{self._done} of {len(self._mutants)}: {_line(mutant)}")

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


class _Child:
    """A forked process that tests one mutant. It writes `status<TAB>test` to a pipe; without that, a test hung."""

    def __init__(self, mutant: Mutant, tests: Sequence[tuple[pytest.Item, float]], patchable: Patchable) -> None:
        self.mutant = mutant
        self.pipe, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self.pipe)
                os.setpgrp()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for timer in TIMEOUTS:
                    signal.signal(timer, signal.SIG_DFL)
                os.write(write_end, self._test(tests, patchable).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)

    def _test(self, tests: Sequence[tuple[pytest.Item, float]], patchable: Patchable) -> str:
        if not _patch(self.mutant, patchable):
            return "\t"
        for item, duration in tests:
            limit = MIN_TEST_SECONDS + SLOWDOWN * duration
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, MAX_WAIT * limit)
            if _outcome(item) != "passed":
                return f"{KILLED}\t{item.nodeid}"
        return f"{SURVIVED}\t"

    def finish(self) -> None:
        """Read the result. A child that died of a timer had a test that did not end."""
        with os.fdopen(self.pipe) as pipe:
            result = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        self._end_processes()
        if result:
            self.mutant.status, self.mutant.by = result.split("\t")
        else:
            timeout = os.WIFSIGNALED(status) and os.WTERMSIG(status) in TIMEOUTS
            self.mutant.status = TIMEOUT if timeout else KILLED

    def kill(self) -> None:
        """End the child."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._end_processes()
        os.close(self.pipe)

    def _end_processes(self) -> None:
        """End what the tests have started and left."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


def _patch(mutant: Mutant, patchable: Patchable) -> bool:
    """Replace the code of the function that a mutant changes; return whether there is such a function."""
    path = TREE / mutant.path
    original = {_code_key(code): code for code in function_codes(compile(path.read_text(), str(path), "exec"))}
    patched = False
    mutated = compile(mutated_tree(path, mutant), str(path), "exec", dont_inherit=True)
    for code in function_codes(mutated):
        if code != original[_code_key(code)]:
            for function in patchable.functions.get(_code_key(code), ()):
                if len(code.co_freevars) != len(function.__code__.co_freevars):
                    return False  # a closure with other variables cannot be replaced
                function.__code__ = code
                patched = True
    for each in patchable.caches:
        each.cache_clear()
    return patched


def _caches() -> list[Any]:
    """Return the caches of functions of Refold."""
    found = [each for each in gc.get_objects() if type(each) is _lru_cache_wrapper]
    return [each for each in found if str(each.__module__).startswith("refold")]


def _code_key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _record(items: Sequence[pytest.Item]) -> dict[str, CoveringTest]:
    """Run tests; return those that pass, with the lines that they execute."""
    tracer = coverage.Coverage(data_file=None, include=[f"{TREE / SOURCE}/*"], messages=False)
    tracer.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
    tests: dict[str, CoveringTest] = {}
    caches = _caches()
    tracer.start()
    try:
        for item in items:
            for cache in caches:  # otherwise a cached function seems to be executed by its first caller only
                cache.cache_clear()
            tracer.switch_context(item.nodeid)
            started = time.monotonic()
            if _outcome(item) == "passed":
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


def _outcome(item: pytest.Item) -> str:
    """Run a test, also repeatedly, and return `passed`, `failed` or `skipped`."""
    item._initrequest()  # type: ignore[attr-defined]
    outcomes = {report.outcome for report in runtestprotocol(item, log=False, nextitem=None)}
    return next((outcome for outcome in ("failed", "skipped") if outcome in outcomes), "passed")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_tree() -> None:
    """Copy the repository, so that the working tree can be edited during the run."""
    shutil.rmtree(TREE, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", *NOT_COPIED)
    shutil.copytree(ROOT, TREE, ignore=ignore)


def choose_mutants(options: argparse.Namespace) -> list[Mutant]:
    """Return the sample: of each folder by seed, or those that survived in an earlier run and still exist."""
    mutants = find_mutants(options.paths, TREE)
    if options.survivors_of is not None:
        earlier = [Mutant(**fields) for fields in json.loads(options.survivors_of.read_text())["mutants"]]
        keys = {mutant.key for mutant in earlier if mutant.status in UNNOTICED}
        return [mutant for mutant in mutants if mutant.key in keys]
    by_folder: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_folder[mutant.folder].append(mutant)
    return [
        mutant
        for folder, found in sorted(by_folder.items())
        for mutant in random.Random(f"{options.seed} {folder}").sample(found, min(options.per_folder, len(found)))
    ]


def _line(mutant: Mutant) -> str:
    pairs = enumerate(zip(mutant.before, mutant.after, strict=False))
    start = max(next((index for index, (old, new) in pairs if old != new), 0) - SHOWN, 0)
    before, after = (f"{'…' * bool(start)}{text[start : start + 2 * SHOWN]}" for text in (mutant.before, mutant.after))
    return f"{mutant.status}: {mutant.path}:{mutant.line}: {before}  →  {after}"


def report(mutants: Sequence[Mutant], out: TextIO) -> None:
    """Print a table of the results by folder, and the mutants that no test noticed."""
    by_folder: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_folder[mutant.folder].append(mutant)
    columns = (*STATUSES, "on disk", "noticed")
    print("\n| folder | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|", file=out)
    for folder, found in [*sorted(by_folder.items()), ("all", mutants)]:
        counts = Counter(mutant.status for mutant in found)
        judged = counts.total() - counts[NOT_JUDGED]
        share = f"{(counts[KILLED] + counts[TIMEOUT]) / judged:.0%}" if judged else "–"
        cells = [*(counts[status] for status in STATUSES), sum(mutant.on_disk for mutant in found), share]
        print(f"| {folder} | " + " | ".join(map(str, cells)) + " |", file=out)
    if missing := sorted({missing_for(mutant.path) for mutant in mutants} - {""}):
        print(f"\nNot there, so that its tests did not run: {', '.join(missing)}", file=out)
    print(file=out)
    for mutant in sorted(mutants, key=lambda mutant: (mutant.path, mutant.line)):
        if mutant.status in UNNOTICED:
            print(_line(mutant), file=out)


def main() -> None:
    """Test a sample of mutants and report."""
    options = _parse_options()
    copy_tree()
    mutants = choose_mutants(options)
    with os.fdopen(os.dup(1), "w", buffering=1) as out:  # pytest captures the original
        print(f"seed {options.seed}: {len(mutants)} mutants", file=out)
        stopped = test_mutants(mutants, options, out)
        tested = [mutant for mutant in mutants if mutant.status]
        report(tested, out)
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
