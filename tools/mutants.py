"""Mutants: small changes of the code, a sample of them, and the report of what the tests made of each."""

from __future__ import annotations

import argparse
import ast
import json
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TextIO

from tools.mutation_operators import apply_mutation, mutations

SOURCE = "src/refold"

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
    return path.name.endswith(("_contract.py", "_harness.py"))


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


def choose_mutants(root: Path, options: argparse.Namespace) -> list[Mutant]:
    """Return the sample: of each folder by seed, or those that survived in an earlier run and still exist."""
    mutants = find_mutants(options.paths, root)
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


def describe(mutant: Mutant) -> str:
    """Return a line: its status, its place, and the change."""
    pairs = enumerate(zip(mutant.before, mutant.after, strict=False))
    start = max(next((index for index, (old, new) in pairs if old != new), 0) - SHOWN, 0)
    before, after = (f"{'…' * bool(start)}{text[start : start + 2 * SHOWN]}" for text in (mutant.before, mutant.after))
    return f"{mutant.status}: {mutant.path}:{mutant.line}: {before}  →  {after}"


def report(mutants: Sequence[Mutant], missing: Collection[str], out: TextIO) -> None:
    """Print a table of the results by folder, and the mutants that no test noticed. `missing`: what tests needed."""
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
    if missing:
        print(f"\nNot there, so that its tests did not run: {', '.join(missing)}", file=out)
    print(file=out)
    for mutant in sorted(mutants, key=lambda mutant: (mutant.path, mutant.line)):
        if mutant.status in UNNOTICED:
            print(describe(mutant), file=out)
