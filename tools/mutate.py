"""Mutation testing: change the code in many small ways, and count the changes that no test notices.

    python tools/mutate.py                          # 200 mutants of the scheduling code, seed 1
    python tools/mutate.py --seed 2 --count 400 --json build/mutate/seed-2.json
    python tools/mutate.py --survivors-of build/mutate/seed-2.json       # after writing tests

The tests run on a copy in build/mutate/tree, in one process that has imported everything and loaded all compiled
kernels. It forks once per mutant; the child replaces the code of one function in memory and runs the tests that execute
the changed line, fastest first, until one fails. Which tests execute a line is recorded once, in build/mutate/coverage.
Ctrl-C stops it and reports what is known so far.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import TextIO

import coverage
import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.mutation_operators import Mutation, apply_mutation, mutations  # noqa: E402

BUILD = ROOT / "build" / "mutate"
TREE = BUILD / "tree"
COVERAGE = BUILD / "coverage"
COPIED = ("src", "tests", "tools", "examples", "pyproject.toml")

PATHS = (
    "src/refold/core",
    "src/refold/policies/reshaping",
    "src/refold/policies/backfill",
    "src/refold/packing/placer.py",
)
TESTS = ("tests/core", "tests/policies", "tests/packing")
IGNORED_TESTS = [
    f"tests/policies/test_{name}.py"
    for name in ("antman", "contracts", "gavel", "optimus", "pollux", "sia", "synergy", "tiresias")
]
"""Slow tests, of other policies than those that are mutated, and of all policies."""

MIN_TEST_SECONDS = 10.0
"""A test of a mutant is a timeout after this CPU time, plus `SLOWDOWN` times its normal duration."""

SLOWDOWN = 10.0

MAX_WAIT = 20.0
"""A test that waits instead is a timeout after this multiple of that time."""

WARM_UP_SECONDS = 20.0
"""How long tests run before the first fork to load compiled kernels, if coverage is already known."""

TIMEOUTS = (signal.SIGPROF, signal.SIGALRM)
"""Signals of the timers for CPU time and for time."""

KILLED, TIMEOUT, SURVIVED, NO_COVERAGE = "killed", "timeout", "survived", "no coverage"
STATUSES = (KILLED, TIMEOUT, SURVIVED, NO_COVERAGE)


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
    """The number of tests that execute the line."""

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What identifies the mutant in a later run, as long as its file has not changed."""
        return self.path, self.index, self.before, self.after


@dataclass
class CoveringTest:
    """A test, its duration in CPU time, and the lines of each mutated file that it executes."""

    duration: float
    lines: dict[str, list[int]]


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
    return [str(path.relative_to(root)) for path in found]


def _mutants_of(path: str, source: str) -> Iterator[Mutant]:
    for index, mutation in enumerate(mutations(ast.parse(source))):
        before = ast.get_source_segment(source, mutation.node) or ""
        lines = mutation.first_line, mutation.last_line
        line = getattr(mutation.node, "lineno", mutation.first_line)
        yield Mutant(path, index, line, mutation.operator, _one_line(before), _after(mutation), *lines)


def _after(mutation: Mutation) -> str:
    if mutation.operator == "early return":
        return "return"
    return _one_line(ast.unparse(ast.fix_missing_locations(mutation.replacement)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def mutated_code(path: Path, mutant: Mutant) -> CodeType:
    """Compile a module with one mutation."""
    tree = ast.parse(path.read_text())
    mutation = next(each for number, each in enumerate(mutations(tree)) if number == mutant.index)
    return compile(apply_mutation(tree, mutation), str(path), "exec", dont_inherit=True)


def function_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions of a module that are not nested in a function."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function; the body of a class has no such flag
                yield constant
            else:
                yield from function_codes(constant)


class Session:
    """A pytest plugin: in place of the normal run, it records coverage and then tests the mutants."""

    def __init__(self, mutants: list[Mutant], options: argparse.Namespace, out: TextIO) -> None:
        self._mutants, self._options, self._out = mutants, options, out
        self._paths = _python_files(options.paths, TREE)
        self.stopped = False

    def pytest_sessionstart(self) -> None:
        """Make failing Hypothesis tests fail at once, without a search for the smallest example."""
        from hypothesis import Phase, settings  # not before pytest, which rewrites its assertions

        settings.register_profile("mutate", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutate")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Test all mutants."""
        items = {item.nodeid: item for item in session.items}
        tests = self._coverage(items)
        covering = self._tests_by_line(tests)
        functions = self._functions()
        gc.collect()
        gc.freeze()
        self._say(f"{len(items)} tests, {len(tests)} of them pass and execute the mutated files")
        try:
            self._test_mutants(items, tests, covering, functions)
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
        sources = {path: _digest(TREE / path) for path in self._paths}
        tests: dict[str, CoveringTest] = {}
        executed = 0.0
        for number, (file, its_items) in enumerate(sorted(by_file.items()), 1):
            stored = COVERAGE / f"{_digest(TREE / file)[:24]}.json"
            found = _read_coverage(stored, sources)
            if found is None:
                self._say(f"coverage of {file} ({number} of {len(by_file)} files)")
                found = self._record(its_items)
                executed += sum(test.duration for test in found.values())
                fields = {"sources": sources, "tests": {name: asdict(test) for name, test in found.items()}}
                stored.write_text(json.dumps(fields))
            tests |= found
        if executed < WARM_UP_SECONDS:
            self._warm_up(items, tests)
        return {name: test for name, test in tests.items() if name in items}

    def _record(self, items: Sequence[pytest.Item]) -> dict[str, CoveringTest]:
        tracer = coverage.Coverage(data_file=None, include=[str(TREE / path) for path in self._paths], messages=False)
        tracer.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
        durations: dict[str, float] = {}
        tracer.start()
        try:
            for item in items:
                tracer.switch_context(item.nodeid)
                started = time.process_time()
                if _outcome(item) == "passed":
                    durations[item.nodeid] = time.process_time() - started
        finally:
            tracer.stop()
        data = tracer.get_data()
        tests = {name: CoveringTest(duration, {}) for name, duration in durations.items()}
        for path in self._paths:
            for line, contexts in data.contexts_by_lineno(str(TREE / path)).items():
                for name in contexts:
                    if name in tests:
                        tests[name].lines.setdefault(path, []).append(line)
        return {name: test for name, test in tests.items() if test.lines}

    def _warm_up(self, items: Mapping[str, pytest.Item], tests: Mapping[str, CoveringTest]) -> None:
        started = time.process_time()
        for name in sorted(tests, key=lambda name: tests[name].duration):
            if name in items and _outcome(items[name]) != "passed":
                self._say(f"{name} passed before and fails now")
            if time.process_time() - started > WARM_UP_SECONDS:
                return

    def _tests_by_line(self, tests: Mapping[str, CoveringTest]) -> dict[tuple[str, int], set[str]]:
        by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        for name, test in tests.items():
            for path, lines in test.lines.items():
                for line in lines:
                    by_line[path, line].add(name)
        return by_line

    def _functions(self) -> dict[tuple[str, str, int], list[FunctionType]]:
        """Return the functions of the mutated files by file, qualified name and first line."""
        files = {str(TREE / path) for path in self._paths}
        found: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in files:
                code = each.__code__
                found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
        return found

    # Mutants.

    def _test_mutants(
        self,
        items: Mapping[str, pytest.Item],
        tests: Mapping[str, CoveringTest],
        covering: Mapping[tuple[str, int], set[str]],
        functions: Mapping[tuple[str, str, int], list[FunctionType]],
    ) -> None:
        waiting, running = list(reversed(self._mutants)), {}
        done = 0
        try:
            while waiting or running:
                while waiting and len(running) < self._options.jobs:
                    mutant = waiting.pop()
                    names = self._tests_for(mutant, tests, covering)
                    mutant.tests = len(names)
                    if names:
                        child = _Child(mutant, [(items[name], tests[name].duration) for name in names], functions)
                        running[child.pipe] = child
                    else:
                        mutant.status, done = NO_COVERAGE, done + 1
                        self._say(f"{done} of {len(self._mutants)}: {_line(mutant)}")
                for pipe in select.select(list(running), [], [])[0] if running else ():
                    child = running.pop(pipe)
                    child.finish()
                    done += 1
                    self._say(f"{done} of {len(self._mutants)}: {_line(child.mutant)}")
        finally:
            for child in running.values():
                child.kill()

    def _tests_for(
        self, mutant: Mutant, tests: Mapping[str, CoveringTest], covering: Mapping[tuple[str, int], set[str]]
    ) -> list[str]:
        """Return the tests that execute the changed lines, fastest first, as many as the time for one mutant allows."""
        lines = range(mutant.first_line, mutant.last_line + 1)
        names = set().union(*(covering.get((mutant.path, line), ()) for line in lines))
        chosen: list[str] = []
        left = self._options.seconds
        for name in sorted(names, key=lambda name: (tests[name].duration, name)):
            left -= tests[name].duration
            if chosen and left < 0:
                break
            chosen.append(name)
        return chosen

    def _say(self, text: str) -> None:
        print(text, file=self._out)


class _Child:
    """A forked process that tests one mutant. It writes `status<TAB>test` to a pipe; without that, a test hung."""

    def __init__(
        self,
        mutant: Mutant,
        tests: Sequence[tuple[pytest.Item, float]],
        functions: Mapping[tuple[str, str, int], list[FunctionType]],
    ) -> None:
        self.mutant = mutant
        self.pipe, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self.pipe)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                for timer in TIMEOUTS:
                    signal.signal(timer, signal.SIG_DFL)
                os.write(write_end, self._test(tests, functions).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)

    def _test(
        self,
        tests: Sequence[tuple[pytest.Item, float]],
        functions: Mapping[tuple[str, str, int], list[FunctionType]],
    ) -> str:
        if not _patch(self.mutant, functions):
            return f"{NO_COVERAGE}\t"
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
        if result:
            self.mutant.status, self.mutant.by = result.split("\t")
        else:
            timeout = os.WIFSIGNALED(status) and os.WTERMSIG(status) in TIMEOUTS
            self.mutant.status = TIMEOUT if timeout else KILLED

    def kill(self) -> None:
        """End the child."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)


def _patch(mutant: Mutant, functions: Mapping[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Replace the code of the function that a mutant changes; return whether there is such a function."""
    path = TREE / mutant.path
    original = {_code_key(code): code for code in function_codes(compile(path.read_text(), str(path), "exec"))}
    patched = False
    for code in function_codes(mutated_code(path, mutant)):
        if code != original[_code_key(code)]:
            for function in functions.get(_code_key(code), ()):
                function.__code__ = code
                patched = True
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper) and getattr(each, "__module__", "").startswith("refold"):
            each.cache_clear()
    return patched


def _code_key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _outcome(item: pytest.Item) -> str:
    """Run a test, also repeatedly, and return `passed`, `failed` or `skipped`."""
    item._initrequest()  # type: ignore[attr-defined]
    outcomes = {report.outcome for report in runtestprotocol(item, log=False, nextitem=None)}
    return next((outcome for outcome in ("failed", "skipped") if outcome in outcomes), "passed")


def _read_coverage(stored: Path, sources: Mapping[str, str]) -> dict[str, CoveringTest] | None:
    """Return the recorded coverage of a test file; None if these sources have changed or were not recorded."""
    if not stored.exists():
        return None
    fields = json.loads(stored.read_text())
    if not sources.items() <= fields["sources"].items():
        return None
    return {name: CoveringTest(**test) for name, test in fields["tests"].items()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_tree() -> None:
    """Copy what the tests need, so that the working tree can be edited during the run."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, TREE / name, ignore=ignore)
        else:
            shutil.copy(source, TREE / name)


def choose_mutants(options: argparse.Namespace) -> list[Mutant]:
    """Return the sample: by seed, or those that survived in an earlier run and still exist."""
    mutants = find_mutants(options.paths, TREE)
    if options.survivors_of is None:
        return random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    earlier = [Mutant(**fields) for fields in json.loads(options.survivors_of.read_text())["mutants"]]
    keys = {mutant.key for mutant in earlier if mutant.status in (SURVIVED, NO_COVERAGE)}
    return [mutant for mutant in mutants if mutant.key in keys]


def _line(mutant: Mutant) -> str:
    return f"{mutant.status}: {mutant.path}:{mutant.line}: {mutant.before}  →  {mutant.after}"


def report(mutants: Sequence[Mutant], out: TextIO) -> None:
    """Print a table of the results by folder, and the mutants that no test noticed."""
    by_part: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        part = str(Path(mutant.path).relative_to("src/refold").parent)
        by_part[part][mutant.status] += 1
        by_part["all"][mutant.status] += 1
    print(f"\n{'':24}" + "".join(f"{name:>12}" for name in (*STATUSES, "noticed")), file=out)
    for part in sorted(by_part, key=lambda part: (part == "all", part)):
        counts = by_part[part]
        noticed = (counts[KILLED] + counts[TIMEOUT]) / counts.total()
        print(f"{part:24}" + "".join(f"{counts[name]:>12}" for name in STATUSES) + f"{noticed:>12.1%}", file=out)
    print(file=out)
    for mutant in sorted(mutants, key=lambda mutant: (mutant.path, mutant.line)):
        if mutant.status in (SURVIVED, NO_COVERAGE):
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


def test_mutants(mutants: list[Mutant], options: argparse.Namespace, out: TextIO) -> bool:
    """Set the status of all mutants; return whether the user stopped it before."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.chdir(TREE)
    sys.path[:] = [str(TREE / "src"), *(path for path in sys.path if path != str(ROOT))]
    session = Session(mutants, options, out)
    arguments = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:faulthandler",
        "--rootdir",
        str(TREE),
    ]
    ignored = [f"--ignore={path}" for path in IGNORED_TESTS if path not in options.tests]
    pytest.main([*arguments, *ignored, *options.tests], plugins=[session])
    return session.stopped


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1, help="random seed of the sample (default 1)")
    parser.add_argument("--count", type=int, default=200, help="number of mutants (default 200)")
    parser.add_argument("--paths", nargs="+", default=PATHS, help="files and folders to mutate")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested at the same time (default 1)")
    parser.add_argument("--seconds", type=float, default=30.0, help="CPU time of tests per mutant (default 30)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--survivors-of", type=Path, help="test only the survivors in this file again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
